"""Property texts of many records at once (their grammar: message/properties.py).

The texts are copied one behind another, each led by one byte 3. In a regular block the bytes 1, 2
and 3 then are the borders of all names and values: every text reads 3 (name 1 value 2)* name 1
value, with or without a 2 at its end. Texts that all have the same names are cut by the column
(uniform.py); those of a mixed block are first parted by how many names they have. Whatever else
turns up (an empty name or value, a name twice in one record, control bytes inside a value, broken
UTF-8) sends the block through the plain parser.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cometmq.message.properties import decode
from cometmq.spark.decode.alike import WORD_BYTES
from cometmq.spark.decode.gather import pick, slices
from cometmq.spark.decode.uniform import UniformColumns, read_uniform

if TYPE_CHECKING:
    from cometmq.message.walk import Bytes, Ints

_LEAD: Final = 3
_NAMES_MAX: Final = 62
"""Different names in a block that fit the bits of an int64."""
_GROUPS_MAX: Final = 8
_GROUP_ROWS_MIN: Final = 64


class PropertyColumns(Protocol):
    """The properties of the rows of a block."""

    def named(self, name: str) -> pa.Array:
        """The value under ``name`` of every row, null where there is none."""

    def maps(self) -> pa.Array:
        """All properties of every row as a map."""


class GroupedColumns:
    """Rows in groups, each with properties of its own; ``order`` is which row of the groups, one
    behind another, each row is."""

    def __init__(self, groups: list[PropertyColumns], order: Ints) -> None:
        self._groups = groups
        self._order = pa.array(order)

    def named(self, name: str) -> pa.Array:
        """The value under ``name`` of every row, null where there is none."""
        return pa.concat_arrays([group.named(name) for group in self._groups]).take(self._order)

    def maps(self) -> pa.Array:
        """All properties of every row as a map."""
        return pa.concat_arrays([group.maps() for group in self._groups]).take(self._order)


class FlatColumns:
    """The properties of ``len(counts)`` rows: ``names`` and ``values`` lie flat, row by row."""

    def __init__(self, names: pa.Array, values: pa.Array, counts: Ints) -> None:
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

    def _rows(self) -> Ints:
        return np.repeat(np.arange(len(self._counts)), self._counts)


def parse(data: bytes, starts: Ints, ends: Ints) -> PropertyColumns:
    """The properties of the texts ``data[start:end]``; each has a length of 2 bytes before it."""
    if not len(starts):
        return _plain(data, starts, ends)
    marked = _Marked(data, starts, ends)
    uniform = marked.uniform()
    if uniform is not None:
        return uniform
    parts = _parts(marked.counts())
    if parts is None:
        return _split(marked) or _plain(data, starts, ends)
    groups: list[PropertyColumns] = []
    for rows in parts:
        own = _Marked(data, starts[rows], ends[rows])
        found = own.uniform() or _split(own) or _plain(data, starts[rows], ends[rows])
        groups.append(found)
    order = np.empty(len(starts), np.int64)
    order[np.concatenate(parts)] = np.arange(len(starts))
    return GroupedColumns(groups, order)


def _parts(counts: Ints) -> list[Ints] | None:
    """Rows by how many marks they have; None when that is of no use."""
    sizes = np.bincount(counts)
    kinds = np.flatnonzero(sizes)
    if not 1 < len(kinds) <= _GROUPS_MAX or len(counts) < _GROUP_ROWS_MIN * len(kinds):
        return None
    return [np.flatnonzero(counts == kind) for kind in kinds]


class _Marked:
    """Texts one behind another, a byte 3 before each, and where their marks stand.

    ``heads`` are where the leads are; WORD_BYTES follow the last text.
    """

    def __init__(self, data: bytes, starts: Ints, ends: Ints) -> None:
        taken = slices(data, starts - 1, ends)
        lengths = ends - starts + 1
        self.heads = np.cumsum(lengths) - lengths
        self.size = int(lengths.sum())
        padded = np.zeros(self.size + WORD_BYTES, np.uint8)
        padded[: self.size] = np.frombuffer(taken.buffers()[2], np.uint8, self.size)
        padded[self.heads] = _LEAD
        self.padded: Bytes = padded
        self.texts: Bytes = padded[: self.size]
        self.borders: Ints = np.flatnonzero(self.texts <= _LEAD)
        self.marks: Bytes = self.texts[self.borders]
        self.is_utf8 = _is_utf8(self.texts)

    def uniform(self) -> UniformColumns | None:
        """The texts when they all have the same names."""
        if not self.is_utf8:
            return None
        return read_uniform(self.padded, self.borders, self.marks, self.heads)

    def counts(self) -> Ints:
        """How many marks each text has."""
        return np.diff(np.searchsorted(self.borders, np.append(self.heads, self.size)))


def _plain(data: bytes, starts: Ints, ends: Ints) -> FlatColumns:
    maps = [decode(data[a:b]) for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
    names = [name for found in maps for name in found]
    values = [value for found in maps for value in found.values()]
    counts = np.array([len(found) for found in maps], np.int64)
    return FlatColumns(pa.array(names, pa.string()), pa.array(values, pa.string()), counts)


def _split(marked: _Marked) -> FlatColumns | None:
    """None when the block is not regular, or a row has a name twice."""
    if not marked.is_utf8:
        return None
    texts, borders, marks = marked.texts, marked.borders, marked.marks
    is_pair = marks == 1
    # Every mark's end is the next mark; texts end where the next one's lead stands.
    stops = np.append(borders[1:], len(texts))
    empty = stops - borders == 1
    follows = np.append(marks[1:], _LEAD)
    last = ~is_pair & (follows == _LEAD)
    opens = ~is_pair & ~last
    regular = (
        len(marked.heads) == np.count_nonzero(marks == _LEAD)
        and bool((marks > 0).all())
        and not (is_pair & (follows == 1)).any()
        and not (is_pair & empty).any()
        and not (opens & (empty | (follows != 1))).any()
        and not (last & ~empty).any()
    )
    if not regular:
        return None
    found = _cut(texts, borders, stops, is_pair, marked.heads)
    return found if found.unambiguous else None


def _cut(
    texts: Bytes, borders: Ints, stops: Ints, is_pair: npt.NDArray[np.bool_], heads: Ints
) -> FlatColumns:
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
    return FlatColumns(names, values, counts)


def _is_utf8(texts: Bytes) -> bool:
    ends = pa.py_buffer(np.array([0, len(texts)], np.int32))
    whole = pa.Array.from_buffers(pa.string(), 1, [None, ends, pa.py_buffer(texts)])
    try:
        whole.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True
