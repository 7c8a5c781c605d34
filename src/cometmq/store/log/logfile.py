"""One log file: a handle for writing, and a read-only map that is made when first read."""

from __future__ import annotations

import errno
import os.path
from typing import TYPE_CHECKING

from cometmq.store.layout import file_name
from cometmq.store.log.checksums import BLOCK_BYTES

if TYPE_CHECKING:
    from cometmq.store.files import Buffer, Files, Residency
    from cometmq.store.log.checksums import Seals

_COPY_BYTES = 1 << 20


class LogFile:
    """The file that holds the log from ``base`` up to ``end``.

    ``seals`` has checksums of its blocks once it is full; ``damaged`` are the physical offsets of
    blocks that were found to differ, whose bytes are for nobody. ``linked`` says that a snapshot
    holds the same file. Before the first change of a file that is sealed or linked its seal goes
    and the snapshot keeps the old one.
    """

    __slots__ = (
        "_files",
        "_is_moving",
        "_is_resident",
        "_pins",
        "_view",
        "base",
        "closed",
        "damaged",
        "end",
        "handle",
        "linked",
        "path",
        "seals",
        "size_bytes",
    )

    def __init__(self, files: Files, path: str, base: int, size_bytes: int, handle: int) -> None:
        self._files = files
        self._view: memoryview | None = None
        self._is_resident: Residency | None = None
        self._pins = 0
        self._is_moving = False
        self.closed = False
        self.linked = files.names_of(handle) > 1
        self.seals: Seals | None = None
        self.damaged: set[int] = set()
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

    def unmap(self) -> None:
        """Let go of the map; views in use keep it."""
        self._view = self._is_resident = None

    def write(self, offset: int, data: Buffer) -> None:
        """Put ``data`` at a physical offset of this file. Raises OSError."""
        if self.linked or self.seals is not None:
            self._detach()
        self._files.pwrite(self.handle, data, offset - self.base)

    def read_cached(self, buffer: memoryview, offset: int) -> int:
        """Fill ``buffer`` from a physical offset with what the system has in memory; gives the
        bytes read, fewer where the device would have to be asked."""
        return self._files.read_cached(self.handle, buffer, offset - self.base)

    def will_need(self, start: int, stop: int) -> None:
        """Have the system fetch the bytes between two physical offsets, without a wait."""
        self._files.will_need(self.handle, start - self.base, stop - start)

    def read_into(self, buffer: bytearray | memoryview, offset: int) -> int:
        """Fill ``buffer`` from a physical offset without the map; gives the bytes read."""
        return self._files.read_into(self.handle, buffer, offset - self.base)

    def resident(self, start: int, stop: int) -> memoryview | None:
        """Bytes between two physical offsets when the system has all of them in memory; None when
        it would have to ask the device."""
        view = self.view
        if self._is_resident is None:
            self._is_resident = self._files.residency(view)
        start, stop = start - self.base, stop - self.base
        return view[start:stop] if self._is_resident(start, stop) else None

    def next_data(self, offset: int) -> int:
        """Where bytes begin, from a physical offset on, that need not be zeros; ``end`` when none
        do."""
        return self.base + self._files.next_data(self.handle, offset - self.base)

    def clear_from(self, offset: int) -> None:
        """Zero everything from a physical offset on, durably. Raises OSError."""
        if self.linked or self.seals is not None:
            self._detach()
        # Not by cutting it off and growing it again: a crash in between would leave a short file.
        files, handle = self._files, self.handle
        at = files.next_data(handle, offset - self.base)
        while at < self.size_bytes:
            zeros = bytes(min(_COPY_BYTES, self.size_bytes - at))
            if self._differs(at, zeros):
                files.pwrite(handle, zeros, at)
            at = files.next_data(handle, at + len(zeros))
        files.datasync(handle)

    def _differs(self, position: int, expected: bytes) -> bool:
        try:
            return self._files.pread(self.handle, len(expected), position) != expected
        except OSError:
            return True

    def _detach(self) -> None:
        """Make it a file that nobody else knows anything of."""
        if self.seals is not None:
            self.seals.forget([self.base])
            self.unseal()
        if not self.linked:
            return
        # Not beside the log files: a Java broker takes whatever is there for one.
        directory, name = os.path.split(self.path)
        draft = os.path.join(os.path.dirname(directory), f"cometmq-copy-{name}")
        handle = self._files.open(draft, create=True)
        try:
            self._files.allocate(handle, self.size_bytes)
            chunk = bytearray(min(_COPY_BYTES, self.size_bytes))
            for at in range(0, self.size_bytes, len(chunk)):
                view = memoryview(chunk)[: self.size_bytes - at]
                self._files.read_into(self.handle, view, at)
                self._files.pwrite(handle, view, at)
            self._files.datasync(handle)
            self._is_moving = True
            self._files.rename(draft, self.path)
            self._files.sync_directory(directory)
        except OSError:
            self._is_moving = False
            self._files.close(handle)
            self._files.unlink(draft)
            raise
        old, self.handle, self.linked = self.handle, handle, False
        self._is_moving = False
        self._files.close(old)
        self.unmap()

    def unseal(self) -> None:
        """There is no seal to compare with."""
        self.seals = None
        self.damaged.clear()

    def find_damage(self, start: int, stop: int) -> int:
        """Where the first damaged block begins that holds bytes between two physical offsets; -1
        with none."""
        if not self.damaged:
            return -1
        first = start - (start - self.base) % BLOCK_BYTES
        return next((at for at in range(first, stop, BLOCK_BYTES) if at in self.damaged), -1)

    def differs(self, offset: int) -> bool:
        """Whether the block at a physical offset is not what it was when the file was full, or
        cannot be read. A thread may ask."""
        if (seals := self.seals) is None:
            return False
        block = memoryview(bytearray(min(BLOCK_BYTES, self.end - offset)))
        try:
            seal = seals.of(self.base)
            found = block[: self.read_into(block, offset)]
        except OSError:
            return True
        return seal is None or not seal.holds((offset - self.base) // BLOCK_BYTES, found)

    def sync(self) -> None:
        """Return once what was written is on the device. A thread may do it.

        Raises OSError, also when somebody deleted the file or moved it away: what was written to it
        goes with the handle.
        """
        handle = self.handle
        self._files.datasync(handle)
        if self._files.is_at(handle, self.path):
            return
        # Meanwhile the store itself may have put another in its place, or let go of it.
        if not (self.closed or self._is_moving) and handle == self.handle:
            raise FileNotFoundError(
                errno.ENOENT, "it was deleted or replaced while the broker runs", self.path
            )

    def pin(self) -> None:
        """Keep the handle open for a read in a thread, until :meth:`unpin`."""
        self._pins += 1

    @property
    def is_pinned(self) -> bool:
        """Whether a thread reads it."""
        return self._pins > 0

    def unpin(self) -> None:
        """The reverse of :meth:`pin`."""
        self._pins -= 1
        if self.closed and not self._pins:
            self._files.close(self.handle)

    def close(self) -> None:
        """Give the handle back once no read uses it."""
        self.unmap()
        self.closed = True
        if not self._pins:
            self._files.close(self.handle)
