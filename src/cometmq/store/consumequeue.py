"""Consume queues: for each queue of each topic, where its records lie in the log.

Files hold 20-byte entries (layout.py). Each queue keeps the entries that are not written yet, and a
few more, in memory (upstream: ConsumeQueue.java).

After a crash the files may lack entries or hold too many; only those for records below the
position that recovery starts from count, the rest is cut off and dispatched again.
"""

from __future__ import annotations

import logging
import os.path
from typing import TYPE_CHECKING, TypeAlias

from cometmq.message.record import topic_tail
from cometmq.speedups import QueueState
from cometmq.store.keyhash import topic_prefix
from cometmq.store.layout import HOLE, HOLE_SIZE, QUEUE_ENTRY, QUEUE_ENTRY_BYTES, SCHEDULE_TOPIC

if TYPE_CHECKING:
    from cometmq.store.queuefiles import QueueFiles

logger = logging.getLogger(__name__)

#: A position of the log, and the store time of the last record before it, ms.
Mark: TypeAlias = tuple[int, int]

_HEAD_ENTRIES = 200
_RUN_ENTRIES = 64
_HOLES_A_READ = 4096


class ConsumeQueue(QueueState):
    """One queue. Offsets count entries.

    ``next_offset`` is given to the next append, ``max_offset`` ends what readers may see (it is
    behind until the dispatch), ``min_offset`` is the first whose record the log still has. With
    ``is_dirty`` the files may lack entries, and the dispatcher knows since when. ``number`` is the
    journal's (entryjournal.py).
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
        """``like`` is another queue of the topic, to share its name with."""
        super().__init__()
        self._pool = pool
        self.directory = os.path.join(pool.directory, topic, str(queue_id))
        self.topic: str = topic if like is None else like.topic
        self.queue_id = queue_id
        self.delay_ms = delay_ms
        # A Java broker that takes over after a crash makes missing entries before it knows the
        # delay levels, and delivers at once: these are in the file before the answer leaves.
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
        """Take what the files hold for records below the physical offset ``below``.

        Whatever follows in the files is zeroed. ``log_start`` is the log's first offset.
        """
        pool, directory = self._pool, self.directory
        bases = pool.bases(directory)
        if not bases:
            return
        end = self.find_end(bases, below)
        if end < 0:
            # Recovery dispatches all of it again, from whichever offset the log begins with.
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
        """The offset behind the last entry in the files for a record below; -1 with no entry."""
        per_file = self._pool.file_bytes // QUEUE_ENTRY_BYTES
        for base in reversed(bases):
            first = base // QUEUE_ENTRY_BYTES
            found = self._end_in(first, first + per_file, below)
            if found > first:
                return found
        return -1

    def resume(self, first: int, entries: bytearray) -> None:
        """Take the last entries from ``first`` on, which the files may lack; those before it, they
        have. :meth:`find_first` is owed then."""
        self._start_at(first)
        self.tail = entries
        self.next_offset = self.max_offset = first + len(entries) // QUEUE_ENTRY_BYTES

    def find_first(self, log_start: int) -> None:
        """Find out where a resumed queue begins; ``log_start`` is the log's first offset."""
        bases = self._pool.bases(self.directory)
        self.min_offset = bases[0] // QUEUE_ENTRY_BYTES if bases else self.tail_offset
        self.correct_min(log_start)

    def _end_in(self, first: int, stop: int, below: int) -> int:
        """Where the entries for records below end in the file from ``first`` to ``stop``.

        Most queues are short, and reading the holes of a sparse file costs more than reading data,
        so the search begins with the head of the file.
        """
        head = self._pool.read(
            self.directory, first * QUEUE_ENTRY_BYTES, _HEAD_ENTRIES * QUEUE_ENTRY_BYTES
        )
        count = len(head) // QUEUE_ENTRY_BYTES
        # A file whose length was lost may end within an entry.
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
        """Whether every entry is of a record before ``physical_offset``; so it is without any."""
        _, last, size = self._last_record()
        return not size or last < physical_offset

    def restart_at(self, offset: int) -> None:
        """Forget the entries from ``offset`` on, in memory and in the files. Raises OSError."""
        self.write()
        pool = self._pool
        pool.cut(self.directory, offset * QUEUE_ENTRY_BYTES, pool.bases(self.directory))
        self._start_at(offset)
        self.min_offset = min(self.min_offset, offset)

    def expect(self, offset: int) -> None:
        """The files reached up to ``offset`` and are gone: should the log have no record of the
        queue any more, its offsets go on from there."""
        self._floor = max(self._floor, offset)

    def settle(self) -> None:
        """Recovery is over: without any entry the offsets go on where the files began."""
        if not self.max_offset and self._floor:
            self._start_at(self._floor)
            self.min_offset = self._floor
        self.next_offset = self.max_offset

    def _entry(self, offset: int) -> bytes:
        return self._pool.read(self.directory, offset * QUEUE_ENTRY_BYTES, QUEUE_ENTRY_BYTES)

    def last_record_end(self) -> int:
        """Physical offset behind the last record that has an entry; 0 when none has."""
        _, physical_offset, size = self._last_record()
        return physical_offset + size

    def last_record(self) -> int:
        """Physical offset of the last record that has an entry; -1 when none has."""
        _, physical_offset, size = self._last_record()
        return physical_offset if size else -1

    def without_holes(self) -> int:
        """The offset behind the last entry that is no hole; ``min_offset`` when all are."""
        return self._last_record()[0]

    def _last_record(self) -> tuple[int, int, int]:
        """The offset behind the last entry that is no hole, and the place and size of its record;
        ``min_offset`` and zeros when there is none."""
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
        """Take back an end that the search was misled to.

        Behind the entries that were synced a power cut leaves sectors that were written and others
        that were not; an entry on their border may look like an old one. So many right entries in
        a row as are asked for here do not stand there by chance.
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
        """Move ``min_offset`` alone; gives whether it moved, so that files may have to go."""
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
        """Drop the files that hold nothing from ``min_offset`` on."""
        low = self.min_offset
        file_bytes = self._pool.file_bytes
        # The last file says where offsets go on, even when every record is gone.
        for base in self._pool.bases(self.directory)[:-1]:
            if base + file_bytes <= min(low * QUEUE_ENTRY_BYTES, self._written * QUEUE_ENTRY_BYTES):
                self._pool.drop(self.directory, base)

    def _next_record(self, offset: int, limit: int, log_start: int) -> int:
        """The first offset from ``offset`` on whose entry is no hole, among ``limit`` entries.

        -1 when there is none, or when the log has lost its record.
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
        """Put hole entries up to ``offset``; an empty queue begins at that file's first entry."""
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
        """Entries from ``offset``: at most ``count``, fewer at the end of a file or of the tail."""
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
        """As :meth:`read`; None when the device would have to be asked: :meth:`fetch` them then."""
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
        """Entries from ``offset`` that are in its file; for a thread. Raises OSError."""
        size = (min(offset + count, self.tail_offset) - offset) * QUEUE_ENTRY_BYTES
        return self._pool.fetch(self.directory, offset * QUEUE_ENTRY_BYTES, size)

    def replace(self, offset: int, entry: bytes) -> None:
        """Put an entry in the place of a wrong one. Raises OSError."""
        if offset < self._written:
            self._pool.write(self.directory, offset * QUEUE_ENTRY_BYTES, entry)
        at = (offset - self.tail_offset) * QUEUE_ENTRY_BYTES
        if at >= 0:
            self.tail[at : at + QUEUE_ENTRY_BYTES] = entry

    def write(self) -> None:
        """Write the entries that are not in the files yet. Raises OSError; nothing is lost then."""
        pool, tail = self._pool, self.tail
        at = (self._written - self.tail_offset) * QUEUE_ENTRY_BYTES
        if at < len(tail):
            data = bytes(memoryview(tail)[at:])
            begins = self._written <= self.min_offset
            pool.write(self.directory, self._written * QUEUE_ENTRY_BYTES, data, begins=begins)
            self._written = self.max_offset
        kept_bytes = pool.kept_bytes
        if len(tail) > 3 * kept_bytes:
            del tail[: len(tail) - kept_bytes]
            self.tail_offset = self.max_offset - kept_bytes // QUEUE_ENTRY_BYTES


def _counts(entry: bytes, below: int) -> bool:
    if len(entry) < QUEUE_ENTRY_BYTES:
        return False
    physical_offset, size = _place(entry)
    return size > 0 and 0 <= physical_offset < below


def _right_entries(raw: bytes, below: int) -> int:
    """How many entries from the first on are for records below, each behind the one before."""
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
