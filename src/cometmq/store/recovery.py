"""Finding the end of the log at a start, and bringing queues and index up to it.

The log alone is the truth. ``starting_point`` says from where on nothing may be believed, ``scan``
reads every record from there, checks it and dispatches it again. The first bytes that are no whole
record are the end; the engine zeroes what follows (upstream: CommitLog.recoverNormally,
recoverAbnormally).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cometmq.message.record import (
    FIXED_BYTES,
    MAGIC_BLANK,
    PREFIX,
    BadRecord,
    Record,
    decode_one,
)

if TYPE_CHECKING:
    from cometmq.store.checkpoint import Checkpoint, Positions
    from cometmq.store.mapped import LogFile
    from cometmq.store.segments import Segments

logger = logging.getLogger(__name__)

_CHECKPOINT_MARGIN_MS = 3_000


@dataclass(frozen=True, slots=True)
class StartingPoint:
    """Queue and index files are believed for the log below ``offset``.

    ``slots_valid``: the index slots on disk are right. ``stale_entries``: queue files may hold
    entries for records that are gone, so each has to be looked at.
    """

    offset: int
    slots_valid: bool
    stale_entries: bool
    reason: str


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What a start found."""

    crashed: bool
    reason: str
    start: int
    end: int
    records: int
    torn: bool
    duration_ms: int


def starting_point(
    segments: Segments,
    positions: Positions | None,
    boot_id: str,
    crashed: bool,
    checkpoint: Checkpoint,
    queue_count: int,
    queues_end: Callable[[], int],
) -> StartingPoint:
    """Decide where recovery starts. ``queues_end`` looks through all queues for their last record.

    ``queue_count`` is how many queues have files.

    Our own positions are used unless another broker wrote to the store since; then what a Java
    broker left decides: the queues after a clean stop, else its checkpoint.
    """
    low, high = segments.start, segments.end
    if positions is not None and queue_count < positions.queues:
        return StartingPoint(low, False, True, "queue files are missing")
    if positions is not None and low <= positions.written <= high:
        if positions.clean and not crashed:
            return StartingPoint(positions.written, True, False, "clean stop")
        if boot_id and positions.boot_id == boot_id:
            return StartingPoint(positions.written, False, False, "crash of the process")
        return StartingPoint(max(low, positions.synced), False, True, "crash of the machine")
    if not crashed:
        end = queues_end()
        if low <= end <= high:
            return StartingPoint(end, True, False, "clean stop of another broker")
    return StartingPoint(_by_checkpoint(segments, checkpoint), False, True, "checkpoint")


def _by_checkpoint(segments: Segments, checkpoint: Checkpoint) -> int:
    sure_ms = min(checkpoint.log_ms, checkpoint.queues_ms) - _CHECKPOINT_MARGIN_MS
    for file in reversed(segments.files):
        first = first_record(file)
        if first is not None and 0 < first.store_ms <= sure_ms:
            return file.base
    return segments.start


def first_record(file: LogFile) -> Record | None:
    """The record that a file begins with; None when it begins with none."""
    try:
        return decode_one(file.view, 0, check_crc=False)
    except BadRecord:
        return None


class Scan:
    """Reads records from ``position`` on; afterwards ``position`` is the end of the log.

    ``torn`` says that bytes other than zeros follow.
    """

    __slots__ = ("_segments", "position", "records", "torn")

    def __init__(self, segments: Segments, start: int) -> None:
        self._segments = segments
        self.position = start
        self.records = 0
        self.torn = False

    def __iter__(self) -> Iterator[Record]:
        while (file := self._segments.find(self.position)) is not None:
            yield from self._records_of(file)
            if self.position < file.end:
                return

    def _records_of(self, file: LogFile) -> Iterator[Record]:
        view, base = file.view, file.base
        while file.end - self.position >= PREFIX.size:
            at = self.position - base
            size, magic = PREFIX.unpack_from(view, at)
            if magic == MAGIC_BLANK and size == file.end - self.position:
                self.position = file.end
                return
            try:
                record = decode_one(view, at)
            except BadRecord as error:
                self._stop(view, at, error.problem)
                return
            if record.physical_offset != self.position:
                self._stop(view, at, f"it carries physical offset {record.physical_offset}")
                return
            yield record
            self.position += size
            self.records += 1
        self.torn = True

    def _stop(self, view: memoryview, at: int, problem: str) -> None:
        self.torn = any(view[at : at + FIXED_BYTES])
        if self.torn:
            logger.warning("log_end_torn offset=%d problem=%r", self.position, problem)
