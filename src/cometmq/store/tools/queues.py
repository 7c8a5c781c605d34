"""Consume queues: entries as columns, grouped by log file, and compared with the log's records.

All entries of a store are read once and grouped, so that each log file can be compared with its own
entries alone, however many queues there are. For the comparison, each entry is reduced to a hash
(sums.py), as is the entry that dispatch would make from the record. Only pairs that differ are
examined in detail, to describe the difference.
"""

from __future__ import annotations

import os.path
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from cometmq.core.plural import plural
from cometmq.message.record import BadRecord, decode_one, takes_queue_slot
from cometmq.message.walk import Ints, numbers
from cometmq.store.dispatch import code_and_keys
from cometmq.store.layout import (
    EXTENSIONS,
    HOLE_SIZE,
    QUEUE_ENTRY_BYTES,
    QUEUE_ENTRY_COLUMNS,
    file_name,
)
from cometmq.store.queue.extensions import MissingCode, UnitReader
from cometmq.store.tools.logfile import read_record
from cometmq.store.tools.sums import Digest, add_digests, hash_entries, text_hash

if TYPE_CHECKING:
    from cometmq.store.files import ReadOnlyFiles
    from cometmq.store.tools.directory import FileInfo, QueueInfo, StoreDirectory
    from cometmq.store.tools.findings import Findings
    from cometmq.store.tools.logfile import Chunk, Gap

_ENTRY = np.dtype(QUEUE_ENTRY_COLUMNS)
_PIECE_ENTRIES = 8_192


#: Entries are found by the granule of 2^6 bytes in which their record begins. A record is longer,
#: so two records never begin in the same granule.
_GRANULE_SHIFT = 6
#: Limits of missing entries per chunk and queue whose reason is found, and of wrong entries per log
#: file that are explained.
_EXAMINED = 256
_EXPLAINED = 1_000


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
    """One queue: its bounds, and the runs and digests of its entries by number of the log file."""

    span: QueueSpan
    runs: list[Run]
    digests: dict[int, Digest]


class LostUnits:
    """Computes the tag codes of lost extension units from the records, as a broker does.

    ``made`` counts them (queue/extensions.py).
    """

    def __init__(
        self, files: ReadOnlyFiles, log_files: Sequence[FileInfo], delays_ms: tuple[int, ...]
    ) -> None:
        self._files = files
        self._log_files = log_files
        self._bases = [file.base for file in log_files]
        self._delays_ms = delays_ms
        self.made = 0

    def code(self, place: int, size: int) -> int | None:
        """Return the tag code of the record of an entry; None if there is none. Raises OSError."""
        number = bisect_right(self._bases, place) - 1
        if number < 0:
            return None
        file = self._log_files[number]
        if not 0 < size <= file.size_bytes - (place - file.base):
            return None
        handle = self._files.open(file.path)
        try:
            raw = self._files.pread(handle, size, place - file.base)
        finally:
            self._files.close(handle)
        try:
            record = decode_one(raw, check_crc=False)
        except BadRecord:
            return None
        self.made += 1
        return code_and_keys(
            record.topic, record.sys_flag, record.store_ms, record.properties, self._delays_ms
        )[0]


def _no_code(_place: int, _size: int) -> int | None:
    return None


def read_entries(
    files: ReadOnlyFiles,
    queue: QueueInfo,
    file_bytes: int,
    first: int,
    count: int,
    missing: MissingCode = _no_code,
) -> Entries:
    """Return entries from ``first`` on, with zeros for missing ones. Raises OSError.

    ``missing`` computes the tag code of an entry whose extension unit is lost.
    """
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
    return _columns(first, _unit_reader(files, queue).with_codes(queue.directory, raw, missing))


def _unit_reader(files: ReadOnlyFiles, queue: QueueInfo) -> UnitReader:
    return UnitReader(files, os.path.dirname(os.path.dirname(os.path.dirname(queue.directory))))


def _columns(first: int, raw: bytes | bytearray) -> Entries:
    entries = np.frombuffer(raw, _ENTRY)
    return Entries(
        first, numbers(entries["physical"]), numbers(entries["size"]), numbers(entries["tag_code"])
    )


