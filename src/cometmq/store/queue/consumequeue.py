"""Consume queues: for each queue, the positions of its records in the log.

Files hold 20-byte entries (layout.py). Each queue keeps its unwritten entries and a few written
ones in memory (upstream: ConsumeQueue.java).

After a crash the files may lack entries or hold too many. Only entries for records before the
position from which recovery starts are valid. The others are zeroed, and dispatch creates them
again.

Records that were appended to the log are passed to queues, index and listeners as rows:

    (queue, queue offset or -1, physical offset, size, tag code, store time ms, index keys)

-1 means that the record takes no place in its queue (half messages and rollback records).
"""

from __future__ import annotations

import logging
import os.path
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from cometmq.message.record import topic_tail
from cometmq.speedups import QueueState, WriteBatch
from cometmq.store.layout import (
    HOLE,
    HOLE_SIZE,
    QUEUE_ENTRY,
    QUEUE_ENTRY_BYTES,
    SCHEDULE_TOPIC,
    topic_prefix,
)

if TYPE_CHECKING:
    from cometmq.store.queue.queuefiles import QueueFiles

logger = logging.getLogger(__name__)

#: A position of the log, and the store time of the last record before it, ms.
Mark: TypeAlias = tuple[int, int]

#: Entries of a file that a search for the end reads first, and entries before an end that must all
#: be valid.
_HEAD_ENTRIES = 200
_RUN_ENTRIES = 64
_HOLES_A_READ = 4096


