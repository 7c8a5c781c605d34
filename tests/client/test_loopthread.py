"""A loop in a thread: results, errors and interrupts cross over."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from cometmq.client.blocking import LoopThread


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    running = LoopThread()
    yield running
    running.close()


def test_coroutines_and_functions_run_there(thread: LoopThread) -> None:
    async def where() -> str:
        await asyncio.sleep(0)
        return threading.current_thread().name

    assert thread.wait(where()) == "cometmq client"
    assert thread.call(lambda: threading.current_thread().name) == "cometmq client"
    with pytest.raises(ZeroDivisionError):
        thread.call(lambda: 1 // 0)


def test_who_stops_waiting_cancels_the_work(
    thread: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled = threading.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    def interrupt(self: object) -> None:
        thread.call(lambda: None)  # by now the work has begun
        raise KeyboardInterrupt

    begin = asyncio.run_coroutine_threadsafe

    def begin_interrupted(*args: object) -> object:
        future: Any = begin(*args)  # type: ignore[arg-type]
        monkeypatch.undo()
        monkeypatch.setattr(future, "result", lambda: interrupt(future))
        return future

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", begin_interrupted)
    with pytest.raises(KeyboardInterrupt):
        thread.wait(work())
    assert cancelled.wait(10)
