"""Background tasks: held, named, reported, and ended with their owner."""

from __future__ import annotations

import asyncio
import logging

import pytest

from cometmq.core.clock import VirtualClock
from cometmq.net.tasks import RESTART_MS, Tasks


async def test_a_failure_is_logged_under_its_name(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise ValueError("broken")

    tasks = Tasks()
    with caplog.at_level(logging.ERROR):
        task = tasks.spawn(fail(), name="fragile")
        with pytest.raises(ValueError, match="broken"):
            await task
    assert [record.getMessage() for record in caplog.records] == [
        "task failed name=fragile error=ValueError('broken')"
    ]
    assert len(tasks) == 0


async def test_close_cancels_and_awaits_all_also_those_started_meanwhile() -> None:
    tasks = Tasks()
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


async def test_a_task_may_close_its_own_owner() -> None:
    tasks = Tasks()

    async def stop() -> str:
        await tasks.close()
        return "stopped"

    assert await tasks.spawn(stop(), name="stop") == "stopped"


async def test_a_kept_task_starts_again_after_a_failure_until_it_ends() -> None:
    tasks, clock = Tasks(), VirtualClock()
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
