"""The commit log: the records of all topics in sequence, in files of one size.

Records (message/record.py) are packed into the buffer of the turn and written together. A record
never crosses the end of a file. If a record and 8 more bytes do not fit, a blank {remaining bytes
4, magic CBD43194 4} closes the file and the record begins the next one; the bytes after a blank are
undefined. The bytes after the last record are zeros (upstream: CommitLog.java).
"""

from __future__ import annotations

import errno
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from cometmq.core.errors import StoreError, StoreFull, StoreOffline, fresh_copy
from cometmq.message.record import BLANK, MAGIC_BLANK
from cometmq.store.log.directories import NO_ROOM

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

    from cometmq.store.log.segments import LogFile, Segments

logger = logging.getLogger(__name__)

#: Packed records from this size on are written without being joined to others.
_LONG_BYTES = 1 << 20
#: Zeros that are written ahead of the records at once, and how close to their end records may come.
ZEROS = bytes(1 << 20)
_AHEAD_BYTES = 1 << 18
#: Too many open files: not an error of the device, and a later try may succeed.
_NO_DESCRIPTOR = frozenset({errno.EMFILE, errno.ENFILE})


class CommitLog:
    """The log's positions and the buffer of the current turn, on top of the log files.

    ``position`` is the offset of the next record, counting buffered ones. The operating system has
    the log up to ``written``, the device up to ``durable``. A crash may leave any part of what was
    written after ``durable``; recovery finds the end of the log and zeroes the rest before anything
    is appended. ``held`` is the end of the committed records; with a transient pool, those after
    ``written`` wait for their write (transientpool.py). ``limit`` is the end of the file that
    contains ``position``. ``opened_at`` is the offset at which this run began to write.

    The buffer consists of *runs*: contiguous bytes in one file, as a list of parts, with their
    physical offset. ``parts`` is the list of the last run.
    """

    __slots__ = (
        "_ahead",
        "_early",
        "_held",
        "_reached",
        "_runs",
        "_zeros_end",
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
        """Continue at ``end``, which recovery found and made durable."""
        self.position = self.written = self.durable = self.opened_at = end
        self._zeros_end = end
        #: End of the bytes in the files; beyond ``written`` if a failed write may have left some.
        self.left_end = end
        self._reset()

    def _reset(self) -> None:
        size = self.segments.file_bytes
        self.position = self.held = self.written
        self._held: list[tuple[int, list[bytes | memoryview]]] = []
        #: End of the bytes that a failed write may have left in the files.
        self._reached = self.written
        start = self.segments.start
        self.limit = start + (self.position - start) // size * size + size
        self.parts: list[bytes | memoryview] = []
        self._runs: list[tuple[int, list[bytes | memoryview]]] = [(self.position, self.parts)]
        #: Number of runs that :meth:`write_early` has written.
        self._early = 0

    def append(self, packed: bytes | memoryview) -> None:
        """Append packed records; they must fit into the current file."""
        if len(packed) < _LONG_BYTES:
            self.parts.append(packed)
            self.position += len(packed)
            return
        # A run of its own: long data is written as it is, without a copy to join it.
        self._runs.append((self.position, [packed]))
        self.position += len(packed)
        self.parts = []
        self._runs.append((self.position, self.parts))

    def roll(self) -> int:
        """Close the current file with a blank; return the offset at which the next one begins."""
        if self.position > self.limit - self.segments.file_bytes:
            self.parts.append(BLANK.pack(self.limit - self.position, MAGIC_BLANK))
        self.position = self.limit
        self.limit += self.segments.file_bytes
        self.parts = []
        self._runs.append((self.position, self.parts))
        return self.position

    def extend(self, data: memoryview) -> None:
        """Append whole records and blanks in the layout of another log (a master's).

        They must be committed before the memory behind ``data`` changes, and nothing else may be
        appended before that commit.
        """
        while data:
            piece = data[: self.limit - self.position]
            data = data[len(piece) :]
            # A run of its own: long data is written as it is, without a copy to join it.
            self._runs.append((self.position, [piece]))
            self.position += len(piece)
            if self.position == self.limit:
                self.limit += self.segments.file_bytes
        self.parts = []
        self._runs.append((self.position, self.parts))

    def restart_at(self, offset: int) -> None:
        """Make an empty log begin at ``offset``, which must be the beginning of a file.

        Raises OSError if a file that was created for its first records cannot be removed.
        """
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.exception() is None:
            self.segments.add(ahead.result())
        self.segments.restart_at(offset)
        self.resume(offset)

    def commit(self) -> None:
        """Write the records of the turn.

        Raises StoreFull if there is no room; then no record of the turn is in the log. Raises
        StoreOffline if the device failed; then the log refuses writes until a restart. In both
        cases ``position`` returns to ``written``.
        """
        if self.position == self.written:
            return
        if self.failure is not None:
            self._reset()
            raise fresh_copy(self.failure)
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
        """Write the first buffered runs, at least ``bytes_max`` bytes if there are as many.

        Returns whether runs may be left. The bytes count as written only at the commit. After an
        error, the commit writes the run again, and reports the error if it persists.
        """
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
        """Commit the turn's records without writing them; :meth:`write_held` writes them."""
        if self.position == self.held:
            return
        runs = self._runs
        # Records that continue in the same file are joined to its run, for a single write.
        is_new_file = not (runs[0][0] - self.segments.start) % self.segments.file_bytes
        if self._held and not is_new_file:
            self._held[-1][1].extend(runs[0][1])
            runs = runs[1:]
        self._held += runs
        self.held = self.position
        self.parts = []
        self._runs = [(self.position, self.parts)]

    def write_held(self) -> None:
        """Write the held records.

        Raises StoreFull if there is no room; the records stay held. Raises StoreOffline if the
        device failed; then the held records and all later ones are dropped, and the log refuses
        writes until a restart.
        """
        if self.failure is not None:
            self._reset()
            raise fresh_copy(self.failure)
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
        """Drop all records that are not written."""
        self._reset()

    def _write_runs(self, runs: list[tuple[int, list[bytes | memoryview]]]) -> None:
        files = self.segments.files
        if len(runs) > 1:
            # Create all files first: if one cannot be created, nothing is written.
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
                # A thread is still creating it: waiting takes no longer than creating another one.
                file = ahead.result()
            else:
                file = self.segments.create_file(self.segments.end)
            self.segments.add(file)
            logger.info("log_file_added path=%s", file.path)
        return file

    def _refuse(self, error: OSError, start: int, reached: int) -> StoreError:
        """Erase the bytes that a failed write left; return the error to raise for it.

        The log refuses further writes unless there was only no room, or too many open files.
        """
        directory = self.segments.directory
        self.left_end = reached
        if error.errno not in NO_ROOM | _NO_DESCRIPTOR:
            with suppress(OSError):
                self._erase(start, reached)
            return self.fail(f"writing to {error.filename or directory} failed: {error.strerror}")
        try:
            self._erase(start, reached)
        except OSError as second:
            return self.fail(f"{directory}: {error}, then clearing the rest failed: {second}")
        self.left_end = start
        if error.filename == self.segments.places.note_path:
            return StoreFull(
                f"no room for {error.filename} ({error.strerror}), which notes a directory that "
                "gets its first log file: free some KiB there"
            )
        if error.errno in _NO_DESCRIPTOR:
            return StoreFull(
                f"no log file can be created in {directory} ({error.strerror}): raise the limit of "
                "open files, writes resume by themselves when one can be opened"
            )
        return StoreFull(
            f"no room for the log in {directory} ({error.strerror}; {self.segments.free_bytes()} "
            f"bytes are free, a file takes {self.segments.file_bytes}): free space there, or set a "
            "smaller mappedFileSizeCommitLog"
        )

    def _erase(self, start: int, end: int) -> None:
        # A failed write may have left whole records, which the next start would keep as stored.
        while start < end:
            file = self.segments.find(start)
            if file is None:
                return
            stop = min(end, file.end)
            file.write(start, bytes(stop - start))
            start = stop

    def fail(self, problem: str) -> StoreError:
        """Refuse all further writes; return the error that reports it."""
        self.failure = StoreOffline(f"{problem}; the log refuses writes until a restart")
        logger.error("log_failed problem=%r", problem)
        return self.failure

    def wants_next_file(self) -> bool:
        """Return whether the next file should be created in advance, off the loop."""
        return self._ahead is None and self.failure is None and self.segments.end <= self.limit

    def make_next_file(self, executor: Executor) -> Future[LogFile]:
        """Create the next file in a thread; the write that needs it takes it from there."""
        self._ahead = executor.submit(self.segments.create_file, self.segments.end)
        return self._ahead

    def forget_next_file(self) -> None:
        """Forget a failed attempt to create the next file, so that it is tried again."""
        self._ahead = None

    def write_zeros(self) -> None:
        """Write zeros ahead of the records, if these come close to the end of the last zeros.

        The blocks of a reserved file count as unwritten: the first sync of each block also records
        in the file system's journal that it was written, which takes twice as long as the sync
        itself. With zeros this is done for many records at once. The bytes after the last record
        are zeros anyway.
        """
        at = max(self._zeros_end, self.position)
        if at >= self.position + _AHEAD_BYTES or self.failure is not None:
            return
        file = self.segments.find(at)
        if file is not None:
            size_bytes = min(len(ZEROS), file.end - at)
            self._zeros_end = at + size_bytes
            # If it fails, so will the write of a record, which reports it.
            with suppress(OSError):
                file.write(at, memoryview(ZEROS)[:size_bytes])

    def unsynced_files(self) -> list[LogFile]:
        """Return the files with bytes between ``durable`` and ``written``."""
        found: list[LogFile] = []
        for file in reversed(self.segments.files):
            if file.end <= self.durable:
                break
            if file.base < self.written:
                found.append(file)
        return found[::-1] if self.durable < self.written else []

    def view(self, offset: int, size_bytes: int) -> memoryview | None:
        """Return bytes that lie within one file; None if no file contains them."""
        file = self.segments.find(offset)
        if file is None or offset + size_bytes > file.end:
            return None
        at = offset - file.base
        return file.view[at : at + size_bytes]

    def close(self) -> None:
        """Close every file; an unused one created in advance stays for the next start."""
        if self._ahead is not None and self._ahead.exception() is None:
            self._ahead.result().close()
        self.segments.close()
