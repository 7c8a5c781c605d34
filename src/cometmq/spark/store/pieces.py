"""The records of a part of the log, read some megabytes at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cometmq.message.record import FIXED_BYTES, PREFIX
from cometmq.message.walk import is_blank, problem_at
from cometmq.spark import decode
from cometmq.spark.decode import Block
from cometmq.spark.store.directory import find_record, opened, read_at
from cometmq.speedups import RecordColumns

if TYPE_CHECKING:
    from io import FileIO

    from cometmq.spark.store.planning import LogPart

PIECE_BYTES: Final = 2 << 20
"""Bytes read at a time: much compared with the cost of a call, little compared with a processor's
caches. A piece makes few batches (read/corrupt.py); Spark processes these while the next piece is
decoded."""

RECORD_BYTES_MAX: Final = 1 << 27


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes that are no record: from ``start`` to ``stop``, where the next record begins."""

    start: int
    stop: int
    problem: str


def blocks(part: LogPart) -> Iterator[Block | Damage]:
    """Yield the records that begin in a part, in order, and the damage between them.

    Raises FileNotFoundError before the first block if the file is gone, OSError.
    """
    with opened(part.file.path) as handle:
        position = part.start
        if position > part.file.base:
            # The previous part ends with the record that extends into this one.
            position = find_record(handle, part.file, position, part.stop)
        while 0 <= position < part.stop:
            found, following = _next(handle, part, position)
            if found is not None and (isinstance(found, Damage) or len(found)):
                yield found
            position = following


def _next(handle: FileIO, part: LogPart, position: int) -> tuple[Block | Damage | None, int]:
    """Read the records from ``position`` on. Return them, and the position to continue at (-1:
    none)."""
    file = part.file
    data = read_at(handle, min(PIECE_BYTES, file.stop - position), position - file.base)
    if file.stop - position < FIXED_BYTES or is_blank(data, 0, file.stop - position):
        return None, -1
    columns = RecordColumns(data, None, position)
    if not len(columns):
        size = _long(data, position)
        if file.stop - position >= size > len(data):
            data = read_at(handle, size, position - file.base)
            columns = RecordColumns(data, None, position)
    if not len(columns):
        return _damage(handle, part, position, _problem(data, position))
    block = Block(data, part.root.broker_name, columns=columns)
    if position + columns.stop > part.stop:
        block.choose(block.number("physical_offset") < part.stop)
    return block, position + columns.stop


def _problem(data: bytes, position: int) -> str:
    if len(data) < FIXED_BYTES:
        return "it is cut off"
    problem = problem_at(data, 0, position)
    if not problem and PREFIX.unpack_from(data)[0] > len(data):
        return "its size exceeds the file"
    return problem or decode.problem_at(data, 0, position)


def _damage(handle: FileIO, part: LogPart, position: int, problem: str) -> tuple[Damage, int]:
    following = find_record(handle, part.file, position + 1, part.stop)
    return Damage(position, following if following >= 0 else part.stop, problem), following


def _long(data: bytes, position: int) -> int:
    """Return the size of a record that may be longer than ``data``; 0 if it is no record."""
    if len(data) < FIXED_BYTES or problem_at(data, 0, position):
        return 0
    size: int = PREFIX.unpack_from(data)[0]
    return size if size <= RECORD_BYTES_MAX else 0
