"""Segments of the commit log: files of one size that form one address space."""

from __future__ import annotations

import logging
import os.path
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cometmq.core.errors import StoreCorrupt
from cometmq.store.layout import file_name, file_offset
from cometmq.store.log.logfile import LogFile

if TYPE_CHECKING:
    from cometmq.store.files import Files
    from cometmq.store.log.checksums import BlockChecksums

logger = logging.getLogger(__name__)

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class FileFault:
    """Fault of one log file. ``size_bytes`` is -1 if the file is missing.

    ``next_base`` is the offset of the first file after it, -1 if there is none. ``settings_differ``
    is True if the configured file size is probably wrong, not the file.
    """

    path: str
    base: int
    size_bytes: int
    next_base: int
    settings_differ: bool
    problem: str


class Segments:
    """Contiguous log files of one size. ``files`` is in order and may be empty."""

    __slots__ = ("_files", "_first", "directory", "file_bytes", "files")

    def __init__(self, files: Files, directory: str, file_bytes: int) -> None:
        self._files = files
        self._first = 0
        self.directory = directory
        self.file_bytes = file_bytes
        self.files: list[LogFile] = []

    def load(
        self, mend: Callable[[FileFault], None] | None = None, *, size_is_sure: bool = False
    ) -> None:
        """Open the log files in the directory.

        If a crash interrupted the creation of the last file, so that it has another size and only
        zeros, it is removed. ``mend`` is called for each other file with a wrong size and for each
        file missing between others, until there is none; without ``mend``, StoreCorrupt is raised.
        ``size_is_sure`` means that the store is known to have files of this size.
        """
        while (fault := self._find_fault(size_is_sure)) is not None:
            if mend is None:
                raise StoreCorrupt(fault.path, fault.base, fault.problem)
            mend(fault)
        for base, path in self._found():
            handle = self._files.open(path)
            self.files.append(LogFile(self._files, path, base, self.file_bytes, handle))
        self._first = self.files[0].base if self.files else 0

    def _found(self) -> list[tuple[int, str]]:
        return [
            (base, os.path.join(self.directory, name))
            for name in self._files.names(self.directory)
            if (base := file_offset(name)) is not None
        ]

    def _find_fault(self, size_is_sure: bool) -> FileFault | None:
        found = self._found()
        sizes = [self._size(path) for _, path in found]
        # A last file whose creation a crash interrupted is no fault.
        if found and sizes[-1] != self.file_bytes and self._is_unused(found[-1][1], sizes[-1]):
            found.pop()
        bases = [base for base, _ in found]
        differ = not size_is_sure and _fits_another(bases, sizes, self.file_bytes)
        for number, (base, path) in enumerate(found):
            follows = bases[number + 1] if number + 1 < len(bases) else -1
            before = bases[number - 1] + self.file_bytes if number else base
            if base != before and not differ:
                missing = os.path.join(self.directory, file_name(before))
                return FileFault(
                    missing, before, -1, base, False,
                    f"this log file is missing; the next one begins at {base}",
                )  # fmt: skip
            if sizes[number] != self.file_bytes:
                problem = (
                    f"it is {sizes[number]} bytes long, mappedFileSizeCommitLog is "
                    f"{self.file_bytes}"
                )
                if differ:
                    problem += ": start with the size with which the store was written"
                return FileFault(path, base, sizes[number], follows, differ, problem)
        return None

    def _size(self, path: str) -> int:
        handle = self._files.open(path)
        try:
            return self._files.size(handle)
        finally:
            self._files.close(handle)

    def _is_unused(self, path: str, size_bytes: int) -> bool:
        handle = self._files.open(path)
        try:
            for at in range(0, size_bytes, _CHUNK_BYTES):
                found = self._files.pread(handle, min(_CHUNK_BYTES, size_bytes - at), at)
                if found.count(0) != len(found):
                    return False
        finally:
            self._files.close(handle)
        logger.warning("log_file_removed path=%s size=%d reason=unfinished", path, size_bytes)
        self._files.unlink(path)
        return True

    @property
    def start(self) -> int:
        """Offset at which the first file begins."""
        return self._first

    @property
    def end(self) -> int:
        """Offset at which the last file ends; without files, where the first one would begin."""
        return self.files[-1].end if self.files else self._first

    def find(self, offset: int) -> LogFile | None:
        """Return the file that holds ``offset``; None if no file does."""
        number = (offset - self._first) // self.file_bytes
        return self.files[number] if 0 <= number < len(self.files) else None

    def free_bytes(self) -> int:
        """Return the free space of the file system."""
        return self._files.disk_space(self.directory).free_bytes

    def create_file(self, base: int) -> LogFile:
        """Create the file that begins at ``base``, without adding it. Raises OSError.

        May run in a thread.
        """
        return LogFile.create(self._files, self.directory, base, self.file_bytes)

    def add(self, file: LogFile) -> None:
        """Add a file after the last one."""
        assert file.base == self.end or not self.files
        if not self.files:
            self._first = file.base
        self.files.append(file)

    def detach_behind(self, offset: int) -> list[LogFile]:
        """Remove the files that begin after ``offset`` from ``files``; return them, closed.

        They stay on the disk.
        """
        kept = [file for file in self.files if file.base <= offset]
        gone = self.files[len(kept) :]
        self.files = kept
        for file in gone:
            self._let_go(file)
        return gone

    def drop_after(self, offset: int) -> None:
        """Delete the files that begin after ``offset``, the last one first. Raises OSError."""
        for file in reversed(self.detach_behind(offset)):
            remove_file(self._files, file.path)

    def restart_at(self, offset: int) -> None:
        """Delete all files; the next one begins at ``offset``. Raises OSError."""
        self.drop_after(-1)
        self._first = offset

    def drop_first(self) -> LogFile:
        """Remove the oldest file from ``files``; return it, closed.

        The caller must delete it from the disk, which may take long.
        """
        file = self.files.pop(0)
        self._first = self.files[0].base if self.files else file.end
        self._let_go(file)
        return file

    def _let_go(self, file: LogFile) -> None:
        logger.info("log_file_dropped path=%s", file.path)
        file.close()

    def attach(self, seals: BlockChecksums) -> None:
        """Set ``seals`` of each file that has a seal."""
        for file in self.files:
            if file.base in seals.bases:
                file.seals = seals

    def keep_seals(self, seals: BlockChecksums, end: int) -> None:
        """Remove the seals of all files that are not full, given the log's end ``end``.

        Call it before anything is written or cut at the end. Raises OSError.
        """
        full = {file.base for file in self.files if file.end <= end}
        for file in self.files:
            if file.base not in full:
                file.unseal()
        seals.keep(full)

    def close(self) -> None:
        """Close every file."""
        for file in self.files:
            file.close()
        self.files.clear()


def _fits_another(bases: list[int], sizes: list[int], file_bytes: int) -> bool:
    """Return whether all names and sizes fit one file size other than ``file_bytes``."""
    size = sizes[0] if sizes else file_bytes
    return size != file_bytes and all(
        base == bases[0] + number * size and (sizes[number] == size)
        for number, base in enumerate(bases)
    )


def remove_file(files: Files, path: str) -> None:
    """Delete a log file durably. Raises OSError.

    Its name is gone for good before the next file is deleted. Otherwise a power loss could undo one
    deletion and not the other, and leave a gap. May run in a thread.
    """
    files.unlink(path)
    files.sync_directory(os.path.dirname(path))
