"""Texts at places of a buffer, compared in words."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.spark.decode.alike import all_equal, distinct, equal_to

TEXTS = st.lists(st.sampled_from([b"", b"a", b"ab", b"12345678", b"123456789", b"12345678X"]))


def placed(texts: list[bytes]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    raw = np.frombuffer(b"".join(texts) + bytes(8), np.uint8)
    lengths = np.array([len(text) for text in texts], np.int64)
    return raw, np.cumsum(lengths) - lengths, lengths


@given(TEXTS, st.sampled_from([b"", b"a", b"12345678", b"123456789"]))
def test_equal_to(texts: list[bytes], wanted: bytes) -> None:
    assert equal_to(*placed(texts), wanted).tolist() == [text == wanted for text in texts]


@given(TEXTS.filter(bool))
def test_all_equal(texts: list[bytes]) -> None:
    assert all_equal(*placed(texts)) == (len(set(texts)) == 1)


@pytest.mark.parametrize("values", [[], [7, 7, 7], [3, -1, 3, 2], list(range(32))])
def test_few_distinct_values(values: list[int]) -> None:
    found = distinct(np.array(values, np.int64))
    assert found is not None
    assert [found[0][at] for at in found[1]] == values
    assert len(set(found[0])) == len(found[0])


def test_many_distinct_values() -> None:
    assert distinct(np.arange(33)) is None
