"""What a process is doing, as text."""

from __future__ import annotations

import asyncio

import pytest

from cometmq.client.consumer import running as module
from cometmq.client.consumer.running import stacks


async def wait_for_ever() -> None:
    await asyncio.Event().wait()


async def test_threads_and_tasks_stand_in_it() -> None:
    task = asyncio.create_task(wait_for_ever(), name="a waiting one")
    await asyncio.sleep(0)
    text = stacks()
    task.cancel()
    assert "thread MainThread\n" in text
    assert "test_threads_and_tasks_stand_in_it" in text
    named = text[text.index("task a waiting one\n") :]
    assert "wait_for_ever" in named


async def test_long_text_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CHARACTERS", 100)
    assert len(stacks()) == 105