class ConsumeQueue(QueueState):
    """One consume queue. Offsets count entries.

    ``next_offset`` is the offset of the next append. ``max_offset`` is the end of the dispatched
    entries, which readers may see. ``min_offset`` is the first offset whose record the log still
    has. ``tail`` holds the entries from ``tail_offset`` to ``max_offset``. ``is_dirty`` says that
    the files may lack entries; the dispatcher keeps the position since which they do.
    ``number`` is the queue's number in the journal (journal.py).
    """

    __slots__ = (
        "_floor",
        "_pool",
        "_written",
        "directory",
        "topic",
    )

    def __init__(
        self,
        pool: QueueFiles,
        topic: str,
        queue_id: int,
        delay_ms: int = 0,
        like: ConsumeQueue | None = None,
    ) -> None:
        """Create a queue; ``like`` is another queue of the topic, whose topic data it shares."""
        super().__init__()
        self._pool = pool
        self.directory = os.path.join(pool.directory, topic, str(queue_id))
        self.topic: str = topic if like is None else like.topic
        self.queue_id = queue_id
        self.delay_ms = delay_ms
        # A Java broker that takes over after a crash rebuilds missing entries before it knows the
        # delay levels, and would deliver their messages at once. So entries of delayed messages are
        # written before the response is sent.
        self.is_prompt = topic == SCHEDULE_TOPIC
        self.topic_tail = topic_tail(topic) if like is None else like.topic_tail
        self.topic_hash = topic_prefix(topic) if like is None else like.topic_hash
        self.is_dirty = False
        self.number = -1
        self.min_offset = 0
        self._floor = 0
        self._start_at(0)

    def _start_at(self, offset: int) -> None:
        self.next_offset = self.max_offset = self.tail_offset = self._written = offset
        self.tail = bytearray()

    def load(self, below: int, log_start: int) -> None:
        """Load the entries of the files for records before the physical offset ``below``.

        All later entries in the files are zeroed. ``log_start`` is the log's first offset.
        """
        pool, directory = self._pool, self.directory
        bases = pool.bases(directory)
        if not bases:
            return
        end = self.find_end(bases, below)
        if end < 0:
            # Recovery dispatches all entries again, from the first offset that the log has.
            for base in bases:
                pool.drop(directory, base)
            self._start_at(0)
            self.min_offset = 0
            self._floor = bases[0] // QUEUE_ENTRY_BYTES
            return
        position = end * QUEUE_ENTRY_BYTES
        if bases[-1] > position or not pool.is_clear(directory, position):
            pool.cut(directory, position, bases)
        self._start_at(end)
        self.min_offset = bases[0] // QUEUE_ENTRY_BYTES
        self.correct_min(log_start)

    def find_end(self, bases: list[int], below: int) -> int:
        """Return the offset after the last file entry for a record before ``below``; -1 if none."""
        per_file = self._pool.file_bytes // QUEUE_ENTRY_BYTES
        for base in reversed(bases):
            first = base // QUEUE_ENTRY_BYTES
            found = self._end_in(first, first + per_file, below)
            if found > first:
                return found
        return -1

    def resume(self, first: int, entries: bytearray) -> None:
        """Start with the last entries in memory, from ``first`` on; the files may lack them.

        The files hold all earlier entries. :meth:`find_first` must be called later.
        """
        self._start_at(first)
        self.tail = entries
        self.next_offset = self.max_offset = first + len(entries) // QUEUE_ENTRY_BYTES

    def find_first(self, log_start: int) -> None:
        """Set ``min_offset`` of a resumed queue; ``log_start`` is the log's first offset."""
        bases = self._pool.bases(self.directory)
        self.min_offset = bases[0] // QUEUE_ENTRY_BYTES if bases else self.tail_offset
        self.correct_min(log_start)

    def _end_in(self, first: int, stop: int, below: int) -> int:
        """Return the end of the entries for records before ``below`` in one file.

        The file holds the offsets from ``first`` to ``stop``. The search begins with the head of
        the file: most queues are short, and unwritten parts of a sparse file are slower to read
        than data.
        """
        head = self._pool.read(
            self.directory, first * QUEUE_ENTRY_BYTES, _HEAD_ENTRIES * QUEUE_ENTRY_BYTES
        )
        count = len(head) // QUEUE_ENTRY_BYTES
        # A file that lost its length may end within an entry.
        head = head[: count * QUEUE_ENTRY_BYTES]
        if not count or not _counts(head[-QUEUE_ENTRY_BYTES:], below):
            return first + _right_entries(head, below)
        low, high = first + count, first + count * 8
        while high < stop and _counts(self._entry(high), below):
            low, high = high + 1, first + (high - first) * 8
        high = min(high, stop)
        while low < high:
            middle = (low + high) // 2
            if _counts(self._entry(middle), below):
                low = middle + 1
            else:
                high = middle
        return self._without_torn(first, low, below)

    def is_older_than(self, physical_offset: int) -> bool:
        """Return whether every entry is for a record before ``physical_offset`` (true for none)."""
        _, last, size = self._last_record()
        return not size or last < physical_offset

    def restart_at(self, offset: int) -> None:
        """Drop the entries from ``offset`` on, in memory and in the files. Raises OSError."""
        self.write()
        pool = self._pool
        pool.cut(self.directory, offset * QUEUE_ENTRY_BYTES, pool.bases(self.directory))
        self._start_at(offset)
        self.min_offset = min(self.min_offset, offset)

    def begin_again_at(self, offset: int) -> None:
        """Drop all entries, which belong to a deleted topic of the same name; begin at ``offset``.

        The offsets of the recreated topic need not begin at 0: a crash may have lost its first
        messages, and offsets that consumers know are not given out twice. Raises OSError.
        """
        self.write()
        pool = self._pool
        first = offset - offset % (pool.file_bytes // QUEUE_ENTRY_BYTES)
        position = first * QUEUE_ENTRY_BYTES
        for base in pool.bases(self.directory):
            if base < position:
                pool.drop(self.directory, base)
        pool.cut(self.directory, position, pool.bases(self.directory))
        self._start_at(first)
        self.tail += HOLE * (offset - first)
        self.max_offset = self.min_offset = offset
        self.next_offset = max(self.next_offset, offset)

    def expect(self, offset: int) -> None:
        """Note that the queue had entries up to ``offset`` in files that are gone now.

        If the log has no record of the queue either, its offsets continue at ``offset``.
        """
        self._floor = max(self._floor, offset)

    def finish_recovery(self) -> None:
        """End recovery. A queue without entries continues at the offset that its files had."""
        if not self.max_offset and self._floor:
            self._start_at(self._floor)
            self.min_offset = self._floor
        self.next_offset = self.max_offset

    def _entry(self, offset: int) -> bytes:
        return self._pool.read(self.directory, offset * QUEUE_ENTRY_BYTES, QUEUE_ENTRY_BYTES)

    def last_record_end(self) -> int:
        """Return the physical offset after the last record with an entry; 0 if there is none."""
        _, physical_offset, size = self._last_record()
        return physical_offset + size

    def last_record(self) -> int:
        """Return the physical offset of the last record with an entry; -1 if there is none."""
        _, physical_offset, size = self._last_record()
        return physical_offset if size else -1

    def without_holes(self) -> int:
        """Return the offset after the last entry that is not a hole, or ``min_offset``."""
        return self._last_record()[0]

    def _last_record(self) -> tuple[int, int, int]:
        """Return the offset after the last entry that is not a hole, and that entry's record.

        The record is given as physical offset and size. Returns ``min_offset`` and zeros if every
        entry is a hole.
        """
        per_file = self._pool.file_bytes // QUEUE_ENTRY_BYTES
        stop, count = self.max_offset, 1
        while stop > self.min_offset:
            start = max(self.min_offset, stop - count, (stop - 1) // per_file * per_file)
            raw = self.read(start, stop - start)
            for number, (physical_offset, size, _) in reversed(
                [*enumerate(QUEUE_ENTRY.iter_unpack(raw), start + 1)]
            ):
                if size != HOLE_SIZE:
                    return number, physical_offset, size
            stop, count = start, min(count * 8, _HOLES_A_READ)
        return self.min_offset, 0, 0

    def _without_torn(self, first: int, end: int, below: int) -> int:
        """Return the end of the valid entries; torn ones may have misled the search for ``end``.

        After the synced entries, a power cut leaves a mix of written and unwritten sectors, and an
        entry across the border of two sectors may look like an older one. An end is accepted only
        if a whole run of entries before it is valid, which does not happen by chance.
        """
        while end > first:
            start = max(first, end - _RUN_ENTRIES)
            size = (end - start) * QUEUE_ENTRY_BYTES
            raw = self._pool.read(self.directory, start * QUEUE_ENTRY_BYTES, size)
            right = _right_entries(raw, below)
            if start + right == end:
                break
            end = start + right
        return end

    def correct_min(self, log_start: int) -> None:
        """Move ``min_offset`` to the first entry whose record the log has; drop older files."""
        if self.move_min(log_start):
            self.drop_expired()

    def move_min(self, log_start: int) -> bool:
        """Move ``min_offset`` to the first entry whose record the log has.

        Returns whether it moved; then :meth:`drop_expired` may find files to drop.
        """
        if self.min_offset >= self.max_offset:
            return False
        if self._next_record(self.min_offset, 1, log_start) == self.min_offset:
            return False
        low, high = self.min_offset, self.max_offset
        while low < high:
            middle = (low + high) // 2
            if self._next_record(middle, self.max_offset, log_start) < 0:
                low = middle + 1
            else:
                high = middle
        self.min_offset = max(low, self._next_record(low, self.max_offset, log_start))
        return True

    def drop_expired(self) -> None:
        """Drop the files without entries from ``min_offset`` on."""
        low = self.min_offset
        file_bytes = self._pool.file_bytes
        # The last file keeps the next offset, even if all records are gone.
        for base in self._pool.bases(self.directory)[:-1]:
            if base + file_bytes <= min(low * QUEUE_ENTRY_BYTES, self._written * QUEUE_ENTRY_BYTES):
                self._pool.drop(self.directory, base)

    def _next_record(self, offset: int, limit: int, log_start: int) -> int:
        """Return the first offset, among ``limit`` from ``offset`` on, whose entry is not a hole.

        Returns -1 if there is none, or if its record lies before ``log_start``.
        """
        stop, count = offset + limit, 1
        while offset < stop and (raw := self.read(offset, count)):
            for number, (physical_offset, size, _) in enumerate(QUEUE_ENTRY.iter_unpack(raw)):
                if size != HOLE_SIZE:
                    return offset + number if physical_offset >= log_start else -1
            offset += len(raw) // QUEUE_ENTRY_BYTES
            count = min(count * 8, _HOLES_A_READ)
        return -1

    def fill_to(self, offset: int) -> None:
        """Append holes up to ``offset``.

        A queue without files starts with holes from the first entry of the file of ``offset``.
        """
        if self.max_offset == 0 and not self._pool.bases(self.directory):
            per_file = self._pool.file_bytes // QUEUE_ENTRY_BYTES
            self._start_at(offset - offset % per_file)
            self.min_offset = offset
        elif self.max_offset < offset:
            logger.warning(
                "queue_gap_filled topic=%s queue=%d from=%d to=%d",
                self.topic, self.queue_id, self.max_offset, offset,
            )  # fmt: skip
        self.tail += HOLE * (offset - self.max_offset)
        self.max_offset = offset
        self.next_offset = max(self.next_offset, offset)

    def read(self, offset: int, count: int) -> bytearray | bytes:
        """Return at most ``count`` entries; fewer at the end of a file or of the queue."""
        stop = min(offset + count, self.max_offset)
        tail_offset = self.tail_offset
        if offset >= tail_offset:
            at = (offset - tail_offset) * QUEUE_ENTRY_BYTES
            return self.tail[at : at + (stop - offset) * QUEUE_ENTRY_BYTES]
        size = (min(stop, tail_offset) - offset) * QUEUE_ENTRY_BYTES
        found = self._pool.read(self.directory, offset * QUEUE_ENTRY_BYTES, size)
        if stop > tail_offset and len(found) == size:
            found += self.tail[: (stop - tail_offset) * QUEUE_ENTRY_BYTES]
        return found

    def read_at_once(self, offset: int, count: int) -> bytearray | bytes | None:
        """Return entries as :meth:`read`; None if the device must be read, by :meth:`fetch`."""
        tail_offset = self.tail_offset
        if offset >= tail_offset:
            at = (offset - tail_offset) * QUEUE_ENTRY_BYTES
            return self.tail[at : at + count * QUEUE_ENTRY_BYTES]
        size = (min(offset + count, tail_offset) - offset) * QUEUE_ENTRY_BYTES
        found = self._pool.read_cached(self.directory, offset * QUEUE_ENTRY_BYTES, size)
        if found is not None and len(found) == size and offset + count > self.tail_offset:
            stop = min(offset + count, self.max_offset)
            found += self.tail[: (stop - self.tail_offset) * QUEUE_ENTRY_BYTES]
        return found

    def fetch(self, offset: int, count: int) -> bytes:
        """Read at most ``count`` entries that are in the file of ``offset``; for a thread.

        Raises StoreCorrupt if the file cannot be read.
        """
        size = (min(offset + count, self.tail_offset) - offset) * QUEUE_ENTRY_BYTES
        return self._pool.fetch(self.directory, offset * QUEUE_ENTRY_BYTES, size)

    def replace(self, offset: int, entry: bytes) -> None:
        """Replace a wrong entry. Raises OSError."""
        if offset < self._written:
            self._pool.write(self.directory, offset * QUEUE_ENTRY_BYTES, entry)
        at = (offset - self.tail_offset) * QUEUE_ENTRY_BYTES
        if at >= 0:
            self.tail[at : at + QUEUE_ENTRY_BYTES] = entry

    def write(self) -> None:
        """Write the unwritten entries. Raises OSError; then they stay in memory."""
        pool, tail = self._pool, self.tail
        at = (self._written - self.tail_offset) * QUEUE_ENTRY_BYTES
        if at < len(tail):
            data = bytes(memoryview(tail)[at:])
            begins = self._written <= self.min_offset
            if begins:
                self._fill_file()
            pool.write(self.directory, self._written * QUEUE_ENTRY_BYTES, data, begins=begins)
            self._written = self.max_offset
        kept_bytes = pool.kept_bytes
        if len(tail) > 3 * kept_bytes:
            del tail[: len(tail) - kept_bytes]
            self.tail_offset = self.max_offset - kept_bytes // QUEUE_ENTRY_BYTES

    def _fill_file(self) -> None:
        """Write holes from the start of the file up to the first entry of the queue.

        Readers take an entry of zeros for the end of the entries. No holes are needed if the file
        still has an expired entry before the first one.
        """
        before = self._written % (self._pool.file_bytes // QUEUE_ENTRY_BYTES)
        if before and not _place(self._entry(self._written - 1).ljust(QUEUE_ENTRY_BYTES, b"\0"))[1]:
            position = (self._written - before) * QUEUE_ENTRY_BYTES
            self._pool.write(self.directory, position, HOLE * before, begins=True)


def _counts(entry: bytes, below: int) -> bool:
    """Return whether an entry is for a record before ``below``; a hole counts too."""
    if len(entry) < QUEUE_ENTRY_BYTES:
        return False
    physical_offset, size = _place(entry)
    return size > 0 and 0 <= physical_offset < below


def _right_entries(raw: bytes, below: int) -> int:
    """Return the number of leading entries that are for records before ``below``, in log order."""
    last = -1
    for number, (physical_offset, size, _) in enumerate(QUEUE_ENTRY.iter_unpack(raw)):
        is_hole = size == HOLE_SIZE
        if size <= 0 or physical_offset >= below or (physical_offset <= last and not is_hole):
            return number
        last = last if is_hole else physical_offset
    return len(raw) // QUEUE_ENTRY_BYTES


def _place(entry: bytes | bytearray) -> tuple[int, int]:
    physical_offset, size, _ = QUEUE_ENTRY.unpack(entry)
    return physical_offset, size


#: A row of a dispatched record; see the head of the module.
Dispatched: TypeAlias = tuple[ConsumeQueue, int, int, int, int, int, tuple[str, ...]]
#: Consecutive records of the log: rows of single messages, or a write batch.
RecordGroup: TypeAlias = Sequence[Dispatched] | WriteBatch
