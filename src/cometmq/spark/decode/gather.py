"""Copies stretches of a buffer into Arrow arrays: one copy in C for all rows, none in Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

if TYPE_CHECKING:
    from cometmq.message.walk import Ints


def slices(data: bytes | memoryview, starts: Ints, ends: Ints) -> pa.Array:
    """``data[start:end]`` of every row as a binary array; the stretches ascend."""
    borders = np.empty(len(starts) * 2, np.int32)
    borders[0::2] = starts
    borders[1::2] = ends
    return pick(pa.binary(), pa.py_buffer(data), borders, 0, 2)


def pick(
    kind: pa.DataType, data: pa.Buffer, borders: npt.NDArray[np.int32], first: int, step: int
) -> pa.Array:
    """Every ``step``-th of the stretches between ascending borders, from the ``first`` on.

    ``kind`` is binary, or string when the bytes are known to be UTF-8.
    """
    if not len(borders):
        return pa.array([], kind)
    count = len(borders) - 1
    stretches = pa.Array.from_buffers(kind, count, [None, pa.py_buffer(borders), data])
    return stretches.take(pa.array(np.arange(first, count, step)))


def text(raw: pa.Array) -> pa.Array:
    """Bytes as text; broken UTF-8 becomes U+FFFD, as in Java."""
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([value.decode("utf-8", "replace") for value in raw.to_pylist()])
