"""What is held of a queue, against a model: nothing is committed before everything under it is
settled, nothing is lost or handed out twice at a time. Messages are handed out in turns and within
bounds, and nobody waits for nothing."""

from __future__ import annotations

import asyncio
import logging

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cometmq.client.consumer import inflight as module
from cometmq.client.consumer.inflight import Dispatch, InFlight, Limits
from cometmq.core.clock import VirtualClock
from cometmq.message.model import MessageList, MessageQueue, StoredMessage

QUEUE = MessageQueue("t", "a", 0)


def message(offset: int, size_bytes: int = 100) -> StoredMessage:
    return StoredMessage(
        topic="t", queue_id=0, queue_offset=offset, physical_offset=offset, body=b"",
        properties={}, flag=0, sys_flag=0, born_ms=0, born_host=bytes(8), store_ms=0,
        store_host=bytes(8), reconsume_times=0, prepared_offset=0, size_bytes=size_bytes,
    )  # fmt: skip


def filled(*offsets: int, start: int = 0) -> InFlight:
    inflight = InFlight(QUEUE, start)
    inflight.add(MessageList([message(offset) for offset in offsets]), max(offsets) + 1)
    return inflight


def test_offsets_are_committed_up_to_the_oldest_that_is_not_settled() -> None:
    inflight = filled(5, 6, 7, start=5)
    taken = [inflight.take(0) for _ in range(3)]
    assert [each.queue_offset for each in taken if each] == [5, 6, 7]
    assert inflight.take(0) is None
    assert inflight.committable == 5
    for each, expected in ((taken[1], 5), (taken[0], 7), (taken[2], 8)):
        assert each is not None
        assert inflight.settle(each)
        assert inflight.committable == expected
    assert (inflight.count, inflight.size_bytes, inflight.span) == (0, 0, 0)


def test_messages_that_nobody_wants_move_the_offset() -> None:
    inflight = InFlight(QUEUE, 10)
    inflight.add(MessageList([]), 42)
    assert inflight.committable == 42
    inflight.add(MessageList([message(50)]), 60)
    assert inflight.committable == 50


def test_a_message_that_was_added_before_is_left_out() -> None:
    inflight = filled(0, 1)
    inflight.add(MessageList([message(1), message(2)]), 3)
    assert [each.queue_offset for each in iter(lambda: inflight.take(0), None)] == [0, 1, 2]


def test_the_next_pull_begins_after_the_messages_whatever_the_broker_says() -> None:
    inflight = InFlight(QUEUE, 0)
    inflight.add(MessageList([message(0), message(1), message(2)]), 1)
    assert inflight.next_offset == 3
    # The broker was asked for 1 before, and answers again.
    inflight.add(MessageList([message(1), message(2), message(3)]), 2)
    assert inflight.next_offset == 4
    taken = list(iter(lambda: inflight.take(0), None))
    assert [each.queue_offset for each in taken] == [0, 1, 2, 3]
    assert all(map(inflight.settle, taken))
    assert (inflight.count, inflight.size_bytes, inflight.committable) == (0, 0, 4)


def test_settling_twice_has_no_effect() -> None:
    inflight = filled(0)
    taken = inflight.take(0)
    assert taken is not None
    assert inflight.settle(taken)
    assert not inflight.settle(taken)
    assert not inflight.give_back(taken, failed=True)


def test_what_is_given_back_comes_first_and_counts_its_attempts() -> None:
    inflight = filled(0, 1, 2)
    first, second = inflight.take(0), inflight.take(0)
    assert first is not None
    assert second is not None
    assert inflight.give_back(second, failed=False)
    assert inflight.give_back(first, failed=True)
    again = [inflight.take(0) for _ in range(3)]
    assert [(each.queue_offset, each.reconsume_times) for each in again if each] == [
        (0, 1),
        (1, 0),
        (2, 0),
    ]
    assert inflight.committable == 0


def test_a_reset_forgets_and_late_settlements_do_no_harm() -> None:
    inflight = filled(0, 1, 2)
    taken = inflight.take(0)
    assert taken is not None
    inflight.reset(100)
    assert not inflight.settle(taken)
    assert not inflight.give_back(taken, failed=True)
    assert (inflight.committable, inflight.count, inflight.size_bytes) == (100, 0, 0)
    assert inflight.take(0) is None


def test_a_queue_that_ends_earlier_keeps_what_lies_before_its_end() -> None:
    inflight = filled(0, 1, 2, 3)
    taken = [inflight.take(0), inflight.take(0), inflight.take(0)]
    assert taken[1] is not None
    assert taken[2] is not None
    inflight.move(2)
    assert (inflight.next_offset, inflight.count, inflight.size_bytes) == (2, 2, 200)
    assert not inflight.settle(taken[2])
    assert inflight.take(0) is None
    assert inflight.settle(taken[1])
    assert inflight.committable == 0
    inflight.add(MessageList([message(2)]), 3)
    assert inflight.take(0) == message(2)
    assert inflight.taken_count == 2


