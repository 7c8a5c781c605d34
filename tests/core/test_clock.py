"""Clocks: the machine's, and the one that tests move. Long work gives the loop back."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cometmq.core.clock import SLICE_NS, Clock, Slices, SystemClock, VirtualClock, join_in_slices


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


CLOCK = SystemClock()


class Turns:
    """How often the loop came round."""

    def __init__(self) -> None:
        self.count = 0

    async def run(self) -> None:
        while True:
            self.count += 1
            await asyncio.sleep(0)


@contextmanager
def counted() -> Iterator[Turns]:
    turns = Turns()
    task = asyncio.create_task(turns.run())
    try:
        yield turns
    finally:
        task.cancel()


def work(duration_ns: int) -> None:
    until_ns = CLOCK.monotonic_ns() + duration_ns
    while CLOCK.monotonic_ns() < until_ns:
        pass


async def test_long_work_gives_the_loop_back() -> None:
    with counted() as turns:
        slices = Slices(CLOCK)
        for _ in range(100):
            await slices.pause()
        assert turns.count == 0  # nothing took long
        for _ in range(3):
            work(SLICE_NS + 1)
            await slices.pause()
        assert turns.count >= 3


async def test_pieces_are_joined_over_several_turns() -> None:
    def pieces() -> Iterator[bytes]:
        for number in range(5):
            work(SLICE_NS + 1)
            yield b"%d" % number

    with counted() as turns:
        assert await join_in_slices(pieces(), CLOCK) == b"01234"
        assert turns.count >= 5
