"""The set-aside directory: keeps all files and bytes that a start or a repair takes out of a store.

    cometmq-set-aside/<time>-<what>    an unchanged file, or bytes that were cut out of the log

``time`` is UTC, to the second. Java brokers ignore the directory. No broker reads its contents
again or deletes them; an administrator may delete them.
"""

from __future__ import annotations

import errno
import logging
import os.path
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from cometmq.core.errors import StoreFull
from cometmq.store.files import make_durable_directory
from cometmq.store.log.directories import NO_ROOM
from cometmq.store.log.scan import read_around
from cometmq.store.log.segments import LogFile

if TYPE_CHECKING:
    from cometmq.core.clock import Clock
    from cometmq.store.files import Files
    from cometmq.store.log.segments import Segments

logger = logging.getLogger(__name__)

DIRECTORY = "cometmq-set-aside"
_COPY_BYTES = 1 << 20
_PAGE_BYTES = 4096


class Quarantine:
    """The set-aside directory of one store, created on first use.

    ``kept`` are the paths that were added.
    """

    __slots__ = ("_clock", "_files", "directory", "kept")

    def __init__(self, files: Files, root: str, clock: Clock) -> None:
        self._files = files
        self._clock = clock
        self.directory = os.path.join(root, DIRECTORY)
        self.kept: list[str] = []

    def _place(self, what: str) -> str:
        make_durable_directory(self._files, self.directory)
        moment = datetime.fromtimestamp(self._clock.wall_ms() // 1000, UTC)
        wanted = os.path.join(self.directory, f"{moment:%Y%m%dT%H%M%SZ}-{what}")
        path, number = wanted, 1
        while self._files.exists(path):
            number += 1
            path = f"{wanted}.{number}"
        self.kept.append(path)
        return path

    def move(self, path: str, what: str, reason: str) -> str:
        """Move a file out of the store, durably, and return its new path.

        ``what`` becomes part of the new name. Raises StoreFull, OSError; then the file is still
        there.
        """
        target = self._place(what)
        try:
            self._files.rename(path, target)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            self._move_to_other_device(path, target)
        self._files.sync_directory(self.directory)
        self._files.sync_directory(os.path.dirname(path))
        logger.warning("set_aside path=%s to=%s reason=%r", path, target, reason)
        return target

    def _move_to_other_device(self, path: str, target: str) -> None:
        """Copy a file, durably, and remove it: the log may be on another device than the root."""
        handle = self._files.open(path)
        try:
            size = self._files.size(handle)
            self._copy(LogFile(self._files, path, 0, size, handle), 0, size, target)
        finally:
            self._files.close(handle)
        self._files.unlink(path)

    def copy(self, file: LogFile, start: int, end: int, reason: str) -> str:
        """Copy bytes of a log file, durably, and return the path. Raises StoreFull, OSError.

        Pages that cannot be read are zeros in the copy.
        """
        target = self._place(f"{start:020d}")
        self._copy(file, start, end, target)
        logger.warning(
            "set_aside path=%s offset=%d size=%d to=%s reason=%r",
            file.path, start, end - start, target, reason,
        )  # fmt: skip
        return target

    def _copy(self, file: LogFile, start: int, end: int, target: str) -> None:
        """Copy bytes of a file to ``target``, durably; holes stay holes.

        Raises StoreFull, OSError; then no partial copy is left, which would take up room.
        """
        handle = self._files.open(target, create=True)
        try:
            self._files.resize(handle, end - start)
            at = file.next_data(start)
            while at < end:
                data = _readable(file, at, min(end, at + _COPY_BYTES))
                self._files.pwrite(handle, data, at - start)
                at = file.next_data(at + len(data))
            self._files.datasync(handle)
        except OSError as error:
            with suppress(OSError):
                self._files.unlink(target)
            self.kept.remove(target)
            if error.errno not in NO_ROOM:
                raise
            raise StoreFull(
                f"no room in {self.directory} to set {end - start} bytes of the log aside; "
                "nothing is removed from it before that: free space there"
            ) from error
        finally:
            self._files.close(handle)
        self._files.sync_directory(self.directory)

    def keep_log_from(self, segments: Segments, start: int, reason: str) -> None:
        """Set aside the log from a physical offset on.

        The bytes in the file of that offset are copied, and the file stays. Later files are moved,
        or removed if nothing was written to them. Raises StoreFull, OSError.
        """
        file = segments.find(start)
        end = start if file is None else written_end(file, start)
        if file is not None and end > start:
            self.copy(file, start, end, reason)
        used = {later.base for later in segments.files if later.base > start and _is_used(later)}
        # Last file first, each durably, so that a crash in between leaves no gap.
        for later in reversed(segments.detach_behind(start)):
            if later.base in used:
                segments.places.leave(later.path)
                self.move(later.path, f"{os.path.basename(later.path)}-whole", reason)
            else:
                segments.places.remove(later.path)


def written_end(file: LogFile, start: int) -> int:
    """Return the end of the last nonzero byte of a log file, from ``start`` on.

    Returns ``start`` if there is none.
    """
    stop = file.end
    while stop > start:
        first = max(start, stop - _COPY_BYTES)
        data = _readable(file, first, stop)
        if data != bytes(len(data)):
            return first + len(data.rstrip(b"\0"))
        stop = first
    return start


def _is_used(file: LogFile) -> bool:
    """Return whether the first page of a log file has data: files are written from their start."""
    return any(_readable(file, file.base, min(file.end, file.base + _PAGE_BYTES)))


def _readable(file: LogFile, start: int, end: int) -> bytearray:
    """Return the bytes between two offsets of a log file, with zeros for unreadable pages."""
    data = bytearray(end - start)
    read_around(file, start, memoryview(data))
    return data
