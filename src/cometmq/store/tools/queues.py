"""Consume queues read as columns, with their entries grouped by log file.

All entries of a store are read once and grouped, so that each log file can be compared with its own
entries alone, however many queues there are.
"""

from __future__ import annotations

import os.path
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from cometmq.message.walk import Ints, numbers
from cometmq.store.layout import HOLE_SIZE, QUEUE_ENTRY_BYTES, QUEUE_ENTRY_COLUMNS, file_name
from cometmq.store.tools.sums import Digest, add_digests, hash_entries, text_hash

if TYPE_CHECKING:
    from cometmq.store.files import ReadOnlyFiles
    from cometmq.store.tools.directory import QueueFact, StoreDirectory
    from cometmq.store.tools.findings import Findings

_ENTRY = np.dtype(QUEUE_ENTRY_COLUMNS)
_PIECE_ENTRIES = 8_192


class Entries(NamedTuple):
    """Consecutive entries of one queue; ``first`` is the queue offset of the first one."""

    first: int
    phys: Ints
    sizes: Ints
    codes: Ints


class Run(NamedTuple):
    """Consecutive entries of one queue that point to one log file.

    ``queue`` is the queue's index in the list of all queues, ``file`` the number of the log file,
    ``first`` a queue offset.
    """

    queue: int
    file: int
    first: int
    length: int


@dataclass(frozen=True, slots=True)
class QueueSpan:
    """The bounds of one queue.

    ``first`` is the offset of the first entry whose record the log still has; ``end`` follows the
    last entry.
    """

    first: int
    end: int


@dataclass(frozen=True, slots=True)
class QueueSurvey:
    """One queue: its bounds, the runs of its entries, and their digests by log file."""

    span: QueueSpan
    runs: list[Run]
    digests: dict[int, Digest]


def read_entries(
    files: ReadOnlyFiles, queue: QueueFact, file_bytes: int, first: int, count: int
) -> Entries:
    """Return entries from ``first`` on, with zeros for missing ones. Raises OSError."""
    raw = bytearray()
    position, stop = first * QUEUE_ENTRY_BYTES, (first + count) * QUEUE_ENTRY_BYTES
    while position < stop:
        base = position - position % file_bytes
        size = min(stop, base + file_bytes) - position
        part = b""
        if base in queue.bases:
            handle = files.open(os.path.join(queue.directory, file_name(base)))
            part = files.pread(handle, size, position - base)
            files.close(handle)
        raw += part.ljust(size, b"\0")
        position += size
    return _columns(first, raw)


def _columns(first: int, raw: bytes | bytearray) -> Entries:
    entries = np.frombuffer(raw, _ENTRY)
    return Entries(
        first, numbers(entries["physical"]), numbers(entries["size"]), numbers(entries["tag_code"])
    )


