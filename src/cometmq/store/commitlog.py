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
from contextlib import suppress
from typing import TYPE_CHECKING

from cometmq.core.errors import StoreError, StoreFull, StoreOffline, anew
from cometmq.message.record import BLANK, MAGIC_BLANK

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

    from cometmq.store.mapped import LogFile
    from cometmq.store.segments import Segments

logger = logging.getLogger(__name__)

_LONG_BYTES = 1 << 20
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})


class CommitLog:
    """Positions and the turn's buffer over the log files.

    ``position`` is where the next record goes (buffered ones counted), ``written`` what the
    operating system has, ``durable`` what the device has; ``limit`` ends the file at ``position``.
    Up to ``held`` it is committed, and may wait to be written (transientpool.py).
    ``opened_at`` is where this run began to write.
    """

    __slots__ = (
        "_ahead",
        "_early",
        "_held",
        "_reached",
        "_runs",
        "durable",
        "failure",
        "held",
        "left_end",
        "limit",
        "opened_at",
        "parts",
        "position",
        "segments",
        "written",
    )

    def __init__(self, segments: Segments) -> None:
        self.segments = segments
        self.failure: StoreError | None = None
        self._ahead: Future[LogFile] | None = None
        self.resume(segments.start)

    def resume(self, end: int) -> None:
        """Go on behind ``end``, which recovery found and made durable."""
        self.position = self.written = self.durable = self.opened_at = end
        #: End of what files may hold: beyond ``written`` only after a write that failed for good.
        self.left_end = end
        self._reset()

    def _reset(self) -> None:
        size = self.segments.file_bytes
        self.position = self.held = self.written
        self._held: list[tuple[int, list[bytes | memoryview]]] = []
        #: Up to where a write that failed may have left something.
        self._reached = self.written
        start = self.segments.start
        self.limit = start + (self.position - start) // size * size + size
        self.parts: list[bytes | memoryview] = []
        self._runs: list[tuple[int, list[bytes | memoryview]]] = [(self.position, self.parts)]
        #: So many of them are written, by :meth:`write_early`.
        self._early = 0

    def append(self, packed: bytes | memoryview) -> None:
        """Take records, which fit into the current file, behind the others."""
        if len(packed) < _LONG_BYTES:
            self.parts.append(packed)
            self.position += len(packed)
            return
        # A run of its own: what is long is written as it is, and not joined first.
        self._runs.append((self.position, [packed]))
        self.position += len(packed)
        self.parts = []
        self._runs.append((self.position, self.parts))

    def roll(self) -> int:
        """Close the current file with a blank; gives the offset where the next one begins."""
        if self.position > self.limit - self.segments.file_bytes:
            self.parts.append(BLANK.pack(self.limit - self.position, MAGIC_BLANK))
        self.position = self.limit
        self.limit += self.segments.file_bytes
        self.parts = []
        self._runs.append((self.position, self.parts))
        return self.position

    def extend(self, data: memoryview) -> None:
        """Take whole records and blanks as another log has them, to be written at its end, before
        what ``data`` views is anything else. Nothing may be appended before the next commit."""
        while data:
            piece = data[: self.limit - self.position]
            data = data[len(piece) :]
            # A run of its own: what is long is written as it is, and not joined first.
            self._runs.append((self.position, [piece]))
            self.position += len(piece)
            if self.position == self.limit:
                self.limit += self.segments.file_bytes
        self.parts = []
        self._runs.append((self.position, self.parts))

    def restart_at(self, offset: int) -> None:
        """Let a log without a record begin at ``offset``, where one of its files would begin.

        Raises OSError when a file that was made for its first records cannot be removed.
        """
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.exception() is None:
            self.segments.add(ahead.result())
        self.segments.restart_at(offset)
        self.resume(offset)

    def commit(self) -> None:
        """Write the turn's records.

        Raises StoreFull (no room: nothing of the turn is in the log) or StoreOffline (the device
        failed: the log refuses writes from now on). ``position`` is back at ``written`` then.
        """
        if self.position == self.written:
            return
        if self.failure is not None:
            self._reset()
            raise anew(self.failure)
        try:
            self._write_runs(self._runs[self._early :] if self._early else self._runs)
        except OSError as error:
            problem = self._refuse(error, self.written, self._reached)
            self._reset()
            raise problem from error
        self._early = 0
        self.written = self.held = self._reached = self.position
        if len(self._runs) > 1:
            self._runs = [(self.position, self.parts)]
        self.parts.clear()
        self._runs[0] = (self.position, self.parts)

    def write_early(self, bytes_max: int) -> bool:
        """Write the first of what the turn has, some more than ``bytes_max``; gives whether much is
        left. It counts as written at the commit, and what fails here fails again there."""
        while self._early < len(self._runs) - 1 and bytes_max > 0 and self.failure is None:
            run = self._runs[self._early]
            try:
                self._write_runs([run])
            except OSError:
                return False
            bytes_max -= sum(map(len, run[1]))
            self._early += 1
        return bytes_max <= 0

    def hold(self) -> None:
        """Commit the turn's records without writing them; :meth:`write_held` does that."""
        if self.position == self.held:
            return
        runs = self._runs
        # What goes on in the same file is written with it.
        is_new_file = not (runs[0][0] - self.segments.start) % self.segments.file_bytes
        if self._held and not is_new_file:
            self._held[-1][1].extend(runs[0][1])
            runs = runs[1:]
        self._held += runs
        self.held = self.position
        self.parts = []
        self._runs = [(self.position, self.parts)]

    def write_held(self) -> None:
        """Write what was committed and not written.

        Raises StoreFull (no room: it is held still) or StoreOffline (the device failed: it is gone,
        and with it what was appended since; the log refuses writes from now on).
        """
        if self.failure is not None:
            self._reset()
            raise anew(self.failure)
        try:
            self._write_runs(self._held)
        except OSError as error:
            problem = self._refuse(error, self.written, self._reached)
            self._reached = self.written
            if not isinstance(problem, StoreFull):
                self._reset()
            raise problem from error
        self.written = self._reached = self.held
        self._held = []

    def drop_held(self) -> None:
        """What is not written never will be."""
        self._reset()

    def _write_runs(self, runs: list[tuple[int, list[bytes | memoryview]]]) -> None:
        files = self.segments.files
        if len(runs) > 1:
            # All files first: where one cannot be made, nothing is written.
            for start, parts in runs:
                if parts and not (files and files[-1].base <= start < files[-1].end):
                    self._file_at(start)
        for start, parts in runs:
            if parts:
                data = parts[0] if len(parts) == 1 else b"".join(parts)
                self._reached = start + len(data)
                is_last = files and files[-1].base <= start < files[-1].end
                (files[-1] if is_last else self._file_at(start)).write(start, data)

    def _file_at(self, offset: int) -> LogFile:
        file = self.segments.find(offset)
        if file is None:
            ahead, self._ahead = self._ahead, None
            if ahead is not None:
                # Being made still: waiting takes no longer than making another would.
                file = ahead.result()
            else:
                file = self.segments.create_file(self.segments.end)
            self.segments.add(file)
            logger.info("log_file_added path=%s", file.path)
        return file

    def _refuse(self, error: OSError, start: int, reached: int) -> StoreError:
        directory = self.segments.directory
        self.left_end = reached
        if error.errno not in NO_ROOM:
            with suppress(OSError):
                self._erase(start, reached)
            return self.fail(f"writing to {directory} failed: {error}")
        try:
            self._erase(start, reached)
        except OSError as second:
            return self.fail(f"{directory}: {error}, then clearing the rest failed: {second}")
        self.left_end = start
        return StoreFull(
            f"no room for the log in {directory} ({error.strerror}; {self.segments.free_bytes()} "
            f"bytes are free, a file takes {self.segments.file_bytes}): free space there, or set a "
            "smaller mappedFileSizeCommitLog"
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
        return self._ahead is None and self.failure is None and self.segments.end <= self.limit

    def make_next_file(self, executor: Executor) -> Future[LogFile]:
        """Have the next file made by a thread; the roll that needs it takes it from there."""
        self._ahead = executor.submit(self.segments.create_file, self.segments.end)
        return self._ahead

    def forget_next_file(self) -> None:
        """Making it failed: the next try may have more luck."""
        self._ahead = None

    def unsynced_files(self) -> list[LogFile]:
        """The files with bytes between ``durable`` and ``written``."""
        found: list[LogFile] = []
        for file in reversed(self.segments.files):
            if file.end <= self.durable:
                break
            if file.base < self.written:
                found.append(file)
        return found[::-1] if self.durable < self.written else []

    def view(self, offset: int, size_bytes: int) -> memoryview | None:
        """Bytes of one record or several in one file; None when no file holds them."""
        file = self.segments.find(offset)
        if file is None or offset + size_bytes > file.end:
            return None
        at = offset - file.base
        return file.view[at : at + size_bytes]

    def close(self) -> None:
        """Close every file; an unused one made ahead stays for the next start."""
        if self._ahead is not None and self._ahead.exception() is None:
            self._ahead.result().close()
        self.segments.close()
