"""The log files in order, as one address space: find, add, cut, drop."""

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
    from cometmq.store.log.checksums import Seals

logger = logging.getLogger(__name__)

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class FileFault:
    """What is wrong with one log file: ``size_bytes`` is -1 for a file that is not there.

    ``next_base`` is where the first file behind it begins, -1 with none. ``settings_differ`` says
    that more likely the setting of the files' size is wrong than the file.
    """

    path: str
    base: int
    size_bytes: int
    next_base: int
    settings_differ: bool
    problem: str


class Segments:
    """Contiguous files of one size. ``files`` is in order and may be empty."""

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
        """Open what the directory holds.

        A last file that was never filled with its zeros (a crash while it was made) is removed.
        ``mend`` is called for a file that is missing in between or has another size, until there is
        none; without it StoreCorrupt is raised. ``size_is_sure`` says that the store was written
        with files of this size.
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
                    f"this log file is missing, the next one begins at {base}",
                )  # fmt: skip
            if sizes[number] != self.file_bytes:
                problem = (
                    f"it is {sizes[number]} bytes long, mappedFileSizeCommitLog is "
                    f"{self.file_bytes}"
                )
                if differ:
                    problem += ": start with the size that the store was written with"
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
        """First offset that a file holds."""
        return self._first

    @property
    def end(self) -> int:
        """End of the last file; with none, where the first one would begin."""
        return self.files[-1].end if self.files else self._first

    def find(self, offset: int) -> LogFile | None:
        """The file that holds ``offset``; None when no file does."""
        number = (offset - self._first) // self.file_bytes
        return self.files[number] if 0 <= number < len(self.files) else None

    def free_bytes(self) -> int:
        """Room left on the device."""
        return self._files.disk_space(self.directory).free_bytes

    def create_file(self, base: int) -> LogFile:
        """Make the file for ``base`` without adding it; may run in a thread. Raises OSError."""
        return LogFile.create(self._files, self.directory, base, self.file_bytes)

    def add(self, file: LogFile) -> None:
        """Put a file behind the last one."""
        assert file.base == self.end or not self.files
        if not self.files:
            self._first = file.base
        self.files.append(file)

    def detach_behind(self, offset: int) -> list[LogFile]:
        """Let go of the files that begin behind ``offset``; they are returned closed, and stay."""
        kept = [file for file in self.files if file.base <= offset]
        gone = self.files[len(kept) :]
        self.files = kept
        for file in gone:
            self._let_go(file)
        return gone

    def drop_after(self, offset: int) -> None:
        """Remove the files that begin behind ``offset``, last first. Raises OSError."""
        for file in reversed(self.detach_behind(offset)):
            remove_file(self._files, file.path)

    def restart_at(self, offset: int) -> None:
        """Begin at ``offset``, without the files there are. Raises OSError."""
        self.drop_after(-1)
        self._first = offset

    def drop_first(self) -> LogFile:
        """Let go of the oldest file. It is returned closed, and its name is the caller's to
        unlink: that may take long."""
        file = self.files.pop(0)
        self._first = self.files[0].base if self.files else file.end
        self._let_go(file)
        return file

    def _let_go(self, file: LogFile) -> None:
        logger.info("log_file_dropped path=%s", file.path)
        file.close()

    def attach(self, seals: Seals) -> None:
        """Give ``seals`` to the files that have one."""
        for file in self.files:
            if file.base in seals.bases:
                file.seals = seals

    def keep_seals(self, seals: Seals, end: int) -> None:
        """Remove every seal but those of files that are full up to ``end``, the log's end.

        Call it before anything is written or cut there. Raises OSError.
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
    """Whether names and sizes fit each other, but not ``file_bytes``."""
    size = sizes[0] if sizes else file_bytes
    return size != file_bytes and all(
        base == bases[0] + number * size and (sizes[number] == size)
        for number, base in enumerate(bases)
    )


def remove_file(files: Files, path: str) -> None:
    """Take a log file's name away for good, before that of its neighbour: a power cut could undo
    one removal and not the other, and leave a gap. A thread may do it. Raises OSError."""
    files.unlink(path)
    files.sync_directory(os.path.dirname(path))