def written_entries(files: ReadOnlyFiles, queue: QueueFact, file_bytes: int) -> Iterator[Entries]:
    """Yield all entries of a queue in pieces, without unwritten ranges. Raises OSError."""
    per_file = file_bytes // QUEUE_ENTRY_BYTES
    for base in queue.bases:
        first = base // QUEUE_ENTRY_BYTES
        handle = files.open(os.path.join(queue.directory, file_name(base)))
        try:
            size = min(files.size(handle), file_bytes)
            at = 0
            while at < per_file:
                data = files.next_data(handle, at * QUEUE_ENTRY_BYTES)
                if data >= size:
                    break
                at = max(at, data // QUEUE_ENTRY_BYTES)
                count = min(_PIECE_ENTRIES, per_file - at)
                raw = files.pread(handle, count * QUEUE_ENTRY_BYTES, at * QUEUE_ENTRY_BYTES)
                yield _columns(first + at, raw[: len(raw) // QUEUE_ENTRY_BYTES * QUEUE_ENTRY_BYTES])
                at += count
        finally:
            files.close(handle)


def survey(
    files: ReadOnlyFiles,
    directory: StoreDirectory,
    number: int,
    queue: QueueFact,
    findings: Findings,
) -> QueueSurvey:
    """Read one queue. Raises OSError.

    ``number`` is the queue's index in the list of all queues. Faults that are visible without the
    log are added to ``findings``.
    """
    _check_files(files, directory.queue_file_bytes, queue, findings)
    reading = _Survey(directory, number, queue, findings)
    for entries in written_entries(files, queue, directory.queue_file_bytes):
        reading.take(entries)
    return QueueSurvey(reading.span(), reading.runs, reading.digests)


class _Survey:
    """The state of a survey of one queue."""

    def __init__(
        self, directory: StoreDirectory, number: int, queue: QueueFact, findings: Findings
    ) -> None:
        self._start, self._stop = directory.log_start, directory.log_stop
        self._file_bytes = directory.log_file_bytes
        self._number = number
        self._queue = queue
        self._findings = findings
        self._first = self._end = -1
        self._topic_hash = np.full(1, text_hash(queue.topic))
        self._queue_id = np.full(1, queue.queue_id)
        self.runs: list[Run] = []
        self.digests: dict[int, Digest] = {}

    def take(self, entries: Entries) -> None:
        """Take the next piece."""
        first, phys, sizes, codes = entries
        offsets = np.arange(first, first + len(phys))
        filled = (phys != 0) | (sizes != 0) | (codes != 0)
        if not filled.all():
            phys, sizes, codes, offsets = (
                column[filled] for column in (phys, sizes, codes, offsets)
            )
        if not len(phys):
            return
        self._find_missing(offsets)
        self._end = int(offsets[-1]) + 1
        live = (sizes != HOLE_SIZE) & ((phys >= self._start) | (phys < 0))
        if self._first < 0:
            if not live.any():
                return
            self._first = int(offsets[np.argmax(live)])
        holes = int(np.count_nonzero((sizes == HOLE_SIZE) & (offsets > self._first)))
        if holes:
            self._findings.note(
                "queue-hole", self._queue.directory, -1,
                f"{holes} entries without a record come after other entries", holes,
            )  # fmt: skip
        outside = live & ((phys < 0) | (phys >= self._stop) | (sizes <= 0))
        for at in np.flatnonzero(outside):
            self._findings.damage(
                "queue-entry-outside", self._queue.directory, int(phys[at]),
                f"entry {offsets[at]} ({sizes[at]} bytes at {phys[at]}) points outside the log",
            )  # fmt: skip
        right = live & ~outside
        if not right.all():
            phys, sizes, codes, offsets = (
                column[right] for column in (phys, sizes, codes, offsets)
            )
        hashes = hash_entries(phys, sizes, codes, offsets, self._topic_hash, self._queue_id)
        self._add_runs(offsets, phys, hashes)

    def _find_missing(self, offsets: Ints) -> None:
        before = np.concatenate(([self._end], offsets[:-1] + 1))
        if self._end < 0:
            before[0] = offsets[0]
        for at in np.flatnonzero(offsets != before):
            count = int(offsets[at] - before[at])
            self._findings.damage(
                "queue-entry-missing", self._queue.directory, -1,
                f"entries {before[at]} to {offsets[at] - 1} are zeros, but others follow", count,
            )  # fmt: skip

    def _add_runs(self, offsets: Ints, phys: Ints, hashes: Ints) -> None:
        if not len(offsets):
            return
        files = (phys - self._start) // self._file_bytes
        ends = np.flatnonzero((np.diff(files) != 0) | (np.diff(offsets) != 1)) + 1
        starts = np.concatenate(([0], ends))
        stops = np.concatenate((ends, [len(offsets)]))
        add_digests(self.digests, hashes, starts, files[starts].tolist())
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
            run = Run(self._number, int(files[start]), int(offsets[start]), stop - start)
            last = self.runs[-1] if self.runs else None
            if last and last.file == run.file and last.first + last.length == run.first:
                self.runs[-1] = last._replace(length=last.length + run.length)
            else:
                self.runs.append(run)

    def span(self) -> QueueSpan:
        """Return the queue's bounds; all pieces must have been taken."""
        end = max(self._end, 0)
        return QueueSpan(end if self._first < 0 else self._first, end)


def _check_files(
    files: ReadOnlyFiles, file_bytes: int, queue: QueueFact, findings: Findings
) -> None:
    expected = queue.bases[0]
    for base in queue.bases:
        path = os.path.join(queue.directory, file_name(base))
        if base != expected:
            findings.damage(
                "queue-file-missing", queue.directory, -1,
                f"{file_name(expected)} is missing, {file_name(base)} follows",
            )  # fmt: skip
        expected = base + file_bytes
        handle = files.open(path)
        size = files.size(handle)
        files.close(handle)
        if size != file_bytes:
            findings.damage(
                "queue-file-size", path, -1,
                f"it is {size} bytes long, the other queue files have {file_bytes}; a Java broker "
                "refuses it",
            )  # fmt: skip
