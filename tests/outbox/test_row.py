"""A row is the message that was put into it; its id lasts; a page is cut at its bounds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.core.errors import MessageIllegal
from cometmq.message.model import Message
from cometmq.outbox.row import Row, WantedRows, fitting, headers_of

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)

MESSAGES = st.builds(
    Message,
    topic=st.sampled_from(["t", "u"]),
    body=st.binary(max_size=20),
    tag=TEXT,
    keys=st.lists(TEXT, max_size=3).map(tuple),
    delay_level=st.integers(0, 18),
    deliver_at_ms=st.sampled_from([0, 1_800_000_000_000]),
    born_ms=st.sampled_from([0, 1_357_035_420_000]),
    wait_store=st.booleans(),
    properties=st.dictionaries(TEXT, TEXT, max_size=3),
)


def row(message: Message, row_id: int = 1, created_ms: int = 1_700_000_000_000) -> Row:
    return Row(row_id, message.topic, None, headers_of(message), message.body, created_ms)


@given(MESSAGES)
def test_a_row_is_the_message_that_was_put_into_it(message: Message) -> None:
    found = row(message).message()
    assert msgspec.structs.replace(found, message_id="") == message
    assert found.message_id == row(message).message_id


def test_plain_messages_have_no_headers() -> None:
    assert headers_of(Message("t", b"x")) == "{}"


@pytest.mark.parametrize(
    ("headers", "problem"),
    [
        ("{", "invalid headers"),
        ('{"tga": "x"}', r"\['tga'\]"),
        ('{"topic": "other"}', r"\['topic'\]"),
        ('{"keys": "k"}', "invalid headers: Expected `array`"),
    ],
)
def test_headers_that_are_none_are_refused(headers: str, problem: str) -> None:
    with pytest.raises(MessageIllegal, match=problem):
        Row(1, "t", None, headers, b"", 0).message()


def test_ids_last_and_differ() -> None:
    first = row(Message("t", b"x"))
    assert first.message_id == row(Message("t", b"x")).message_id
    others = [
        row(Message("t", b"x"), row_id=2),
        row(Message("t", b"x"), created_ms=1_700_000_000_001),
        row(Message("t", b"y")),
    ]
    assert len({each.message_id for each in (first, *others)}) == 4


WANTED = WantedRows(rows=100, page_bytes=10, largest_bytes=8)


def test_a_page_ends_after_the_row_that_fills_it() -> None:
    waiting = [(at, "t", None, 4) for at in range(1, 9)]
    assert fitting(waiting, WANTED) == ([1, 2, 3], {})


def test_what_is_too_large_is_refused_unread_and_holds_its_key() -> None:
    waiting = [
        (1, "t", "a", 9),
        (2, "t", "a", 1),
        (3, "t", "b", 1),
        (4, "u", "a", 1),
        (5, "t", None, 9),
        (6, "t", None, 1),
    ]
    ids, refused = fitting(waiting, WANTED)
    assert ids == [3, 4, 6]
    assert refused == {at: "the body has 9 bytes; the limit is 8" for at in (1, 5)}
    ids, _ = fitting(waiting, replace(WANTED, hold_keys=False))
    assert ids == [2, 3, 4, 6]


@pytest.mark.parametrize(
    "broken",
    [
        {"created_ms": 1_700_000_000_000_000_000},
        {"created_ms": -(1 << 62)},
        {"created_ms": "now"},
        {"created_ms": 1.5},
        {"body": "text"},
        {"body": 5},
        {"order_key": b"k"},
        {"topic": b"t"},
    ],
)
def test_columns_with_impossible_values_are_refused(broken: dict[str, Any]) -> None:
    columns = {
        **{"id": 1, "topic": "t", "order_key": None, "headers": "{}"},
        **{"body": b"", "created_ms": 0},
    }
    with pytest.raises(MessageIllegal):
        Row(**{**columns, **broken}).message()
