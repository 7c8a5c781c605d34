"""Hashes of index keys: many at once are those of each alone, which are Java's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.filter.tags import java_hash
from cometmq.store.keyhash import index_hash, index_hashes, topic_prefix

keys = st.one_of(
    st.text("abcXYZ019\0\x7f", max_size=140),
    st.text("abc", min_size=32, max_size=32),
    st.text(max_size=9),
)
rows = st.tuples(st.sampled_from(["t", "topic-2", "标签"]), keys)


@given(st.one_of(st.lists(rows, max_size=40), st.lists(rows, min_size=60, max_size=160)))
def test_hashes_at_once_are_those_of_each(many: list[tuple[str, str]]) -> None:
    prefixes = [topic_prefix(topic) for topic, _ in many]
    found = index_hashes(prefixes, [key for _, key in many])
    whole = [java_hash(f"{topic}#{key}") for topic, key in many]
    assert found == [0 if value == -(2**31) else abs(value) for value in whole]
    assert found == [
        index_hash(prefix, key) for prefix, (_, key) in zip(prefixes, many, strict=True)
    ]


@pytest.mark.parametrize("width", [32, 33, 128, 129])
@pytest.mark.parametrize("count", [1, 8, 9, 24, 25, 64, 65, 200])
def test_counts_and_lengths_on_the_border(count: int, width: int) -> None:
    many = [f"{number:0{width}d}" for number in range(count)]
    prefix, other = map(topic_prefix, "tu")
    assert index_hashes([prefix] * count, many) == [index_hash(prefix, key) for key in many]
    mixed = [other, *[prefix] * (count - 1)]
    assert index_hashes(mixed, many) == list(map(index_hash, mixed, many))


def test_smallest_hash_is_zero() -> None:
    # The text's hash is the one value whose absolute value does not exist.
    assert java_hash("polygenelubricants") == -(2**31)
    assert index_hashes([0] * 9, ["polygenelubricants"] * 9) == [0] * 9
    assert index_hash(0, "polygenelubricants") == 0
