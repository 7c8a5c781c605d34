"""Properties of many messages by column, beside what is found in each message alone."""

from __future__ import annotations

import random

import pytest

from cometmq.filter.columns import column, join, texts_of
from cometmq.message.properties import find

TEXTS = [
    b"",
    b"a\x011",
    b"a\x011\x02b\x012",
    b"b\x012\x02a\x011",
    b"b\x012\x02a\x011\x02",
    b"a\x011\x02b\x012\x02a\x013",
    b"a\x011\x02a\x01",
    b"a\x01\x02b\x012",
    b"aa\x011\x02ba\x012",
    b"b\x01a\x011",
    b"a\x01b\x01c",
    b"a\x01\xff\x02b\x012",
    b"\x02\x02a\x011",
]


def values(name: bytes, texts: list[bytes]) -> list[bytes]:
    return column(name)(join(texts_of(texts)))


def alone(name: bytes, text: bytes) -> bytes:
    return (find(text, name) or b"").replace(b"\xff", b"\xfe")


@pytest.mark.parametrize("name", [b"a", b"b", b"ba", b"none"])
def test_each_message_s_value(name: bytes) -> None:
    assert values(name, TEXTS) == [alone(name, text) for text in TEXTS]


def test_batches_of_any_make() -> None:
    chance = random.Random(5)
    for _ in range(300):
        texts = chance.choices(TEXTS, k=chance.randrange(1, 6))
        assert values(b"a", texts) == [alone(b"a", text) for text in texts], texts


def test_one_name_twice_and_another_time_not_at_all() -> None:
    # As many values as messages, and yet not one of each.
    assert values(b"a", [b"a\x011\x02a\x012", b"b\x011"]) == [b"2", b""]


def test_properties_of_any_kind_are_texts() -> None:
    assert texts_of([memoryview(b"b\x011"), bytearray(b"\xff")]) == ["b\x011", "\xff"]
