"""What is held of a queue, against a model: nothing is committed before everything under it is
settled, nothing is lost or handed out twice at a time."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cometmq.client.consumer.inflight import InFlight, Limits
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
