"""One log file: a handle for writing, and a read-only map that is made when first read."""

from __future__ import annotations

import os.path
from typing import TYPE_CHECKING

from cometmq.store.layout import file_name

if TYPE_CHECKING:
    from cometmq.store.files import Buffer, Files


class LogFile:
    """The file that holds the log from ``base`` up to ``end``."""

    __slots__ = (
        "_files",
        "_pins",
        "_view",
        "base",
        "closed",
        "end",
        "handle",
        "path",
        "size_bytes",
    )

    def __init__(self, files: Files, path: str, base: int, size_bytes: int, handle: int) -> None:
        self._files = files
        self._view: memoryview | None = None
        self._pins = 0
        self.closed = False
        self.path = path
        self.base = base
        self.size_bytes = size_bytes
        self.end = base + size_bytes
        self.handle = handle

    @classmethod
    def create(cls, files: Files, directory: str, base: int, size_bytes: int) -> LogFile:
        """Make a file of zeros with its room taken, and its name durable.

        Raises OSError; then nothing of it is left.
        """
        path = os.path.join(directory, file_name(base))
        handle = files.open(path, create=True)
        try:
            files.allocate(handle, size_bytes)
            files.datasync(handle)
            files.sync_directory(directory)
        except OSError:
            files.close(handle)
            files.unlink(path)
            raise
        return cls(files, path, base, size_bytes, handle)

    @property
    def view(self) -> memoryview:
        """The file's bytes, through a map."""
        view = self._view
        if view is None:
            view = self._view = self._files.map(self.handle, self.size_bytes)
        return view

    def write(self, offset: int, data: Buffer) -> None:
        """Put ``data`` at a physical offset of this file. Raises OSError."""
        self._files.pwrite(self.handle, data, offset - self.base)

    def read_into(self, buffer: bytearray | memoryview, offset: int) -> int:
        """Fill ``buffer`` from a physical offset without the map; gives the bytes read."""
        return self._files.read_into(self.handle, buffer, offset - self.base)

    def clear_from(self, offset: int) -> None:
        """Zero everything from a physical offset on, durably. Raises OSError."""
        self._files.resize(self.handle, offset - self.base)
        self._files.allocate(self.handle, self.size_bytes)
        self._files.datasync(self.handle)

    def sync(self) -> None:
        """Return once what was written is on the device. Raises OSError."""
        self._files.datasync(self.handle)

    def pin(self) -> None:
        """Keep the handle open for a read in a thread, until :meth:`unpin`."""
        self._pins += 1

    def unpin(self) -> None:
        """The reverse of :meth:`pin`."""
        self._pins -= 1
        if self.closed and not self._pins:
            self._files.close(self.handle)

    def close(self) -> None:
        """Give the handle back once no read uses it; views in use keep their map."""
        self._view = None
        self.closed = True
        if not self._pins:
            self._files.close(self.handle)