def test_a_queue_that_begins_later_keeps_what_was_read() -> None:
    inflight = filled(0, 1)
    inflight.move(10)
    assert (inflight.committable, inflight.next_offset, inflight.count) == (0, 10, 2)


def test_each_limit_alone_makes_it_full() -> None:
    roomy = Limits(1000, 1 << 30, 10_000)
    inflight = filled(0, 1, 2000)
    assert not inflight.is_full(roomy)
    assert inflight.is_full(Limits(3, 1 << 30, 10_000))
    assert inflight.is_full(Limits(1000, 300, 10_000))
    assert inflight.is_full(Limits(1000, 1 << 30, 1999))
    assert not inflight.is_full(Limits(1000, 1 << 30, 2000))


def test_messages_that_are_held_too_long_are_found() -> None:
    inflight = filled(0, 1, 2)
    first = inflight.take(100)
    inflight.take(200)
    assert inflight.stuck(149, 50) == []
    assert inflight.stuck(150, 50) == [first]
    assert len(inflight.stuck(250, 50)) == 2


def test_it_can_be_read_in_a_log() -> None:
    assert repr(filled(3, 4)) == "<InFlight t-0 ready 2 taken 0 committable 3>"


class InFlightMachine(RuleBasedStateMachine):
    """Random pulls, hand-outs, settlements and returns, against sets."""

    def __init__(self) -> None:
        super().__init__()
        self.inflight = InFlight(QUEUE, 0)
        self.next_offset = 0
        self.ready: set[int] = set()
        self.taken: dict[int, StoredMessage] = {}
        self.last = 0

    @rule(gaps=st.lists(st.integers(0, 3), max_size=5), tail=st.integers(0, 3))
    def pull(self, gaps: list[int], tail: int) -> None:
        offset = self.next_offset
        found = []
        for gap in gaps:
            found.append(message(offset + gap))
            offset += gap + 1
        self.next_offset = offset + tail
        self.inflight.add(MessageList(found), self.next_offset)
        self.last = max([self.last, *[each.queue_offset for each in found]])
        self.ready |= {each.queue_offset for each in found}

    @precondition(lambda self: self.ready)
    @rule()
    def take(self) -> None:
        taken = self.inflight.take(0)
        assert taken is not None
        assert taken.queue_offset == min(self.ready)
        self.ready.remove(taken.queue_offset)
        self.taken[taken.queue_offset] = taken

    @precondition(lambda self: self.inflight.can_run)
    @rule(data=st.data())
    def run(self, data: st.DataObject) -> None:
        assert not self.taken
        batch, begin = self.inflight.run()
        offsets = [batch.offset_at(at) for at in range(begin, len(batch))]
        assert offsets == sorted(self.ready)[: len(offsets)]
        done = data.draw(st.integers(0, len(offsets)))
        self.inflight.finish_run(done, 0)
        self.ready -= set(offsets[:done])

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.taken)))
        assert self.inflight.settle(self.taken.pop(offset))

    @precondition(lambda self: self.taken)
    @rule(data=st.data(), failed=st.booleans())
    def give_back(self, data: st.DataObject, failed: bool) -> None:
        offset = data.draw(st.sampled_from(sorted(self.taken)))
        assert self.inflight.give_back(self.taken.pop(offset), failed=failed)
        self.ready.add(offset)

    @invariant()
    def agrees_with_the_model(self) -> None:
        held = self.ready | set(self.taken)
        assert self.inflight.count == len(held)
        assert self.inflight.ready_count == len(self.ready)
        assert self.inflight.taken_count == len(self.taken)
        assert self.inflight.size_bytes == 100 * len(held)
        assert self.inflight.committable == min(held, default=self.next_offset)
        assert self.inflight.span <= max(self.last - min(held), 0) if held else True
        if self.last in held:
            assert self.inflight.span == self.last - min(held)
        if not held:
            assert self.inflight.span == 0


TestInFlight = InFlightMachine.TestCase


def test_a_late_settlement_is_none_of_a_message_that_was_read_again() -> None:
    inflight = InFlight(QUEUE, 0)
    inflight.add(MessageList([message(0), message(1)]), 2)
    old = inflight.take(1)
    assert old is not None
    inflight.reset(0)
    inflight.add(MessageList([message(0), message(1)]), 2)
    assert not inflight.settle(old)
    new = inflight.take(2)
    assert new is not None
    assert not inflight.give_back(old, failed=True)
    assert not inflight.settle(old)
    assert (inflight.committable, inflight.taken_count) == (0, 1)
    assert inflight.settle(new)
    assert (inflight.committable, inflight.taken_count) == (1, 0)


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
