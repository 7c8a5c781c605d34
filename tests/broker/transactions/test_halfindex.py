"""The index of open transactions and the trail of op messages, without a store."""

import pytest

from cometmq.broker.transactions.halfindex import (
    MAX_TRAIL,
    HalfIndex,
    OpTrail,
    checks_so_far,
    half_offsets_of,
    immunity_ms,
    prepared,
    real_place,
)
from cometmq.message.properties import decode_text, encode_text
from cometmq.speedups import Half


def half(stored_ms: int = 1_000) -> Half:
    return Half(100, "g", stored_ms, 6_000)


def test_what_is_due_comes_in_its_order_and_in_bounds() -> None:
    index = HalfIndex()
    for offset in range(5):
        index.add(offset, half(), due_ms=100 - offset)
    assert index.due(95, 10) == []
    assert [at for at, _ in index.due(98, 2)] == [4, 3]
    assert [at for at, _ in index.due(98, 2)] == [2]
    assert [at for at, _ in index.due(1_000, 10)] == [1, 0]
    assert index.due(1_000, 10) == []


def test_what_was_put_off_or_has_ended_is_not_due() -> None:
    index = HalfIndex()
    first, second = half(), half(2_000)
    index.add(0, first, 10)
    index.add(1, second, 10)
    index.put_off(0, first, 50)
    index.remove(1)
    assert index.due(20, 10) == []
    assert index.due(50, 10) == [(0, first)]
    assert index.get(1) is None


def test_the_low_offset_is_the_first_open_one() -> None:
    index = HalfIndex()
    assert index.low(7) == 7
    for offset in (3, 5, 6):
        index.add(offset, half(offset), 0)
    assert (index.low(7), index.low(2), len(index), index.oldest_ms()) == (3, 2, 3, 3)
    index.remove(5)
    assert index.low(7) == 3
    index.remove(3)
    assert (index.low(7), index.oldest_ms()) == (6, 6)
    assert [at for at, _ in index.below(7)] == [6]
    assert index.below(6) == []
    index.remove(6)
    assert (index.low(7), index.oldest_ms()) == (7, 0)


def test_timers_of_what_has_ended_do_not_pile_up() -> None:
    index = HalfIndex()
    kept = half()
    index.add(0, kept, 10)
    for offset in range(1, 5_000):
        index.add(offset, half(), 1_000_000)
        if offset % 2:
            assert index.due(9, 10) == []  # what is open here has a timer, and ends at once
        index.remove(offset)
    assert len(index._timers) < 2_000
    assert index.due(10, 10) == [(0, kept)]


def test_what_is_put_off_before_it_has_a_timer_is_due_once() -> None:
    index = HalfIndex()
    first = half()
    index.add(0, first, 10)
    index.put_off(0, first, 50)
    index.put_off(0, first, 40)
    assert index.due(39, 10) == []
    assert index.due(100, 10) == [(0, first)]
    assert index.due(100, 10) == []


def test_the_trail_stays_before_what_names_a_half_message_beyond() -> None:
    trail = OpTrail(10, 10)
    for op_offset, half_offset in ((10, 3), (11, 7), (12, 2)):
        trail.stored(op_offset, half_offset)
    assert trail.advance(3) == 10
    assert trail.advance(7) == 11
    assert trail.advance(8) == 13
    assert (trail.known_end, trail.applied) == (13, 13)


def test_an_op_message_that_is_heard_of_early_waits_for_those_before() -> None:
    trail = OpTrail(0, 0)
    trail.stored(1, 5)
    assert (trail.applied, trail.known_end) == (0, 0)
    trail.stored(0, 4)
    assert (trail.applied, trail.known_end) == (2, 1)
    trail.remember(1, [5])
    assert trail.advance(9) == 2


def test_the_trail_is_bounded_and_filled_again() -> None:
    trail = OpTrail(0, 0)
    for offset in range(MAX_TRAIL + 2):
        trail.stored(offset, offset)
    assert trail.known_end == MAX_TRAIL
    assert trail.advance(5) == 5
    trail.remember(MAX_TRAIL, [MAX_TRAIL - 1, MAX_TRAIL])
    trail.remember(MAX_TRAIL + 1, [])
    assert trail.advance(MAX_TRAIL + 1) == MAX_TRAIL + 2


def test_a_prepared_message_knows_its_place_and_has_no_delay() -> None:
    sent = {"MYDELAY": "b", "DELAY": "4", "REAL_TOPIC": "other", "REAL_QID": "7", "z": "REAL_QID"}
    waiting = prepared(encode_text(sent), "t", 3)
    kept = {"MYDELAY": "b", "z": "REAL_QID", "REAL_TOPIC": "t", "REAL_QID": "3"}
    assert waiting == encode_text(kept)
    assert real_place(decode_text(waiting)) == ("t", 3)
    assert prepared("", "t", 3) == encode_text({"REAL_TOPIC": "t", "REAL_QID": "3"})


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"REAL_TOPIC": "RMQ_SYS_TRANS_HALF_TOPIC"},
        {"REAL_TOPIC": "t", "REAL_QID": "-1"},
        {"REAL_TOPIC": "t", "REAL_QID": "9" * 12},
    ],
)
def test_a_half_message_without_a_place(properties: dict[str, str]) -> None:
    assert real_place(properties) is None


@pytest.mark.parametrize(
    ("text", "expected_ms"), [("0", 0), ("30", 30_000), ("-1", 6_000), ("x", 6_000), ("", 6_000)]
)
def test_immunity_is_read_in_seconds(text: str, expected_ms: int) -> None:
    assert immunity_ms({"CHECK_IMMUNITY_TIME_IN_SECONDS": text}, 6_000) == expected_ms


def test_checks_that_a_java_broker_counted() -> None:
    assert checks_so_far({"TRANSACTION_CHECK_TIMES": "4"}) == 4
    assert checks_so_far({"TRANSACTION_CHECK_TIMES": "?"}) == checks_so_far({}) == 0


def test_op_messages_of_all_releases() -> None:
    assert half_offsets_of(b"17") == [17]
    assert half_offsets_of(b"12,13,") == [12, 13]
    assert half_offsets_of(b"x," + b"9" * 30) == []