def iter_entries(
    files: ReadOnlyFiles, queue: QueueInfo, file_bytes: int, missing: MissingCode = _no_code
) -> Iterator[Entries]:
    """Yield all entries of a queue in pieces, without unwritten ranges. Raises OSError.

    ``missing`` computes the tag code of an entry whose extension unit is lost.
    """
    per_file = file_bytes // QUEUE_ENTRY_BYTES
    units = _unit_reader(files, queue)
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
                whole = raw[: len(raw) // QUEUE_ENTRY_BYTES * QUEUE_ENTRY_BYTES]
                yield _columns(first + at, units.with_codes(queue.directory, whole, missing))
                at += count
        finally:
            files.close(handle)


def survey_queue(
    files: ReadOnlyFiles,
    directory: StoreDirectory,
    number: int,
    queue: QueueInfo,
    findings: Findings,
    delays_ms: tuple[int, ...] = (),
) -> QueueSurvey:
    """Read all entries of a queue, and group them by log file. Raises OSError.

    ``number`` is the queue's index in the list of all queues. Faults that are visible without the
    log are added to ``findings``.
    """
    _check_files(files, directory.queue_file_bytes, queue, findings)
    reading = _Survey(directory, number, queue, findings)
    lost = LostUnits(files, directory.log_files, delays_ms)
    for entries in iter_entries(files, queue, directory.queue_file_bytes, lost.code):
        reading.take(entries)
    if lost.made:
        findings.note(
            "queue-unit-lost", queue.directory, -1,
            f"{plural(lost.made, 'entry has', 'entries have')} lost the unit in {EXTENSIONS}; a "
            "start here takes the tags from the records, a Java broker sends such messages to "
            "every consumer", lost.made,
        )  # fmt: skip
    return QueueSurvey(reading.span(), reading.runs, reading.digests)


class _Survey:
    """The state of a survey of one queue."""

    def __init__(
        self, directory: StoreDirectory, number: int, queue: QueueInfo, findings: Findings
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
                f"{plural(holes, 'entry', 'entries')} without a record after other entries", holes,
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
    files: ReadOnlyFiles, file_bytes: int, queue: QueueInfo, findings: Findings
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


class MissingReason(Enum):
    """The reason why a record has no entry in its queue."""

    NO_QUEUE = "its queue has no files"
    NO_ENTRY = "the queue has no entry there"
    NEWER = "its queue begins with later records: the topic was deleted and created again"
    OTHER = "the entry there belongs to another record"
    UNKNOWN = "not examined one by one"


class MissingEntries(NamedTuple):
    """Records of one queue that have no entry, for one reason.

    The fields are their number, the bounds of their queue offsets, and the physical offsets of the
    first and the last one.
    """

    topic: str
    queue_id: int
    reason: MissingReason
    amount: int
    first_offset: int
    last_offset: int
    physical_offset: int
    last_physical_offset: int = 1 << 62


def join_missing(one: MissingEntries, other: MissingEntries) -> MissingEntries:
    """Join two groups of the same queue and reason."""
    return one._replace(
        amount=one.amount + other.amount,
        first_offset=min(one.first_offset, other.first_offset),
        last_offset=max(one.last_offset, other.last_offset),
        physical_offset=min(one.physical_offset, other.physical_offset),
        last_physical_offset=max(one.last_physical_offset, other.last_physical_offset),
    )


class EntryCheck:
    """The queue entries that point to one log file, matched with their records.

    ``missing`` are records without an entry, by queue and reason.
    """

    def __init__(
        self,
        files: ReadOnlyFiles,
        file: FileInfo,
        queues: list[QueueInfo],
        queue_file_bytes: int,
        runs: list[Run],
        delays_ms: tuple[int, ...],
    ) -> None:
        self._files = files
        self._file = file
        self._queues = queues
        self._queue_file_bytes = queue_file_bytes
        self._runs = runs
        self._delays_ms = delays_ms
        self._lost = LostUnits(files, [file], delays_ms)
        self._ends = np.cumsum([run.length for run in runs])
        self._by_name: dict[tuple[str, int], QueueInfo] = {}
        self._begins: dict[str, tuple[int, int]] = {}
        self.missing: dict[tuple[str, int, MissingReason], MissingEntries] = {}
        self._load()

    def _load(self) -> None:
        total = sum(run.length for run in self._runs)
        self._phys = np.empty(total, np.int64)
        self._hashes = np.empty(total, np.int64)
        self._claimed = np.zeros(total, np.bool_)
        at = 0
        for run in self._runs:
            queue = self._queues[run.queue]
            found = self._read(queue, run.first, run.length)
            stop = at + run.length
            offsets = np.arange(run.first, run.first + run.length)
            self._phys[at:stop] = found.phys
            topic = np.full(1, text_hash(queue.topic))
            number = np.full(1, queue.queue_id)
            self._hashes[at:stop] = hash_entries(
                found.phys, found.sizes, found.codes, offsets, topic, number
            )
            at = stop
        places = (self._phys - self._file.base) >> _GRANULE_SHIFT
        # A file may be too short for its entries.
        last = max(self._file.size_bytes >> _GRANULE_SHIFT, int(places.max(initial=0)))
        self._granules = np.zeros(last + 1, np.int32)
        self._granules[places] = np.arange(1, total + 1)

    def _read(self, queue: QueueInfo, first: int, count: int) -> Entries:
        file_bytes = self._queue_file_bytes
        return read_entries(self._files, queue, file_bytes, first, count, self._lost.code)

    def take(self, chunk: Chunk, hashes: Ints) -> None:
        """Match records with entries; ``hashes`` has the hash (sums.py) of each one's entry."""
        places, takes = chunk.places, chunk.takes_place
        entries = self._granules[(places - self._file.base) >> _GRANULE_SHIFT].astype(np.int64) - 1
        fits = takes & (entries >= 0)
        if len(self._hashes):
            fits &= self._hashes[entries] == hashes
        self._claimed[entries if fits.all() else entries[fits]] = True
        alone = np.flatnonzero(takes & ~fits)
        if len(alone):
            # An entry that points here but differs is reported once, as a fault of the entry.
            hit = entries[alone]
            blamed = (
                (hit >= 0) & (self._phys[hit] == places[alone]) if len(self._phys) else hit < -1
            )
            self._note_missing(chunk, alone[~blamed])

    def _note_missing(self, chunk: Chunk, rows: Ints) -> None:
        queue_numbers = chunk.queue_numbers[rows]
        for number in np.unique(queue_numbers):
            own = rows[queue_numbers == number]
            topic, queue_id = chunk.queues[number]
            offsets, places = chunk.queue_offsets[own], chunk.places[own]
            queue = self._queue(topic, queue_id)
            if queue is None:
                self._add_missing(topic, queue_id, MissingReason.NO_QUEUE, offsets, places)
                continue
            reasons = np.array(
                [
                    self._reason(queue, int(offset), int(place))
                    for offset, place in zip(offsets[:_EXAMINED], places[:_EXAMINED], strict=True)
                ]
                + [MissingReason.UNKNOWN] * (len(own) - _EXAMINED)
            )
            for each in MissingReason:
                chosen = reasons == each
                if chosen.any():
                    self._add_missing(topic, queue_id, each, offsets[chosen], places[chosen])

    def _reason(self, queue: QueueInfo, offset: int, place: int) -> MissingReason:
        if offset < 0:
            return MissingReason.NO_ENTRY
        # If the queue begins with later records at smaller queue offsets, this record belongs to a
        # deleted topic.
        begin_offset, begin_phys = self._begin(queue)
        if offset >= begin_offset and place < begin_phys:
            return MissingReason.NEWER
        found = read_entries(self._files, queue, self._queue_file_bytes, offset, 1)
        return MissingReason.NO_ENTRY if found.sizes[0] in (0, HOLE_SIZE) else MissingReason.OTHER

    def _begin(self, queue: QueueInfo) -> tuple[int, int]:
        """Return queue offset and physical offset of a queue's first entry with a record."""
        known = self._begins.get(queue.directory)
        if known is None:
            known = (1 << 62, -1)
            for entries in iter_entries(self._files, queue, self._queue_file_bytes):
                filled = np.flatnonzero((entries.sizes != 0) & (entries.sizes != HOLE_SIZE))
                if len(filled):
                    first = int(filled[0])
                    known = (entries.first + first, int(entries.phys[first]))
                    break
            self._begins[queue.directory] = known
        return known

    def _queue(self, topic: str, queue_id: int) -> QueueInfo | None:
        if not self._by_name:
            self._by_name = {(each.topic, each.queue_id): each for each in self._queues}
        return self._by_name.get((topic, queue_id))

    def _add_missing(
        self, topic: str, queue_id: int, reason: MissingReason, offsets: Ints, places: Ints
    ) -> None:
        more = MissingEntries(
            topic, queue_id, reason, len(offsets), int(offsets.min()), int(offsets.max()),
            int(places[0]), int(places[-1]),
        )  # fmt: skip
        known = self.missing.get((topic, queue_id, reason))
        self.missing[topic, queue_id, reason] = more if known is None else join_missing(known, more)

    def finish(self, end: int, gaps: list[Gap], findings: Findings, *, is_clean: bool) -> None:
        """Report the entries without a record. ``end`` is the end of the last record."""
        rest = np.flatnonzero(~self._claimed)
        phys = self._phys[rest]
        beyond = phys >= end
        if beyond.any():
            first, count = int(phys[beyond].min()), int(np.count_nonzero(beyond))
            add = findings.damage if is_clean else findings.note
            add(
                "queue-entry-beyond", self._file.path, first,
                f"{plural(count, 'queue entry', 'queue entries')} for records after the end of "
                f"the log at {end}", count,
            )  # fmt: skip
        lost = np.zeros(len(rest), np.bool_)
        for gap in gaps:
            lost |= (phys >= gap.start) & (phys < gap.stop)
        lost &= ~beyond
        if lost.any():
            count = int(np.count_nonzero(lost))
            findings.note(
                "queue-entry-lost", self._file.path, int(phys[lost].min()),
                f"{plural(count, 'queue entry', 'queue entries')} for records that cannot be read",
                count,
            )  # fmt: skip
        for entry in rest[~beyond & ~lost][:_EXPLAINED].tolist():
            self._explain(entry, findings)
        more = int(np.count_nonzero(~beyond & ~lost)) - _EXPLAINED
        if more > 0:
            text = f"{plural(more, 'more entry', 'more entries')} like that"
            findings.damage("queue-entry-wrong", self._file.path, -1, text, more)

    def _explain(self, entry: int, findings: Findings) -> None:
        number = int(np.searchsorted(self._ends, entry, side="right"))
        run = self._runs[number]
        queue = self._queues[run.queue]
        offset = run.first + entry - int(self._ends[number]) + run.length
        found = self._read(queue, offset, 1)
        phys, size, code = int(found.phys[0]), int(found.sizes[0]), int(found.codes[0])
        record = read_record(self._files, self._file, phys)
        if record is None or record.physical_offset != phys:
            problem = f"points to {phys}, where no record begins"
        else:
            own_code, _ = code_and_keys(
                record.topic, record.sys_flag, record.store_ms, record.properties,
                self._delays_ms,
            )  # fmt: skip
            pairs: list[tuple[str, object, object]] = [
                ("topic", queue.topic, record.topic),
                ("queue", queue.queue_id, record.queue_id),
                ("queue offset", offset, record.queue_offset),
                ("size", size, record.size_bytes),
                ("tag code", code, own_code),
            ]
            wrong = [f"{name} {own} not {its}" for name, own, its in pairs if own != its]
            if not takes_queue_slot(record.sys_flag):
                wrong.append("that record has no queue entry")
            problem = f"for the record at {phys}: " + (", ".join(wrong) or "it is there twice")
        findings.damage("queue-entry-wrong", queue.directory, phys, f"entry {offset} {problem}")
