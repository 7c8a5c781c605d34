"""How much of new filter expressions may be parsed."""

from cometmq.broker.pull.newtexts import (
    ALL_AT_ONCE,
    ALL_PER_SECOND,
    SENDER_AT_ONCE,
    SENDER_PER_SECOND,
    NewTexts,
)
from cometmq.filter.sqltext import MAX_CHARS, MAX_WORDS
from cometmq.net.peer import Peer
from tests.broker.world import connect

LONGEST = " AND ".join(["a"] * (MAX_WORDS // 2))


def test_the_longest_expression_of_a_sender_has_room() -> None:
    for text in (LONGEST, "a" * MAX_CHARS, "/**/" * (MAX_CHARS // 4), "'" * MAX_CHARS):
        assert NewTexts(0).take(text, 0, connect())


def test_one_sender_leaves_room_for_others() -> None:
    texts, greedy, modest = NewTexts(0), connect(), connect()
    assert texts.take(LONGEST, 0, greedy)
    assert not texts.take(LONGEST, 0, greedy)
    assert not texts.take("a = 1", 0, greedy)
    assert texts.take("a = 1", 0, modest)
    assert texts.take("a = 1", 10, greedy)
    assert texts.take(LONGEST, 10 + 1_000 * SENDER_AT_ONCE // SENDER_PER_SECOND, greedy)


def test_all_senders_together_leave_time_for_other_requests() -> None:
    texts, senders = NewTexts(0), [connect(number) for number in range(100)]
    taken = sum(texts.take(LONGEST, 0, sender) for sender in senders)
    assert taken == ALL_AT_ONCE // MAX_WORDS
    assert not texts.take("a = 1", 0), "heartbeats count with them"
    taken = sum(
        texts.take(LONGEST, now_ms, sender)
        for now_ms in range(1_000, 11_000, 100)
        for sender in senders
    )
    assert taken * MAX_WORDS <= 11 * ALL_PER_SECOND


def test_a_sender_that_is_gone_is_forgotten() -> None:
    texts = NewTexts(0)
    sender: Peer | None = connect()
    assert sender is not None
    assert texts.take("a = 1", 0, sender)
    assert len(texts._of_senders) == 1
    sender = None
    assert len(texts._of_senders) == 0
