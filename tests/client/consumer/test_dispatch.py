"""Messages are handed out in turns and within bounds, and nobody waits for nothing."""

from __future__ import annotations

import asyncio
import logging

import pytest

from cometmq.client.consumer import dispatch as module
from cometmq.client.consumer.dispatch import Dispatch
from cometmq.client.consumer.inflight import InFlight
from cometmq.core.clock import VirtualClock
from cometmq.message.model import MessageList, MessageQueue, StoredMessage
from tests.client.consumer.test_inflight import message


def queue(number: int, count: int) -> InFlight:
    inflight = InFlight(MessageQueue("t", "a", number), 0)
    inflight.add(MessageList([message(offset) for offset in range(count)]), count)
    return inflight


def dispatch(concurrency: int = 100, per_queue: int = 100) -> Dispatch:
    return Dispatch(VirtualClock(), concurrency=concurrency, per_queue=per_queue)


async def take(given: Dispatch) -> tuple[int, int]:
    taken = await asyncio.wait_for(given.take(), 5)
    assert taken is not None
    return taken[0].queue.queue_id, taken[1].queue_offset


async def test_queues_take_turns() -> None:
    given = dispatch()
    for inflight in (queue(0, 3), queue(1, 2), queue(2, 1)):
        given.offer(inflight)
        given.offer(inflight)
    order = [await take(given) for _ in range(6)]
    assert order == [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (0, 2)]
    assert given.handed_out == 6


async def test_no_more_than_the_concurrency_are_out() -> None:
    given = dispatch(concurrency=2)
    inflight = queue(0, 3)
    given.offer(inflight)
    first = await given.take()
    await take(given)
    third = asyncio.create_task(given.take())
    await asyncio.sleep(0)
    assert not third.done()
    assert first is not None
    inflight.settle(first[1])
    given.release(inflight)
    assert await asyncio.wait_for(third, 5) is not None


async def test_one_message_of_a_queue_at_a_time_when_order_matters() -> None:
    given = dispatch(per_queue=1)
    one, two = queue(0, 2), queue(1, 1)
    given.offer(one)
    given.offer(two)
    first = await given.take()
    assert await take(given) == (1, 0)
    waiting = asyncio.create_task(take(given))
    given.offer(one)
    await asyncio.sleep(0)
    assert not waiting.done()
    assert first is not None
    one.settle(first[1])
    given.release(one)
    assert await waiting == (0, 1)


async def test_a_queue_that_may_not_be_given_waits() -> None:
    allowed: set[int] = set()
    given = Dispatch(
        VirtualClock(),
        concurrency=9,
        per_queue=9,
        may_give=lambda inflight: inflight.queue.queue_id in allowed,
    )
    held, free = queue(0, 1), queue(1, 1)
    allowed.add(1)
    given.offer(held)
    given.offer(free)
    assert await take(given) == (1, 0)
    allowed.add(0)
    given.offer(held)
    assert await take(given) == (0, 0)


async def test_a_dropped_queue_gives_nothing() -> None:
    given = dispatch()
    dropped = queue(0, 2)
    given.offer(dropped)
    dropped.dropped = True
    given.offer(queue(1, 1))
    assert await take(given) == (1, 0)


async def test_everybody_who_waits_is_served() -> None:
    given = dispatch()
    waiting = [asyncio.create_task(take(given)) for _ in range(5)]
    await asyncio.sleep(0)
    given.offer(queue(0, 5))
    assert sorted(await asyncio.gather(*waiting)) == [(0, at) for at in range(5)]


async def test_who_gives_up_waiting_wakes_the_next() -> None:
    given = dispatch()
    first, second = asyncio.create_task(given.take()), asyncio.create_task(take(given))
    await asyncio.sleep(0)
    given.offer(queue(0, 1))  # wakes the first, which is cancelled before it runs
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert await second == (0, 0)


async def test_closing_ends_all_waits() -> None:
    given = dispatch()
    waiting = [asyncio.create_task(given.take()) for _ in range(3)]
    await asyncio.sleep(0)
    given.close()
    assert await asyncio.gather(*waiting) == [None] * 3
    given.offer(queue(0, 1))
    assert await given.take() is None


async def test_messages_that_are_never_settled_are_hinted_at(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_HINT_AFTER_S", 0.01)
    given = dispatch(concurrency=1)
    inflight = queue(0, 2)
    given.offer(inflight)
    first = await given.take()
    with caplog.at_level(logging.WARNING):
        second = asyncio.create_task(take(given))
        while "messages_not_acknowledged" not in caplog.text:
            await asyncio.sleep(0.005)
    assert first is not None
    inflight.settle(first[1])
    given.release(inflight)
    assert await second == (0, 1)


async def test_a_queue_that_is_read_anew_waits_for_the_message_that_is_out() -> None:
    given = dispatch(per_queue=1)
    inflight = queue(0, 3)
    given.offer(inflight)
    assert await take(given) == (0, 0)
    inflight.reset(0)
    inflight.add(MessageList([message(offset) for offset in range(3)]), 3)
    given.offer(inflight)
    assert given.take_now() is None
    assert given.is_out(inflight)
    given.release(inflight)
    assert not given.is_out(inflight)
    assert await take(given) == (0, 0)


class Counting(Dispatch):
    looks = 0

    def take_now(self) -> tuple[InFlight, StoredMessage] | None:
        self.looks += 1
        return super().take_now()


@pytest.mark.parametrize("per_queue", [1, 100])
async def test_nobody_is_woken_for_nothing(per_queue: int) -> None:
    given = Counting(VirtualClock(), concurrency=100, per_queue=per_queue)
    waiting = [asyncio.create_task(given.take()) for _ in range(3)]
    await asyncio.sleep(0)
    given.looks = 0
    inflight = queue(0, 1)
    given.offer(inflight)
    given.offer(queue(1, 0))
    (done,), waiting_still = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    taken = done.result()
    assert taken is not None
    inflight.settle(taken[1])
    given.release(inflight)
    for _ in range(3):
        await asyncio.sleep(0)
    assert given.looks == 1
    given.close()
    await asyncio.wait(waiting_still)
