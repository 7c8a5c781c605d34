"""Calls are shared: one at a time for each key, results for a while, failures for nobody else."""

import asyncio

import pytest

from cometmq.core.clock import SystemClock
from cometmq.core.errors import NotConnected
from cometmq.dashboard.sharing import CALLS_MAX, KEPT_MAX, SharedCalls
from cometmq.net.tasks import Tasks


async def test_viewers_share_a_call_and_its_result() -> None:
    tasks, made = Tasks(), 0

    async def call() -> int:
        nonlocal made
        made += 1
        await asyncio.sleep(0)
        return made

    calls = SharedCalls(SystemClock(), tasks)
    assert await asyncio.gather(*(calls.get("a", call) for _ in range(50))) == [1] * 50
    assert await calls.get("a", call, fresh_ms=60_000) == 1
    assert await calls.get("b", call) == 2
    calls.forget()
    assert await calls.get("a", call) == 3
    assert await calls.get("now", call, fresh_ms=0) == 4
    assert await calls.get("now", call, fresh_ms=0) == 5
    await tasks.close()


async def test_a_slow_call_is_joined_however_long_it_takes() -> None:
    tasks, made, go_on = Tasks(), 0, asyncio.Event()

    async def call() -> int:
        nonlocal made
        made += 1
        await go_on.wait()
        return made

    calls = SharedCalls(SystemClock(), tasks)
    first = asyncio.create_task(calls.get("a", call, fresh_ms=0))
    await asyncio.sleep(0)
    second = asyncio.create_task(calls.get("a", call, fresh_ms=0))
    await asyncio.sleep(0)
    go_on.set()
    assert [await first, await second] == [1, 1]
    await tasks.close()


async def test_a_failure_is_raised_and_not_kept() -> None:
    tasks, answers = Tasks(), [NotConnected("a:1", "refused"), 7]

    async def call() -> int:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, int)
        return answer

    calls = SharedCalls(SystemClock(), tasks)
    with pytest.raises(NotConnected):
        await calls.get("a", call)
    assert await calls.get("a", call) == 7
    await tasks.close()


async def test_calls_and_results_are_bounded() -> None:
    tasks, running, most = Tasks(), 0, 0

    async def call() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    calls = SharedCalls(SystemClock(), tasks)
    await asyncio.gather(*(calls.get(key, call) for key in range(KEPT_MAX + 100)))
    assert most == CALLS_MAX
    assert len(calls._kept) <= KEPT_MAX
    await tasks.close()
