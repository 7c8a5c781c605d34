"""Time that jumps, and processes that end."""

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from tests.simulation.cluster.clock import SimClock
from tests.simulation.cluster.loop import (
    START_US,
    Idle,
    Livelock,
    Process,
    SimLoop,
    current_process,
)


@pytest.fixture
def loop() -> Iterator[SimLoop]:
    made = SimLoop()
    yield made
    made.dispose()


def launch(loop: SimLoop, name: str, main: Coroutine[Any, Any, None]) -> Process:
    process = Process(name, "127.0.0.1")
    loop.launch(process, main)
    return process


def test_time_jumps_to_the_next_timer(loop: SimLoop) -> None:
    clock = SimClock(loop)

    async def main() -> list[int]:
        begin_ms = clock.monotonic_ms()
        await asyncio.gather(clock.sleep_ms(86_400_000), clock.sleep_ms(5))
        return [begin_ms, clock.monotonic_ms()]

    begin_ms, end_ms = loop.run_until_complete(main())
    assert begin_ms == START_US // 1000
    assert end_ms == begin_ms + 86_400_000


def test_timers_of_one_moment_run_in_their_order(loop: SimLoop) -> None:
    found: list[int] = []

    async def main() -> None:
        for number in range(20):
            loop.call_at(loop.time() + 1, found.append, number)
        await asyncio.wait_for(SimClock(loop).sleep_ms(2_000), 5)

    loop.run_until_complete(main())
    assert found == list(range(20))


def test_a_timeout_takes_no_time(loop: SimLoop) -> None:
    async def main() -> None:
        async with asyncio.timeout(3_600):
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        loop.run_until_complete(main())


def test_a_loop_without_timers_says_so(loop: SimLoop) -> None:
    with pytest.raises(Idle):
        loop.run_until_complete(loop.create_future())


def test_a_loop_that_never_ends_says_so(loop: SimLoop) -> None:
    async def main() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(Livelock):
        loop.run_until_complete(main())


def test_nothing_of_an_ended_process_runs(loop: SimLoop) -> None:
    clock = SimClock(loop)
    seen: list[str] = []

    async def work() -> None:
        try:
            while True:
                await clock.sleep_ms(10)
                process = current_process()
                assert process is not None
                seen.append(process.name)
        finally:
            seen.append("cleaned up")

    async def spawn() -> None:
        process = current_process()
        assert process is not None
        task = loop.create_task(work())
        await task

    async def main() -> None:
        ended: list[str] = []
        first = launch(loop, "first", spawn())
        launch(loop, "second", work())
        first.on_end.append(lambda: ended.append("first"))
        await clock.sleep_ms(35)
        first.end()
        first.end()
        await clock.sleep_ms(30)
        assert ended == ["first"]

    loop.run_until_complete(main())
    assert seen.count("first") == 3
    assert seen.count("second") == 6
    assert "cleaned up" not in seen


def test_a_process_that_fails_is_told_of(loop: SimLoop) -> None:
    problems: list[str] = []
    loop.uncaught = problems.append

    async def fail() -> None:
        raise ValueError("main")

    def fail_later() -> None:
        raise ValueError("callback")

    async def main() -> None:
        launch(loop, "one", fail())
        process = launch(loop, "two", SimClock(loop).sleep_ms(100_000))
        loop.call_soon(fail_later, context=process.context)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        process.end()
        loop.call_soon(fail_later, context=process.context)
        await asyncio.sleep(0)

    loop.run_until_complete(main())
    assert len(problems) == 2
    assert any("main" in problem for problem in problems)
    assert any("callback" in problem for problem in problems)


def test_an_end_closes_what_waits_in_its_clean_up() -> None:
    loop = SimLoop()
    closed: list[str] = []

    async def inner() -> None:
        try:
            await loop.create_future()
        finally:
            closed.append("inner")
            await SimClock(loop).sleep_ms(1)
            closed.append("never reached")

    async def outer() -> None:
        try:
            await inner()
        finally:
            closed.append("outer")
            await loop.create_future()

    launch(loop, "p", outer())
    loop.run_until_complete(SimClock(loop).sleep_ms(1))
    loop.dispose()
    assert closed == ["inner", "outer"]
    assert loop.is_closed()


def test_there_are_no_other_programs(loop: SimLoop) -> None:
    with pytest.raises(OSError, match="memory"):
        loop.run_until_complete(asyncio.create_subprocess_exec("true"))


def test_what_was_cancelled_is_not_called(loop: SimLoop) -> None:
    called: list[str] = []

    async def main() -> None:
        soon = loop.call_soon(called.append, "soon")
        later = loop.call_later(1, called.append, "later")
        assert not soon.cancelled()
        assert "append" in repr(later)
        for handle in (soon, later):
            handle.cancel()
            assert handle.cancelled()
        await SimClock(loop).sleep_ms(2_000)

    loop.run_until_complete(main())
    assert called == []


def test_a_loop_that_is_stopped_stops_at_this_moment(loop: SimLoop) -> None:
    loop.call_soon(loop.stop)
    loop.call_later(1, loop.uncaught, "too late")
    loop.run_forever()
    assert loop.now_us == START_US
