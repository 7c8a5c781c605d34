"""Background tasks: held, named, reported, and ended with their owner."""

from __future__ import annotations

import asyncio
import logging

import pytest

from cometmq.core.clock import VirtualClock
from cometmq.net.eventloop import Watchdog
from cometmq.net.tasks import RESTART_MS, Tasks, ended, together


@pytest.fixture(params=[None, Watchdog()], ids=["unwatched", "watched"])
def tasks(request: pytest.FixtureRequest) -> Tasks:
    return Tasks(request.param)


async def test_a_failure_is_logged_under_its_name(
    tasks: Tasks, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        raise ValueError("broken")

    with caplog.at_level(logging.ERROR):
        task = tasks.spawn(fail(), name="fragile")
        with pytest.raises(ValueError, match="broken"):
            await task
    assert [record.getMessage() for record in caplog.records] == [
        "task failed name=fragile error=ValueError('broken')"
    ]
    assert len(tasks) == 0


async def test_close_cancels_and_awaits_all_also_those_started_meanwhile(tasks: Tasks) -> None:
    ended: list[str] = []

    async def last() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("last")

    async def wait() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("first")
            tasks.spawn(last(), name="last")

    tasks.spawn(wait(), name="first")
    await asyncio.sleep(0)
    await tasks.close()
    assert ended[0] == "first"
    assert len(tasks) == 0


async def test_close_does_not_wait_for_a_task_that_ended_in_the_same_turn(tasks: Tasks) -> None:
    async def nothing() -> None:
        pass

    task = tasks.spawn(nothing(), name="short")
    await asyncio.sleep(0)
    assert task.done()
    assert len(tasks) == 1, "its owner has not heard of it yet"
    await tasks.close()
    await asyncio.sleep(0)
    assert len(tasks) == 0


async def test_a_task_may_close_its_own_owner(tasks: Tasks) -> None:
    async def stop() -> str:
        await tasks.close()
        return "stopped"

    assert await tasks.spawn(stop(), name="stop") == "stopped"


async def test_a_kept_task_starts_again_after_a_failure_until_it_ends(tasks: Tasks) -> None:
    clock = VirtualClock()
    rounds: list[int] = []

    async def work() -> None:
        rounds.append(len(rounds))
        if len(rounds) < 3:
            raise ValueError("a bad round")

    tasks.keep(work, name="background", clock=clock)
    for _ in range(5):
        await asyncio.sleep(0)
        clock.advance(RESTART_MS)
    await asyncio.sleep(0)
    assert rounds == [0, 1, 2]
    assert len(tasks) == 0


async def test_the_watchdog_hears_of_the_step_that_was_long() -> None:
    clock = VirtualClock()
    watchdog = Watchdog(clock)

    async def work() -> str:
        clock.advance(10)
        await asyncio.sleep(0)
        clock.advance(15)
        await asyncio.sleep(0)
        clock.advance(30)
        return "done"

    assert await Tasks(watchdog).spawn(work(), name="QUERY_MESSAGE") == "done"
    assert watchdog.stalls == {"QUERY_MESSAGE": 1}
    assert watchdog.longest_ns == 30_000_000


async def test_a_task_of_a_closed_owner_never_starts(tasks: Tasks) -> None:
    async def work() -> None:
        raise AssertionError("it started")

    await tasks.close()
    task = tasks.spawn(work(), name="late")
    await asyncio.wait([task])
    assert task.cancelled()


async def test_who_waits_for_the_end_of_a_task_neither_stops_it_nor_hears_its_error() -> None:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def work() -> None:
        await done
        raise ValueError("broken")

    task = asyncio.create_task(work())
    waits = [asyncio.create_task(ended(task)) for _ in range(2)]
    await asyncio.sleep(0)
    waits[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await waits[0]
    assert not task.done()
    done.set_result(None)
    await waits[1]
    assert isinstance(task.exception(), ValueError)
    await ended(task)


@pytest.mark.parametrize("count", [0, 1, 3])
async def test_together_several_calls_give_all_their_results(count: int) -> None:
    caller = asyncio.current_task()
    tasks: list[asyncio.Task[object] | None] = []

    async def call(number: int) -> int:
        tasks.append(asyncio.current_task())
        await asyncio.sleep(0)
        return number

    assert await together([call(number) for number in range(count)]) == list(range(count))
    # One alone is no task of its own.
    assert (caller in tasks) == (count == 1)


async def test_closing_spares_a_task_that_waits_for_it(tasks: Tasks) -> None:
    async def wait() -> str:
        closing = asyncio.create_task(tasks.close(spared=asyncio.current_task()))
        await closing
        return "spared"

    other = tasks.spawn(asyncio.Event().wait(), name="other")
    async with asyncio.timeout(60):
        assert await tasks.spawn(wait(), name="waiting") == "spared"
    assert other.cancelled()
