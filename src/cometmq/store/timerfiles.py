"""Timer files: log positions of messages that wait for their time, a file for each ten minutes.

    cometmq-timers/NNNNNNNNNNNNNNNNNNNN    named by the first ms of its ten minutes (a bucket)
    cometmq-timers/state.json              state of the last save (timers/snapshot.py of the broker)

Rows of 28 bytes, big-endian, in order of arrival:

    0    8    due time, ms
    8    8    queue offset in rmq_sys_wheel_timer
    16   8    physical offset
    24   4    size; negative for a recall; 0 marks the record at that offset as finished

All files are derived from the log. The broker saves their lengths and CRC-32s. A start truncates
the files to the last save and reads all later rows from the log again. Java brokers ignore the
directory.
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
    from cometmq.core.clock import Slices
    from cometmq.store.files import Files

logger = logging.getLogger(__name__)

TIMER_DIRECTORY: Final = "cometmq-timers"
BUCKET_MS: Final = 600_000
ROW: Final = Struct(">qqqi")
ROW_BYTES: Final = ROW.size

#: Length in bytes and CRC-32 of each bucket's file, by the bucket's number.
Note = Mapping[int, tuple[int, int]]


def bucket_of(due_ms: int) -> int:
    """Return the number of the bucket for a due time."""
    return due_ms // BUCKET_MS


class TimerFiles:
    """The timer files of one store. Rows are buffered until :meth:`write`."""

    def __init__(self, files: Files, root: str) -> None:
        self._files = files
        self.directory = os.path.join(root, TIMER_DIRECTORY)
        #: Length and CRC-32 of each bucket, buffered rows included.
        self._ends: dict[int, tuple[int, int]] = {}
        self._buffers: dict[int, bytearray] = {}
        self._unsynced: set[int] = set()
        self._placed = False
        self.buffered_bytes = 0

    def resume(self, note: Note) -> bool:
        """Restore the files to the lengths in ``note``, and remove files that are not in it.

        Returns False if a file is missing or shorter; then no file may be used. Raises OSError.
        """
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
        """Remove all files and buffered rows. Raises OSError."""
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
        """Buffer a row for a bucket."""
        size, crc = self._ends.get(bucket, (0, 0))
        self._ends[bucket] = size + ROW_BYTES, crc32(row, crc)
        buffer = self._buffers.get(bucket)
        if buffer is None:
            buffer = self._buffers[bucket] = bytearray()
        buffer += row
        self.buffered_bytes += ROW_BYTES

    def note(self) -> dict[int, tuple[int, int]]:
        """Return the lengths and CRCs for :meth:`resume`, with all rows so far, buffered or not."""
        return dict(self._ends)

    def buckets(self) -> list[int]:
        """Return the buckets that have rows, earliest first."""
        return sorted(self._ends)

    def first_from(self, bucket: int) -> int | None:
        """Return the first bucket that has rows, from ``bucket`` on."""
        return min((each for each in self._ends if each >= bucket), default=None)

    async def write(self, slices: Slices) -> None:
        """Write all buffered rows. Raises OSError; the rows of a failed write stay buffered."""
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
        """Return the buckets to :meth:`sync`; pass them to :meth:`give_back` if the sync fails."""
        taken, self._unsynced = sorted(self._unsynced), set()
        return taken

    def give_back(self, buckets: list[int]) -> None:
        """Mark buckets as unsynced again after a failed sync."""
        self._unsynced.update(bucket for bucket in buckets if bucket in self._ends)

    def sync(self, buckets: list[int]) -> None:
        """Sync the files of buckets and their names to the device; for a thread. Raises OSError."""
        files = self._files
        for bucket in buckets:
            path = self._path(bucket)
            if not files.exists(path):
                continue  # dropped in the meantime
            handle = files.open(path)
            try:
                files.datasync(handle)
            finally:
                files.close(handle)
        if buckets:
            files.sync_directory(self.directory)

    def begin_read(self, bucket: int) -> tuple[int, int, int]:
        """Write the buffered rows of a bucket, and return the arguments for :meth:`fetch`.

        Raises OSError.
        """
        self._write(bucket)
        return bucket, *self._ends.get(bucket, (0, 0))

    def fetch(self, bucket: int, size: int, crc: int) -> bytes:
        """Return the first ``size`` bytes of a bucket's rows; for a thread.

        Raises StoreCorrupt if the file is missing or its contents do not match ``crc``. Raises
        OSError.
        """
        path = self._path(bucket)
        if not size:
            return b""
        if not self._files.exists(path):
            raise StoreCorrupt(path, -1, "the file of waiting messages is missing")
        handle = self._files.open(path)
        try:
            rows = self._files.pread(handle, size, 0)
        finally:
            self._files.close(handle)
        if len(rows) != size or crc32(rows) != crc:
            raise StoreCorrupt(path, -1, "the waiting messages in it were changed")
        return rows

    def drop_before(self, bucket: int) -> None:
        """Remove the files of earlier buckets, and their buffered rows. Raises OSError."""
        for each in [each for each in self._ends if each < bucket]:
            buffer = self._buffers.pop(each, None)
            self.buffered_bytes -= 0 if buffer is None else len(buffer)
            self._unsynced.discard(each)
            self._files.unlink(self._path(each))
            del self._ends[each]
