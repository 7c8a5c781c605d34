"""Converts stored records to Arrow, a block at a time, and finds faults of single records. All
reads use this decoder.

A block is whole records (see message/record.py) in a buffer of at most 2 GiB. The core copies their
fields into the buffers of Arrow arrays (``RecordColumns`` in ``speedups``). Only the requested
columns are touched. Compressed bodies are decompressed one by one.

A record with contradictory sizes is repaired in a copy of the block: all bytes after its header
become its body, so that the header and the other records can be decoded. Bodies are checked by
decompression and by CRC, texts for valid UTF-8 and for the grammar of properties. Where other
clients guess (they replace an invalid byte by U+FFFD, or drop a pair without a value), this module
reports a fault.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from struct import Struct
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from cometmq.message.compression import decompress
from cometmq.message.record import (
    COMPRESSED,
    HEAD,
    HEAD_FIELDS,
    HOST_BITS,
    MAGIC_POSITION,
    MAGIC_V1,
    POSITIONS,
    SYS_FLAG_POSITION,
    BadRecord,
    bad_record,
    decode_one,
    head_of,
    iter_sizes,
    iter_spans,
)
from cometmq.spark.schema import BY_NAME, CORRUPT, arrow_schema
from cometmq.speedups import RecordColumns
from cometmq.speedups.plain.columns import BAD_CRC, BAD_PAIR, BAD_TEXT, BAD_TOPIC, PLACE_COLUMNS

if TYPE_CHECKING:
    from cometmq.message.walk import Flags, Ints
    from cometmq.speedups.plain.columns import Texts


_MS_MAX: Final = (2**63 - 1) // 1000
"""Largest number of milliseconds that fits into 64 bits as microseconds. Times beyond it are
clipped, since senders can set any timestamp."""
_TIMES: Final = {"born_timestamp": "born_ms", "store_timestamp": "store_ms"}
_TEXTS: Final = frozenset({"topic", "keys", "tags", "msg_id", "born_host", "store_host"})
_WIDTHS: Final = {name: 8 if kind == "q" else 4 for name, kind in HEAD_FIELDS}
_INT: Final = Struct(">I")

_TAIL: Final = b"\0\0\0"
"""The end of a record without topic and properties: their lengths, 1 and 2 bytes, are 0."""

_FAULTS: Final = {
    BAD_TOPIC: "topic is not UTF-8",
    BAD_TEXT: "properties are not UTF-8",
    BAD_PAIR: "properties contain an entry that is not a name with a value",
}
_ONLY_IN_TEXTS: Final = ("topic",)


class Block:
    """The records of a block. Rows can be filtered before anything is decoded."""

    def __init__(
        self,
        data: bytes,
        broker_name: str = "",
        starts: Ints | None = None,
        *,
        columns: RecordColumns | None = None,
    ) -> None:
        """Take the records of ``data`` that begin at ``starts``.

        If ``starts`` is None, ``data`` must hold only records, and all are taken. Raises BadRecord
        if a length in a record is wrong. ``columns``, if given, must be those of ``data``; they are
        not checked again.
        """
        if columns is None:
            columns = RecordColumns(data, starts)
            if len(columns) < len(starts) if starts is not None else columns.stop < len(data):
                raise BadRecord(columns.stop, problem_at(data, columns.stop))
        self._data = data
        self._columns = columns
        self.broker_name = broker_name

    def __len__(self) -> int:
        return len(self._columns)

    @property
    def queue_offsets(self) -> Ints:
        """The queue offset of every row."""
        return self.number("queue_offset")

    @property
    def starts(self) -> Ints:
        """The position in the data of every row's record."""
        return self._places[:, 0]

    @cached_property
    def _places(self) -> Ints:
        return np.frombuffer(self._columns.places(), np.int64).reshape(-1, PLACE_COLUMNS)

    def number(self, name: str) -> Ints:
        """Return the values of a header field (``record.HEAD_FIELDS``), signed."""
        kind = np.int64 if _WIDTHS[name] == 8 else np.int32
        return np.frombuffer(self._raw(name), kind).astype(np.int64, copy=False)

    def _raw(self, name: str) -> bytes:
        return self._columns.numbers(POSITIONS[name], _WIDTHS[name])

    def record(self, row: int) -> bytes:
        """Return the bytes of one record."""
        start, size = self._places[row, :2].tolist()
        return self._data[start : start + size]

    def property_texts(self) -> list[memoryview]:
        """Return the encoded properties of every row."""
        view = memoryview(self._data)
        places = self._places
        ends = (places[:, 0] + places[:, 1]).tolist()
        return [view[at + 2 : end] for at, end in zip(places[:, 5].tolist(), ends, strict=True)]

    def faults(self, *, crcs: bool, texts: bool) -> list[tuple[int, int]]:
        """Return the rows with faults and their fault bits (``RecordColumns.faults``)."""
        return self._columns.faults(crcs=crcs, texts=texts)

    def choose(self, rows: Flags) -> None:
        """Keep only the rows that are true in ``rows``."""
        if not rows.all():
            self._columns = self._columns.keep(rows)
            self.__dict__.pop("_places", None)

    def topic_codes(self) -> tuple[list[str], Ints]:
        """Return the distinct topics, and the index of each row's topic among them."""
        encoded = self.column("topic").dictionary_encode()
        return encoded.dictionary.to_pylist(), encoded.indices.to_numpy().astype(np.int64)

    def batches(self, names: tuple[str, ...], rows_max: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows in these columns, at most ``rows_max`` per batch.

        Raises BadRecord if a body cannot be decompressed.
        """
        if not len(self):
            return
        arrays = [self.column(name) for name in names]
        whole = pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(names))
        for start in range(0, len(self), rows_max):
            yield whole.slice(start, rows_max)

    def column(self, name: str) -> pa.Array:
        """Return one column, in exactly the Arrow type of the schema.

        The column ``_corrupt`` is all null: :func:`batches_with_faults` fills it. Raises BadRecord
        if a body cannot be decompressed.
        """
        kind = BY_NAME[name].arrow
        if name in _TEXTS:
            return _array(kind, self._columns.texts(name))
        if name == "properties":
            return self._maps(kind)
        if name == "body":
            return self._bodies()
        if name == "broker_name":
            return pa.repeat(pa.scalar(self.broker_name, kind), len(self))
        if name == CORRUPT.name:
            return pa.nulls(len(self), kind)
        if name in _TIMES:
            numbers = np.clip(self.number(_TIMES[name]), -_MS_MAX, _MS_MAX) * 1000
            return pa.Array.from_buffers(kind, len(self), [None, pa.py_buffer(numbers)])
        return pa.Array.from_buffers(kind, len(self), [None, pa.py_buffer(self._raw(name))])

    def unpacked(self) -> tuple[pa.Array, dict[int, str]]:
        """Return the decompressed bodies, null where that failed, and the reasons by row."""
        bodies = _array(pa.binary(), self._columns.bodies())
        sys_flags = self.number("sys_flag")
        packed = np.flatnonzero(sys_flags & COMPRESSED)
        if not len(packed):
            return bodies, {}
        problems: dict[int, str] = {}
        values: list[bytes | None] = bodies.to_pylist()
        for row in packed.tolist():
            try:
                values[row] = decompress(values[row] or b"", int(sys_flags[row]))
            except BadRecord as error:
                values[row] = None
                problems[row] = error.problem
        return pa.array(values, pa.binary()), problems

    def _bodies(self) -> pa.Array:
        bodies, problems = self.unpacked()
        for row, problem in problems.items():
            raise BadRecord(int(self.starts[row]), problem)
        return bodies

    def _maps(self, kind: pa.DataType) -> pa.Array:
        maps = self._columns.maps()
        names, values = (_array(pa.string(), texts) for texts in (maps.names, maps.values))
        return pa.MapArray.from_arrays(
            pa.Array.from_buffers(pa.int32(), len(self) + 1, [None, pa.py_buffer(maps.offsets)]),
            names, values, kind,
        )  # fmt: skip


def problem_at(data: bytes, at: int, base: int | None = None) -> str:
    """Return why no valid record begins at a position. ``base`` is as in ``iter_spans``."""
    try:
        next(iter_spans(data, at, base=base, check_crc=False), None)
    except BadRecord as error:
        return error.problem
    return "there are no bytes"


def _array(kind: pa.DataType, texts: Texts) -> pa.Array:
    """Return an array over the buffers that the core filled."""
    rows = memoryview(texts.offsets).nbytes // 4 - 1
    validity = None if texts.validity is None else pa.py_buffer(texts.validity)
    buffers = [validity, pa.py_buffer(texts.offsets), pa.py_buffer(texts.values)]
    return pa.Array.from_buffers(kind, rows, buffers, texts.nulls)


@dataclass(frozen=True, slots=True)
class RowFaults:
    """The reasons why rows of a block are bad. Only the header of ``unreadable`` rows is valid.
    ``bodies``, if requested, are null in bad rows."""

    reasons: Mapping[int, str]
    unreadable: frozenset[int]
    bodies: pa.Array | None = field(default=None)


def record_starts(data: bytes) -> Ints:
    """Return the position of each record in a block of whole records, following only their sizes.

    Raises BadRecord if the chain of sizes does not end where the block ends.
    """
    found = [*iter_sizes(data)]
    stop = sum(found[-1]) if found else 0
    if stop != len(data):
        raise bad_record(data, stop, len(data))
    return np.array([place for place, _ in found], np.int64)


def repaired(data: bytes, starts: Ints) -> tuple[bytes, dict[int, str]]:
    """Return ``data`` with bad records repaired, and the problems by position of the record.

    If no record is bad, the same object is returned.
    """
    problems: dict[int, str] = {}
    for start in starts.tolist():
        try:
            decode_one(data, start, check_crc=False)
        except BadRecord as error:
            problems[start] = error.problem
    if not problems:
        return data, problems
    copy = bytearray(data)
    for start in problems:
        _repair(copy, start)
    return bytes(copy), problems


def _repair(data: bytearray, start: int) -> None:
    """Make the record at ``start`` decodable: all bytes after its header become its body."""
    size = _INT.unpack_from(data, start)[0]
    flags = _INT.unpack_from(data, start + SYS_FLAG_POSITION)[0]
    head_bytes = head_of(flags).size
    if size < head_bytes + len(_TAIL):
        # Flags of IPv6 hosts make the header longer than the record: assume IPv4 hosts.
        _INT.pack_into(data, start + SYS_FLAG_POSITION, flags & ~HOST_BITS)
        head_bytes = HEAD.size
    _INT.pack_into(data, start + MAGIC_POSITION, MAGIC_V1)
    body_bytes = size - head_bytes - len(_TAIL)
    _INT.pack_into(data, start + head_bytes - _INT.size, body_bytes)
    data[start + size - len(_TAIL) : start + size] = _TAIL


def find_faults(
    block: Block, known: Mapping[int, str], *, bodies: bool, crcs: bool, texts: bool
) -> RowFaults:
    """Return the faults of a block's rows: those ``known`` by position of the record, and those
    that the requested checks find."""
    unreadable = (
        {row: known[start] for row, start in enumerate(block.starts.tolist()) if start in known}
        if known
        else {}
    )
    found = dict(unreadable)
    seen = block.faults(crcs=crcs, texts=texts) if crcs or texts else []
    stored = block.number("body_crc") if seen else np.empty(0, np.int64)
    for row, bits in seen:
        if bits & BAD_CRC:
            crc = int(stored[row]) & 0xFFFFFFFF
            found.setdefault(row, f"body CRC differs from the stored {crc:#010x}")
    unpacked: pa.Array | None = None
    if bodies:
        unpacked, problems = block.unpacked()
        for row, problem in problems.items():
            found.setdefault(row, problem)
        bad = found.keys() if crcs else {*unreadable, *problems}
        unpacked = _without(unpacked, bad)
    for row, bits in seen:
        for fault, problem in _FAULTS.items():
            if bits & fault:
                found.setdefault(row, problem)
    return RowFaults(dict(sorted(found.items())), frozenset(unreadable), unpacked)


def batches_with_faults(
    block: Block, faults: RowFaults, names: tuple[str, ...], rows_max: int
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a block. Bad rows have their valid columns, and ``_corrupt`` the reason."""
    if not len(block):
        return
    arrays = [_column_with_faults(block, faults, name) for name in names]
    whole = pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(names))
    for start in range(0, len(block), rows_max):
        yield whole.slice(start, rows_max)


def _column_with_faults(block: Block, faults: RowFaults, name: str) -> pa.Array:
    if name == CORRUPT.name and faults.reasons:
        return pa.array([faults.reasons.get(row) for row in range(len(block))], pa.string())
    if name == "body" and faults.bodies is not None:
        return faults.bodies
    found = block.column(name)
    return _without(found, faults.unreadable) if name in _ONLY_IN_TEXTS else found


def _without(values: pa.Array, rows: Iterable[int]) -> pa.Array:
    places = list(rows)
    if not places:
        return values
    taken = np.arange(len(values))
    gone = np.zeros(len(values), np.bool_)
    gone[places] = True
    return values.take(pa.array(taken, mask=gone))
