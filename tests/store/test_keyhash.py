"""The hash of an index key is Java's of ``topic#key``, without its sign."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.speedups import java_hash
from cometmq.store.layout import index_hash, topic_prefix

pytestmark = pytest.mark.core


@given(st.sampled_from(["t", "topic-2", "标签"]), st.text(max_size=140))
def test_hash_is_that_of_topic_and_key(topic: str, key: str) -> None:
    assert 0 <= topic_prefix(topic) < 2**32
    whole = java_hash(f"{topic}#{key}")
    assert index_hash(topic_prefix(topic), key) == (0 if whole == -(2**31) else abs(whole))


def test_smallest_hash_is_zero() -> None:
    # The text's hash is the one value whose absolute value does not exist.
    assert java_hash("polygenelubricants") == -(2**31)
    assert index_hash(0, "polygenelubricants") == 0
