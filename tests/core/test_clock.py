"""Clocks: the machine's, and the one that tests move."""

import asyncio

import pytest

from cometmq.core.clock import Clock, SystemClock, VirtualClock


@pytest.mark.parametrize("clock", [SystemClock(), VirtualClock()])
async def test_every_clock_keeps_the_contract(clock: Clock) -> None:
    before_ms = clock.monotonic_ms()
    assert abs(clock.monotonic_ns() // 1_000_000 - before_ms) < 1_000
    assert clock.wall_ms() > 1_600_000_000_000
    await clock.sleep_ms(0)
    assert clock.monotonic_ms() >= before_ms


async def test_the_machines_clock_sleeps() -> None:
    clock = SystemClock()
    before_ns = clock.monotonic_ns()
    await clock.sleep_ms(5)
    assert clock.monotonic_ns() - before_ns >= 4_000_000


async def test_sleepers_wake_when_their_moment_has_passed() -> None:
    clock = VirtualClock()
    woken: list[str] = []

    async def sleep(name: str, duration_ms: int) -> None:
        await clock.sleep_ms(duration_ms)
        woken.append(name)

    tasks = [asyncio.create_task(sleep(name, ms)) for name, ms in (("a", 30), ("b", 10), ("c", 20))]
    await asyncio.sleep(0)
    clock.advance(9)
    await asyncio.sleep(0)
    assert woken == []
    clock.advance(11)
    await asyncio.wait(tasks[1:])
    assert sorted(woken) == ["b", "c"]
    tasks[0].cancel()
    clock.advance(100)
    await asyncio.gather(*tasks, return_exceptions=True)
    assert sorted(woken) == ["b", "c"]


async def test_a_cancelled_sleeper_is_left_alone() -> None:
    clock = VirtualClock()
    task = asyncio.create_task(clock.sleep_ms(10))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    clock.advance(20)
    assert task.cancelled()


async def test_the_wall_can_jump_without_waking_anybody() -> None:
    clock = VirtualClock(wall_ms=1_000, monotonic_ms=50)
    task = asyncio.create_task(clock.sleep_ms(10))
    await asyncio.sleep(0)
    clock.jump_wall(3_600_000)
    await asyncio.sleep(0)
    assert not task.done()
    assert (clock.wall_ms(), clock.monotonic_ms(), clock.monotonic_ns()) == (
        3_601_000,
        50,
        50_000_000,
    )
    clock.advance(10)
    await task
