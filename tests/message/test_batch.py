"""The body of a batch send."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.message import batch
from cometmq.message.record import BadRecord

entries = st.lists(st.tuples(st.integers(-9, 9), st.binary(max_size=40), st.binary(max_size=40)))


@given(entries)
def test_round_trip(many: list[tuple[int, bytes, bytes]]) -> None:
    assert batch.split(batch.pack(many)) == many


@given(entries, st.integers(0, 6))
def test_many_messages_are_noticed_without_reading_them(
    many: list[tuple[int, bytes, bytes]], count: int
) -> None:
    assert batch.has_more_than(batch.pack(many), count) == (len(many) > count)


def test_what_is_no_batch_may_hold_many() -> None:
    assert batch.has_more_than(bytes(100), 3)
    assert not batch.has_more_than(bytes(100), 5)


@given(entries.filter(bool), st.data())
def test_cut_batches_are_refused(many: list[tuple[int, bytes, bytes]], data: st.DataObject) -> None:
    raw = batch.pack(many)
    edges = {len(batch.pack(many[:count])) for count in range(len(many) + 1)}
    cut = data.draw(st.integers(0, len(raw)).filter(lambda at: at not in edges))
    with pytest.raises(BadRecord):
        batch.split(raw[:cut])


@given(st.binary(max_size=100))
def test_garbage_never_does_more_than_raise(raw: bytes) -> None:
    with contextlib.suppress(BadRecord):
        assert batch.pack(batch.split(raw)) == raw or any(raw[4:12])


@pytest.mark.parametrize(
    "head",
    [
        (0, 0, 0, 0, 0),
        (-1, 0, 0, 0, 0),
        (22, 0, 0, 0, -1),
        (22, 0, 0, 0, 1),
        (2**31 - 1, 0, 0, 0, 0),
        (23, 0, 0, 0, 0),
    ],
)
def test_contradicting_lengths(head: tuple[int, ...]) -> None:
    raw = b"".join(part.to_bytes(4, "big", signed=True) for part in head) + bytes(3)
    with pytest.raises(BadRecord):
        batch.split(raw)


def test_properties_that_are_too_long() -> None:
    with pytest.raises(ValueError, match="32768 bytes"):
        batch.pack([(0, b"", bytes(32_768))])
