"""Index entries by the column: hashes and chains are those of the plain way."""

from array import array

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cometmq.filter.tags import java_hash
from cometmq.store.columns import chained, hash_keys, point_slots, repeated, restore_slots, used
from cometmq.store.index import index_hash, topic_prefix

keys = st.one_of(st.text("abcXYZ019", min_size=1, max_size=300), st.text(min_size=1, max_size=9))


@given(
    st.lists(st.tuples(st.sampled_from(["t", "topic-2", "标签"]), keys), min_size=1, max_size=30)
)
def test_hashes_at_once_are_those_of_each(rows: list[tuple[str, str]]) -> None:
    prefixes = [topic_prefix(topic) for topic, _ in rows]
    found = hash_keys(prefixes, [1] * len(rows), [key for _, key in rows])
    whole = [java_hash(f"{topic}#{key}") for topic, key in rows]
    assert found.tolist() == [0 if value == -(2**31) else abs(value) for value in whole]
    assert found.tolist() == [
        index_hash(prefix, key) for prefix, (_, key) in zip(prefixes, rows, strict=True)
    ]


@given(st.lists(st.text("abc019", min_size=32, max_size=32), min_size=1, max_size=30))
def test_hashes_of_keys_of_one_length(many: list[str]) -> None:
    found = hash_keys([topic_prefix("t")], [len(many)], many)
    assert found.tolist() == [index_hash(topic_prefix("t"), key) for key in many]


def test_smallest_hash_is_zero() -> None:
    # The text's hash is the one value whose absolute value does not exist.
    assert java_hash("polygenelubricants") == -(2**31)
    assert hash_keys([0], [9], ["polygenelubricants"] * 9).tolist() == [0] * 9
    assert index_hash(0, "polygenelubricants") == 0


def test_a_value_for_each_key_of_a_row() -> None:
    assert repeated((7, 8, 9), [2, 0, 1]).tolist() == [7, 7, 9]


def test_slots_come_back_from_the_entries() -> None:
    slots = memoryview(array("i", [0] * 7))
    hashes, phys, times = (
        np.array(values, np.int64) for values in ([8, 1, 2], [100, 200, 300], [0, 2_900, 9])
    )
    found = chained(slots, 1, hashes, phys, times, 0)
    assert (found.places.tolist(), found.fresh, used(slots)) == ([1, 1, 2], 2, 0)
    point_slots(slots, 1, found.places)
    again = memoryview(array("i", [0] * 7))
    assert restore_slots(again, 1, found.raw) == (300, 0)
    assert again.tolist() == slots.tolist() == [0, 2, 3, 0, 0, 0, 0]
    assert used(again) == 2
