"""Where waiting messages lie in the log, on disk by the time at which they are due.

    cometmq-timers/NNNNNNNNNNNNNNNNNNNN    named by the first ms of the ten minutes that it is for
    cometmq-timers/state.json              up to where they count (timers/snapshot.py of the broker)

Rows of 28 bytes, big-endian, in the order in which they came:

    0    8    when it is due, ms
    8    8    its queue offset in rmq_sys_wheel_timer
    16   8    physical offset
    24   4    size; negative for a recall; 0 for a row that says: the record there is done with

Made from the log alone. Whoever uses the files notes how long they are and their CRC-32; at a start
they are cut back to the last note, and all that came later is read from the log again. A Java
broker passes them by.
"""

from __future__ import annotations

import logging
import os.path
from collections.abc import Mapping
from struct import Struct
from typing import TYPE_CHECKING, Final
from zlib import crc32

from cometmq.core.errors import StoreCorrupt
from cometmq.store.files import make_durable_directory
from cometmq.store.layout import file_name, file_offset

if TYPE_CHECKING:
    from cometmq.core.slices import Slices
    from cometmq.store.files import Files

logger = logging.getLogger(__name__)

TIMER_DIRECTORY: Final = "cometmq-timers"
BUCKET_MS: Final = 600_000
ROW: Final = Struct(">qqqi")
ROW_BYTES: Final = ROW.size

#: Length in bytes and CRC-32 of each bucket's file, by the bucket's number.
Note = Mapping[int, tuple[int, int]]


def bucket_of(due_ms: int) -> int:
    """The number of the bucket for a due time."""
    return due_ms // BUCKET_MS


class TimerFiles:
    """The files of one store. Rows are buffered until :meth:`write`."""

    def __init__(self, files: Files, root: str) -> None:
        self._files = files
        self.directory = os.path.join(root, TIMER_DIRECTORY)
        self._ends: dict[int, tuple[int, int]] = {}
        self._buffers: dict[int, bytearray] = {}
        self._unsynced: set[int] = set()
        self._placed = False
        self.buffered_bytes = 0

    def resume(self, note: Note) -> bool:
        """Take the files as they were noted, without what came later. False when one is not as
        long as that; then nothing in them counts. Raises OSError."""
        files = self._files
        for bucket in self._found():
            if bucket not in note:
                files.unlink(self._path(bucket))
        for bucket, (size, _) in note.items():
            path = self._path(bucket)
            if not files.exists(path):
                return False
            handle = files.open(path)
            try:
                found = files.size(handle)
                if found > size:
                    files.resize(handle, size)
            finally:
                files.close(handle)
            if found < size:
                return False
        self._ends = dict(note)
        return True

    def clear(self) -> None:
        """Remove all of them. Raises OSError."""
        for bucket in self._found():
            self._files.unlink(self._path(bucket))
        self._ends.clear()
        self._buffers.clear()
        self._unsynced.clear()
        self.buffered_bytes = 0

    def _found(self) -> list[int]:
        starts = map(file_offset, self._files.names(self.directory))
        return [start // BUCKET_MS for start in starts if start is not None]

    def _path(self, bucket: int) -> str:
        return os.path.join(self.directory, file_name(bucket * BUCKET_MS))

    def add(self, bucket: int, row: bytes) -> None:
        """Take a row for a bucket."""
        size, crc = self._ends.get(bucket, (0, 0))
        self._ends[bucket] = size + ROW_BYTES, crc32(row, crc)
        buffer = self._buffers.get(bucket)
        if buffer is None:
            buffer = self._buffers[bucket] = bytearray()
        buffer += row
        self.buffered_bytes += ROW_BYTES

    def note(self) -> dict[int, tuple[int, int]]:
        """What :meth:`resume` takes, of all rows that came so far."""
        return dict(self._ends)

    def buckets(self) -> list[int]:
        """The buckets that have rows, the earliest first."""
        return sorted(self._ends)

    def first_from(self, bucket: int) -> int | None:
        """The first bucket from ``bucket`` on that has rows."""
        return min((each for each in self._ends if each >= bucket), default=None)

    async def write(self, slices: Slices) -> None:
        """Write what is buffered. Raises OSError; nothing is lost then."""
        self._place()
        for bucket in list(self._buffers):
            self._write(bucket)
            await slices.pause()

    def _place(self) -> None:
        if not self._placed:
            make_durable_directory(self._files, self.directory)
            self._placed = True

    def _write(self, bucket: int) -> None:
        buffer = self._buffers.get(bucket)
        if buffer is None:
            return
        self._place()
        handle = self._files.open(self._path(bucket), create=True)
        try:
            self._files.pwrite(handle, buffer, self._ends[bucket][0] - len(buffer))
        finally:
            self._files.close(handle)
        self.buffered_bytes -= len(buffer)
        self._unsynced.add(bucket)
        del self._buffers[bucket]

    def take_unsynced(self) -> list[int]:
        """Buckets for :meth:`sync`; give them back should that fail."""
        taken, self._unsynced = sorted(self._unsynced), set()
        return taken

    def give_back(self, buckets: list[int]) -> None:
        """They could not be synced."""
        self._unsynced.update(bucket for bucket in buckets if bucket in self._ends)

    def sync(self, buckets: list[int]) -> None:
        """Bring the files of buckets to the device, with their names; for a thread. Raises
        OSError."""
        files = self._files
        for bucket in buckets:
            path = self._path(bucket)
            if not files.exists(path):
                continue  # dropped meanwhile
            handle = files.open(path)
            try:
                files.datasync(handle)
            finally:
                files.close(handle)
        if buckets:
            files.sync_directory(self.directory)

    def begin_read(self, bucket: int) -> tuple[int, int, int]:
        """Write what is buffered of a bucket, for :meth:`fetch`: which takes what is given here.
        Raises OSError."""
        self._write(bucket)
        return bucket, *self._ends.get(bucket, (0, 0))

    def fetch(self, bucket: int, size: int, crc: int) -> bytes:
        """The rows of a bucket up to a length; for a thread.

        Raises StoreCorrupt when they are not what they were, OSError.
        """
        path = self._path(bucket)
        if not size:
            return b""
        if not self._files.exists(path):
            raise StoreCorrupt(path, -1, "the file of waiting messages is gone")
        handle = self._files.open(path)
        try:
            rows = self._files.pread(handle, size, 0)
        finally:
            self._files.close(handle)
        if len(rows) != size or crc32(rows) != crc:
            raise StoreCorrupt(path, -1, "the waiting messages in it are not what they were")
        return rows

    def drop_before(self, bucket: int) -> None:
        """Remove the files of earlier buckets. Raises OSError."""
        for each in [each for each in self._ends if each < bucket]:
            buffer = self._buffers.pop(each, None)
            self.buffered_bytes -= 0 if buffer is None else len(buffer)
            self._unsynced.discard(each)
            self._files.unlink(self._path(each))
            del self._ends[each]
