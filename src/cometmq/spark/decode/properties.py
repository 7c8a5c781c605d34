"""Property texts of many records at once (their grammar: message/properties.py).

The texts are copied one behind another, each led by one byte 3. In a regular block the bytes 1, 2
and 3 then are the borders of all names and values: every text reads 3 (name 1 value 2)* name 1
value, with or without a 2 at its end. Whatever else turns up (an empty name or value, a name twice
in one record, control bytes inside a value, broken UTF-8) sends the block through the plain parser.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cometmq.message.properties import decode
from cometmq.spark.decode.gather import pick, slices

Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_LEAD: Final = 3
_NAMES_MAX: Final = 62
"""Different names in a block that fit the bits of an int64."""


class PropertyColumns:
    """The properties of ``len(counts)`` rows: ``names`` and ``values`` lie flat, row by row."""

    def __init__(self, names: pa.Array, values: pa.Array, counts: Int64s) -> None:
        self._values = values
        self._names = names.dictionary_encode()
        self._counts = counts

    @property
    def unambiguous(self) -> bool:
        """Whether no row has a name twice."""
        codes = self._names.indices.to_numpy().astype(np.int64)
        if not len(codes):
            return True
        if len(self._names.dictionary) > _NAMES_MAX:
            pairs = self._rows() * len(self._names.dictionary) + codes
            return len(np.unique(pairs)) == len(pairs)
        # One bit a name: the sum of a row's bits is their union unless one comes twice.
        bits = np.left_shift(1, codes)
        starts = (np.cumsum(self._counts) - self._counts)[self._counts > 0]
        sums, unions = np.add.reduceat(bits, starts), np.bitwise_or.reduceat(bits, starts)
        return bool((sums == unions).all())

    def named(self, name: str) -> pa.Array:
        """The value under ``name`` of every row, null where there is none."""
        place = np.full(len(self._counts), -1, np.int64)
        code = self._names.dictionary.index(name).as_py()
        if code >= 0:
            found = np.flatnonzero(self._names.indices.to_numpy() == code)
            place[self._rows()[found]] = found
        return self._values.take(pa.array(place, mask=place < 0))

    def maps(self) -> pa.Array:
        """All properties of every row as a map."""
        offsets = np.zeros(len(self._counts) + 1, np.int32)
        np.cumsum(self._counts, out=offsets[1:])
        names = self._names.cast(pa.string())
        return pa.MapArray.from_arrays(pa.array(offsets), names, self._values)

    def _rows(self) -> Int64s:
        return np.repeat(np.arange(len(self._counts)), self._counts)


def parse(data: bytes, starts: Int64s, ends: Int64s) -> PropertyColumns:
    """The properties of the texts ``data[start:end]``; each has a length of 2 bytes before it."""
    if len(starts):
        regular = _split(data, starts, ends)
        if regular is not None and regular.unambiguous:
            return regular
    return _plain(data, starts, ends)


def _plain(data: bytes, starts: Int64s, ends: Int64s) -> PropertyColumns:
    maps = [decode(data[a:b]) for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
    names = [name for found in maps for name in found]
    values = [value for found in maps for value in found.values()]
    counts = np.array([len(found) for found in maps], np.int64)
    return PropertyColumns(pa.array(names, pa.string()), pa.array(values, pa.string()), counts)


def _split(data: bytes, starts: Int64s, ends: Int64s) -> PropertyColumns | None:
    """None when the block is not regular."""
    texts, heads = _led(data, starts, ends)
    if not _is_utf8(texts):
        return None
    borders = np.flatnonzero(texts <= _LEAD)
    marks = texts[borders]
    is_pair = marks == 1
    # Every mark's end is the next mark; texts end where the next one's lead stands.
    stops = np.append(borders[1:], len(texts))
    empty = stops - borders == 1
    follows = np.append(marks[1:], _LEAD)
    last = ~is_pair & (follows == _LEAD)
    opens = ~is_pair & ~last
    regular = (
        len(heads) == np.count_nonzero(marks == _LEAD)
        and bool((marks > 0).all())
        and not (is_pair & (follows == 1)).any()
        and not (is_pair & empty).any()
        and not (opens & (empty | (follows != 1))).any()
        and not (last & ~empty).any()
    )
    if not regular:
        return None
    return _cut(texts, borders, stops, is_pair, heads)


def _cut(
    texts: Bytes, borders: Int64s, stops: Int64s, is_pair: npt.NDArray[np.bool_], heads: Int64s
) -> PropertyColumns:
    at = np.flatnonzero(is_pair)
    edges = np.empty(len(at) * 4, np.int32)
    edges[0::4] = borders[at - 1] + 1
    edges[1::4] = borders[at]
    edges[2::4] = borders[at] + 1
    edges[3::4] = stops[at]
    counts = np.diff(np.searchsorted(borders[at], np.append(heads, len(texts))))
    buffer = pa.py_buffer(texts)
    names = pick(pa.string(), buffer, edges, 0, 4)
    values = pick(pa.string(), buffer, edges, 2, 4)
    return PropertyColumns(names, values, counts)


def _led(data: bytes, starts: Int64s, ends: Int64s) -> tuple[Bytes, Int64s]:
    """The texts one behind another, a byte 3 before each; and where those bytes are."""
    taken = slices(data, starts - 1, ends)
    lengths = ends - starts + 1
    heads = np.cumsum(lengths) - lengths
    texts = np.frombuffer(taken.buffers()[2], np.uint8, int(lengths.sum())).copy()
    texts[heads] = _LEAD
    return texts, heads


def _is_utf8(texts: Bytes) -> bool:
    ends = pa.py_buffer(np.array([0, len(texts)], np.int32))
    whole = pa.Array.from_buffers(pa.string(), 1, [None, ends, pa.py_buffer(texts)])
    try:
        whole.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True
