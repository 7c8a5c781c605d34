"""A worker runs calls in order, in one thread, and passes on what they give or raise."""

import asyncio
import threading

import pytest

from cometmq.outbox.relay import Worker


async def test_calls_run_in_order_in_one_thread() -> None:
    worker = Worker("test")
    seen: list[tuple[int, int]] = []

    def note(number: int) -> int:
        seen.append((number, threading.get_ident()))
        return number * 2

    results = await asyncio.gather(*(worker.call(note, number) for number in range(20)))
    assert results == [number * 2 for number in range(20)]
    assert [number for number, _ in seen] == list(range(20))
    threads = {thread for _, thread in seen}
    assert len(threads) == 1
    assert threading.get_ident() not in threads
    worker.close()


async def test_errors_reach_the_caller() -> None:
    worker = Worker("test")
    with pytest.raises(ValueError, match="invalid literal"):
        await worker.call(int, "x")
    assert await worker.call(int, "7") == 7
    worker.close()
