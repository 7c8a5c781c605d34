"""The log files in order, as one address space: find, add, cut, drop."""

from __future__ import annotations

import logging
import os.path
from typing import TYPE_CHECKING

from cometmq.core.errors import StoreCorrupt
from cometmq.store.layout import file_offset
from cometmq.store.mapped import LogFile

if TYPE_CHECKING:
    from cometmq.store.files import Files

logger = logging.getLogger(__name__)


class Segments:
    """Contiguous files of one size. ``files`` is in order and may be empty."""

    __slots__ = ("_files", "_first", "directory", "file_bytes", "files")

    def __init__(self, files: Files, directory: str, file_bytes: int) -> None:
        self._files = files
        self._first = 0
        self.directory = directory
        self.file_bytes = file_bytes
        self.files: list[LogFile] = []

    def load(self) -> None:
        """Open what the directory holds.

        A last file that was never filled with its zeros (a crash while it was made) is removed.
        Raises StoreCorrupt when a file is missing in between or has another size.
        """
        found = [
            (offset, name)
            for name in self._files.names(self.directory)
            if (offset := file_offset(name)) is not None
        ]
        for number, (base, name) in enumerate(found):
            path = os.path.join(self.directory, name)
            if number and base != found[number - 1][0] + self.file_bytes:
                raise StoreCorrupt(
                    path, base, f"the log has a gap before it (files of {self.file_bytes} bytes)"
                )
            handle = self._files.open(path)
            size = self._files.size(handle)
            if size != self.file_bytes:
                self._files.close(handle)
                if number == len(found) - 1 and self._is_unused(path, size):
                    break
                raise StoreCorrupt(
                    path,
                    base,
                    f"it is {size} bytes long, mappedFileSizeCommitLog is {self.file_bytes}: "
                    "start with the size that the store was written with",
                )
            self.files.append(LogFile(self._files, path, base, size, handle))
        self._first = self.files[0].base if self.files else 0

    def _is_unused(self, path: str, size_bytes: int) -> bool:
        handle = self._files.open(path)
        head = self._files.pread(handle, min(size_bytes, 8), 0)
        self._files.close(handle)
        if any(head):
            return False
        logger.warning("log_file_removed path=%s size=%d reason=unfinished", path, size_bytes)
        self._files.unlink(path)
        return True

    @property
    def start(self) -> int:
        """First offset that a file holds."""
        return self._first

    @property
    def end(self) -> int:
        """End of the last file; 0 with none."""
        return self.files[-1].end if self.files else 0

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
        assert not self.files or file.base == self.end
        if not self.files:
            self._first = file.base
        self.files.append(file)

    def drop_after(self, offset: int) -> None:
        """Remove the files that begin behind ``offset``."""
        while self.files and self.files[-1].base > offset:
            file = self.files.pop()
            self._let_go(file)
            self._files.unlink(file.path)

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

    def close(self) -> None:
        """Close every file."""
        for file in self.files:
            file.close()
        self.files.clear()
