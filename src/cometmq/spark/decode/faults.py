"""Faults of single records in a block, and decoding of blocks that have some.

A record with contradictory sizes is repaired in a copy: all bytes after its header become its body,
so that the header and the other records can be decoded. Bodies are checked by decompression and by
CRC, texts for valid UTF-8 and for the grammar of properties. Other clients guess in such cases
(they replace a broken byte by U+FFFD, or drop a pair without a value); this module reports them as
faults.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from struct import Struct
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from cometmq.message.record import (
    HEAD,
    HOST_BITS,
    MAGIC_POSITION,
    MAGIC_V1,
    SYS_FLAG_POSITION,
    BadRecord,
    bad_record,
    decode_one,
    head_of,
    iter_sizes,
)
from cometmq.spark.schema import CORRUPT, arrow_schema
from cometmq.speedups.plain.columns import BAD_CRC, BAD_PAIR, BAD_TEXT, BAD_TOPIC

if TYPE_CHECKING:
    from cometmq.message.walk import Ints
    from cometmq.spark.decode.records import Block

_INT: Final = Struct(">I")
_TAIL: Final = b"\0\0\0"
"""The end of a record without topic and properties."""

_FAULTS: Final = {
    BAD_TOPIC: "topic is not UTF-8",
    BAD_TEXT: "properties are not UTF-8",
    BAD_PAIR: "properties contain an entry that is not a name with a value",
}
_ONLY_IN_TEXTS: Final = ("topic",)


@dataclass(frozen=True, slots=True)
class Faults:
    """The reasons why rows of a block are bad. Only the header of ``unreadable`` rows is valid.
    ``bodies``, if requested, are null in bad rows."""

    reasons: Mapping[int, str]
    unreadable: frozenset[int]
    bodies: pa.Array | None = field(default=None)


def all_places(data: bytes) -> Ints:
    """Return the position of each record in a block of whole records, following only their sizes.

    Raises BadRecord if the chain of sizes does not end where the block ends.
    """
    found = [*iter_sizes(data)]
    stop = sum(found[-1]) if found else 0
    if stop != len(data):
        raise bad_record(data, stop, len(data))
    return np.array([place for place, _ in found], np.int64)


def mended(data: bytes, starts: Ints) -> tuple[bytes, dict[int, str]]:
    """Return the bytes with every record made readable, and the problems by position of the
    record."""
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
        _mend(copy, start)
    return bytes(copy), problems


def _mend(data: bytearray, start: int) -> None:
    size = _INT.unpack_from(data, start)[0]
    flags = _INT.unpack_from(data, start + SYS_FLAG_POSITION)[0]
    head_bytes = head_of(flags).size
    if size < head_bytes + len(_TAIL):
        _INT.pack_into(data, start + SYS_FLAG_POSITION, flags & ~HOST_BITS)
        head_bytes = HEAD.size
    _INT.pack_into(data, start + MAGIC_POSITION, MAGIC_V1)
    body_bytes = size - head_bytes - len(_TAIL)
    _INT.pack_into(data, start + head_bytes - _INT.size, body_bytes)
    data[start + size - len(_TAIL) : start + size] = _TAIL


def find(
    block: Block, known: Mapping[int, str], *, bodies: bool, crcs: bool, texts: bool
) -> Faults:
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
    return Faults(dict(sorted(found.items())), frozenset(unreadable), unpacked)


def batches(
    block: Block, faults: Faults, names: tuple[str, ...], rows_max: int
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a block. Bad rows have the valid columns and the reason."""
    if not len(block):
        return
    arrays = [_column(block, faults, name) for name in names]
    whole = pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(names))
    for start in range(0, len(block), rows_max):
        yield whole.slice(start, rows_max)


def _column(block: Block, faults: Faults, name: str) -> pa.Array:
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
