"""The log: every record of every topic, one behind the other, in files of one size.

Records (message/record.py) are packed into the turn's buffer and leave together in one write. A
record never crosses a file's end: where it and 8 bytes more do not fit, a blank {room left 4,
magic CBD43194 4} closes the file and the record begins the next one; what follows a blank is
undefined. Bytes behind the last record are zeros (upstream: CommitLog.java).

A crash may leave any part of what was written since the last sync behind ``durable``; recovery.py
finds the end and zeroes the rest before anything is appended.
"""

from __future__ import annotations

import errno
import logging
from typing import TYPE_CHECKING

from cometmq.core.errors import StoreError, StoreFull, StoreOffline
from cometmq.message.record import BLANK, MAGIC_BLANK

if TYPE_CHECKING:
    from cometmq.store.mapped import LogFile
    from cometmq.store.segments import Segments

logger = logging.getLogger(__name__)

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})


class CommitLog:
    """Positions and the turn's buffer over the log files.

    ``position`` is where the next record goes (buffered ones counted), ``written`` what the
    operating system has, ``durable`` what the device has; ``limit`` ends the file at ``position``.
    """

    __slots__ = (
        "_next_file",
        "_runs",
        "durable",
        "failure",
        "limit",
        "parts",
        "position",
        "segments",
        "written",
    )

    def __init__(self, segments: Segments) -> None:
        self.segments = segments
        self.failure: StoreError | None = None
        self._next_file: LogFile | None = None
        self.resume(segments.start)

    def resume(self, end: int) -> None:
        """Go on behind ``end``, which recovery found and made durable."""
        self.position = self.written = self.durable = end
        self._reset()

    def _reset(self) -> None:
        size = self.segments.file_bytes
        self.position = self.written
        start = self.segments.start
        self.limit = start + (self.position - start) // size * size + size
        self.parts: list[bytes | memoryview] = []
        self._runs: list[tuple[int, list[bytes | memoryview]]] = [(self.position, self.parts)]

    def roll(self) -> int:
        """Close the current file with a blank; gives the offset where the next one begins."""
        if self.position > self.limit - self.segments.file_bytes:
            self.parts.append(BLANK.pack(self.limit - self.position, MAGIC_BLANK))
        self.position = self.limit
        self.limit += self.segments.file_bytes
        self.parts = []
        self._runs.append((self.position, self.parts))
        return self.position

    def commit(self) -> None:
        """Write the turn's records.

        Raises StoreFull (no room: nothing of the turn is in the log) or StoreOffline (the device
        failed: the log refuses writes from now on). ``position`` is back at ``written`` then.
        """
        if self.position == self.written:
            return
        if self.failure is not None:
            self._reset()
            raise self.failure
        reached = self.written
        try:
            for start, parts in self._runs:
                if parts:
                    self._file_at(start)
            for start, parts in self._runs:
                if parts:
                    data = b"".join(parts)
                    reached = start + len(data)
                    self._file_at(start).write(start, data)
        except OSError as error:
            problem = self._refuse(error, reached)
            self._reset()
            raise problem from error
        self.written = self.position
        if len(self._runs) > 1:
            self._runs = [(self.position, self.parts)]
        self.parts.clear()
        self._runs[0] = (self.position, self.parts)

    def _file_at(self, offset: int) -> LogFile:
        file = self.segments.find(offset)
        if file is None:
            base = self.segments.end if self.segments.files else offset
            file, self._next_file = self._next_file, None
            if file is None:
                file = self.segments.create_file(base)
            self.segments.add(file)
            logger.info("log_file_added path=%s", file.path)
        return file

    def _refuse(self, error: OSError, reached: int) -> StoreError:
        directory = self.segments.directory
        if error.errno not in NO_ROOM:
            return self.fail(f"writing to {directory} failed: {error}")
        try:
            self._erase(self.written, reached)
        except OSError as second:
            return self.fail(f"{directory}: {error}, then clearing the rest failed: {second}")
        return StoreFull(
            f"no room for the log in {directory} ({error.strerror}): free space there, or give a "
            f"smaller mappedFileSizeCommitLog (now {self.segments.file_bytes} bytes)"
        )

    def _erase(self, start: int, end: int) -> None:
        # A failed write may have left whole records; at a restart they would come to life.
        while start < end:
            file = self.segments.find(start)
            if file is None:
                return
            stop = min(end, file.end)
            file.write(start, bytes(stop - start))
            start = stop

    def fail(self, problem: str) -> StoreError:
        """Refuse writes from now on; the error that says so."""
        self.failure = StoreOffline(f"{problem}; the log refuses writes until a restart")
        logger.error("log_failed problem=%r", problem)
        return self.failure

    def wants_next_file(self) -> bool:
        """Whether the file behind the last one should be made now, off the loop."""
        return self._next_file is None and self.failure is None and self.segments.end <= self.limit

    def offer_next_file(self, file: LogFile) -> None:
        """Keep a file made ahead for the next roll; a late one is thrown away."""
        if self._next_file is None and file.base == self.segments.end:
            self._next_file = file
        else:
            # The roll was quicker and made this very file itself.
            file.close()

    def unsynced_files(self) -> list[LogFile]:
        """The files with bytes between ``durable`` and ``written``."""
        if self.durable >= self.written:
            return []
        return [
            file
            for file in self.segments.files[-3:]
            if file.end > self.durable and file.base < self.written
        ]

    def view(self, offset: int, size_bytes: int) -> memoryview | None:
        """Bytes of one record or several in one file; None when no file holds them."""
        file = self.segments.find(offset)
        if file is None or offset + size_bytes > file.end:
            return None
        at = offset - file.base
        return file.view[at : at + size_bytes]

    def close(self) -> None:
        """Close every file; an unused one made ahead stays for the next start."""
        if self._next_file is not None:
            self._next_file.close()
            self._next_file = None
        self.segments.close()
