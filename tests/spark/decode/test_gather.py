"""Stretches of a buffer into arrays."""

import numpy as np
import pyarrow as pa

from cometmq.spark.decode.gather import pick, slices, text


def test_slices() -> None:
    data = b"0123456789"
    found = slices(data, np.array([0, 3, 3, 8]), np.array([2, 3, 7, 10]))
    assert found.to_pylist() == [b"01", b"", b"3456", b"89"]
    assert slices(data, np.array([], np.int64), np.array([], np.int64)).to_pylist() == []


def test_pick_every_third() -> None:
    borders = np.arange(0, 8, dtype=np.int32)
    found = pick(pa.string(), pa.py_buffer(b"abcdefg"), borders, 1, 3)
    assert found.to_pylist() == ["b", "e"]


def test_broken_text_is_replaced_as_in_java() -> None:
    assert text(pa.array([b"a", b"\xff"])).to_pylist() == ["a", "�"]
