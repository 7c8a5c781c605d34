"""What does not belong into a stored message's properties."""

import pytest

from cometmq.broker.send.admission import has_own_ids, may_wait, without_id, without_wait
from cometmq.message import batch


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("", ""),
        ("a\x01b", "a\x01b"),
        ("a\x01b\x02", "a\x01b"),
        ("a\x01b\x02WAIT\x01true", "a\x01b"),
        ("WAIT\x01true\x02a\x01b", "a\x01b"),
        ("WAIT\x01true", ""),
        ("WAIT\x01false\x02a\x01b", "WAIT\x01false\x02a\x01b"),
        ("a\x01b\x02WAIT\x01true\x02c\x01d", "a\x01b\x02c\x01d"),
        ("a\x01b\x02WAIT\x01true\x02WAIT\x01true\x02c\x01d", "a\x01b\x02c\x01d"),
        ("aWAIT\x01true\x02c\x01d", "aWAIT\x01true\x02c\x01d"),
    ],
)
def test_a_wait_that_is_over_goes(text: str, left: str) -> None:
    assert without_wait(text) == left


@pytest.mark.parametrize(
    ("text", "waits"),
    [
        ("", True),
        ("WAIT\x01false", False),
        ("WAIT\x01false\x02a\x01b\x02WAIT\x01true", True),
        ("WAIT\x01true\x02WAIT\x01false", False),
    ],
)
def test_the_last_word_on_waiting_counts(text: str, waits: bool) -> None:
    assert may_wait(text) == waits


def test_an_id_of_the_whole_batch_goes() -> None:
    assert without_id("a\x01b\x02UNIQ_KEY\x01K\x02c\x01d") == "a\x01b\x02c\x01d"
    assert without_id("a\x01b") == "a\x01b"


def test_the_first_message_tells_whether_there_are_ids() -> None:
    assert has_own_ids(batch.pack([(0, b"x", b"UNIQ_KEY\x01K"), (0, b"y", b"")]))
    assert not has_own_ids(batch.pack([(0, b"x", b"a\x01b"), (0, b"y", b"UNIQ_KEY\x01K")]))
