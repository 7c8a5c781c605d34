"""A loop in a thread: results, errors and interrupts cross over."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from cometmq.client.blocking import LoopThread
from cometmq.core.errors import NotOpen


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


def test_its_end_is_told_to_those_that_wait() -> None:
    thread = LoopThread()
    begun = threading.Event()
    told: list[BaseException] = []

    async def work() -> None:
        begun.set()
        await asyncio.Event().wait()

    def wait() -> None:
        try:
            thread.wait(work())
        except NotOpen as error:
            told.append(error)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    assert begun.wait(10)
    thread.close()
    waiting.join(10)
    assert [str(each) for each in told] == ["the client was closed before this call ended"]


def test_a_closed_one_takes_no_calls() -> None:
    thread = LoopThread()
    thread.close()
    thread.close()
    with pytest.raises(NotOpen, match="closed"):
        thread.wait(asyncio.sleep(0))
    with pytest.raises(NotOpen, match="closed"):
        thread.call(lambda: None)
    with pytest.raises(NotOpen, match="closed"):
        thread.soon(lambda: None)


def test_it_does_not_wait_for_itself(thread: LoopThread) -> None:
    with pytest.raises(NotOpen, match="hand the call to another thread"):
        thread.call(lambda: thread.call(lambda: None))


def _call_in_child(thread: LoopThread) -> None:
    try:
        thread.call(lambda: None)
    except NotOpen:
        os._exit(7)


# Python 3.12 warns of what the test is about.
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_process_is_told(thread: LoopThread) -> None:
    child = multiprocessing.get_context("fork").Process(
        target=_call_in_child, args=(thread,), daemon=True
    )
    child.start()
    child.join(10)
    if child.exitcode is None:
        child.kill()
        child.join()
    assert child.exitcode == 7
