"""Property texts that all have the same names in the same order: the common case, by the column.

The texts stand one behind another, each led by a byte 3, so the places of the bytes 1, 2 and 3 form
a table with a row a text. Where all rows of that table have the same marks and the same names, the
values are its columns, and nothing is looked at one by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cometmq.spark.decode.alike import WORD_BYTES, equal_to
from cometmq.spark.decode.gather import pick

if TYPE_CHECKING:
    from cometmq.message.walk import Bytes, Ints

_LEAD: Final = 3


class UniformColumns:
    """The properties of texts with the names ``names``; ``edges`` are where each value begins and
    ends, row by row."""

    def __init__(self, names: tuple[str, ...], buffer: pa.Buffer, edges: Ints, rows: int) -> None:
        self._names = names
        self._buffer = buffer
        self._edges: npt.NDArray[np.int32] = edges.astype(np.int32).ravel()
        self._rows = rows

    def named(self, name: str) -> pa.Array:
        """The value under ``name`` of every row, null where there is none."""
        if name not in self._names:
            return pa.nulls(self._rows, pa.string())
        first = 2 * self._names.index(name)
        return pick(pa.string(), self._buffer, self._edges, first, 2 * len(self._names))

    def maps(self) -> pa.Array:
        """All properties of every row as a map."""
        count = len(self._names)
        values = pick(pa.string(), self._buffer, self._edges, 0, 2)
        offsets = np.arange(0, self._rows * count + 1, count, dtype=np.int32)
        return pa.MapArray.from_arrays(pa.array(offsets), self._keys(), values)

    def _keys(self) -> pa.Array:
        """The names, once for every row."""
        raw = [name.encode() for name in self._names]
        lengths = np.tile(np.array([len(name) for name in raw], np.int32), self._rows)
        offsets = np.zeros(len(lengths) + 1, np.int32)
        np.cumsum(lengths, out=offsets[1:])
        text = np.tile(np.frombuffer(b"".join(raw), np.uint8), self._rows)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text)]
        return pa.Array.from_buffers(pa.string(), len(lengths), buffers)


def read_uniform(texts: Bytes, borders: Ints, marks: Bytes, heads: Ints) -> UniformColumns | None:
    """The properties of valid UTF-8 texts whose marks stand at ``borders``; None when they differ.

    ``heads`` are where the leads stand. WORD_BYTES follow the last text.
    """
    rows = len(heads)
    width, rest = divmod(len(borders), rows)
    if rest or width < 2:
        return None
    table = borders.reshape(rows, width)
    pairs = width // 2
    pattern = bytes(marks[:width])
    expected = bytes([_LEAD, *([1, 2] * pairs)])[:width]
    if pattern != expected or not (marks.reshape(rows, width) == marks[:width]).all():
        return None
    if not (table[:, 0] == heads).all():
        return None
    stops = np.empty((rows, 1), np.int64)
    stops[:-1, 0] = heads[1:]
    stops[-1, 0] = len(texts) - WORD_BYTES
    if width % 2:
        # A separator closes each text: nothing may follow it.
        if not (table[:, -1:] + 1 == stops).all():
            return None
    else:
        table = np.concatenate((table, stops), axis=1)
    return _cut(texts, table, pairs)


def _cut(texts: Bytes, table: Ints, pairs: int) -> UniformColumns | None:
    """``table`` has a lead, then by pair its middle and its end."""
    names: list[bytes] = []
    for pair in range(pairs):
        starts, lengths = table[:, 2 * pair] + 1, table[:, 2 * pair + 1] - table[:, 2 * pair] - 1
        first = bytes(texts[starts[0] : starts[0] + lengths[0]])
        if not first or first in names or not equal_to(texts, starts, lengths, first).all():
            return None
        names.append(first)
    edges = table[:, 1:].copy()
    edges[:, 0::2] += 1
    if not (edges[:, 0::2] < edges[:, 1::2]).all():
        return None
    return UniformColumns(
        tuple(name.decode() for name in names), pa.py_buffer(texts), edges, len(table)
    )
