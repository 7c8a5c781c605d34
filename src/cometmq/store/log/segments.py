"""Segments of the commit log: files of one size that form one address space.

A :class:`LogFile` is one segment: a handle for reads and writes, and a read-only memory map that is
made on first use.
"""

from __future__ import annotations

import errno
import logging
import os.path
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cometmq.core.errors import SettingsError, StoreCorrupt
from cometmq.store.files import is_zero
from cometmq.store.layout import file_name
from cometmq.store.log.checksums import BLOCK_BYTES
from cometmq.store.log.directories import NO_ROOM, LogDirectories, has_data, placed

if TYPE_CHECKING:
    from cometmq.store.files import Buffer, Files, Residency
    from cometmq.store.log.checksums import BlockChecksums

logger = logging.getLogger(__name__)

_CHUNK_BYTES = 1 << 20


class LogFile:
    """The file that holds the log from ``base`` up to ``end``.

    ``seals`` is set once the file has a seal with the checksums of its blocks. ``damaged`` holds
    the physical offsets of blocks that differ from the seal; their bytes are not served. ``linked``
    says that a snapshot holds a hard link to the file. Before the file changes for the first time,
    its seal is removed, and a linked file is replaced by a copy, so that the snapshot keeps the old
    contents.
    """

    __slots__ = (
        "_files",
        "_is_moving",
        "_is_resident",
        "_old_handles",
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
        #: Handles of files that were replaced while a thread used them.
        self._old_handles: list[int] = []
        self._is_moving = False
        self.closed = False
        self.linked = files.link_count(handle) > 1
        self.seals: BlockChecksums | None = None
        self.damaged: set[int] = set()
        self.path = path
        self.base = base
        self.size_bytes = size_bytes
        self.end = base + size_bytes
        self.handle = handle

    @classmethod
    def create(cls, files: Files, directory: str, base: int, size_bytes: int) -> LogFile:
        """Create a file of zeros with its space allocated and its name durable.

        Raises OSError; then no file is left.
        """
        path = os.path.join(directory, file_name(base))
        handle = files.open(path, create=True)
        try:
            files.allocate(handle, size_bytes)
            files.datasync(handle)
            files.sync_directory(directory)
        except OSError as error:
            files.close(handle)
            files.unlink(path)
            raise placed(error, path) from error
        return cls(files, path, base, size_bytes, handle)

    @property
    def view(self) -> memoryview:
        """The file's bytes, through a memory map."""
        view = self._view
        if view is None:
            view = self._view = self._files.map(self.handle, self.size_bytes)
        return view

    def unmap(self) -> None:
        """Release the memory map; views in use keep it open."""
        self._view = self._is_resident = None

    def take_map(self) -> list[object]:
        """Return the objects that hold the memory map, and forget them.

        The map ends when the list is cleared. That takes up to 20 ms for 64 MiB, so a thread should
        do it.
        """
        held: list[object] = [self._view, self._is_resident]
        self.unmap()
        return held

    def write(self, offset: int, data: Buffer) -> None:
        """Write ``data`` at a physical offset of this file. Raises OSError, with a path."""
        if self.linked or self.seals is not None:
            self._detach()
        try:
            self._files.pwrite(self.handle, data, offset - self.base)
        except OSError as error:
            raise placed(error, self.path) from error

    def read_cached(self, buffer: memoryview, offset: int) -> int:
        """Fill ``buffer`` from a physical offset with bytes in the page cache; return their number.

        The number is smaller than the buffer if the device would have to be read.
        """
        return self._files.read_cached(self.handle, buffer, offset - self.base)

    def will_need(self, start: int, stop: int) -> None:
        """Ask the system to read the bytes between two physical offsets ahead, without waiting."""
        self._files.will_need(self.handle, start - self.base, stop - start)

    def read_into(self, buffer: bytearray | memoryview, offset: int) -> int:
        """Fill ``buffer`` from a physical offset with ``pread``; return the number of bytes."""
        return self._files.read_into(self.handle, buffer, offset - self.base)

    def resident(self, start: int, stop: int) -> memoryview | None:
        """Return the bytes between two physical offsets if all are in memory.

        Returns None if the device would have to be read.
        """
        view = self.view
        if self._is_resident is None:
            self._is_resident = self._files.residency(view)
        start, stop = start - self.base, stop - self.base
        return view[start:stop] if self._is_resident(start, stop) else None

    def next_data(self, offset: int) -> int:
        """Return the first physical offset from ``offset`` on that may hold nonzero bytes.

        Returns ``end`` if there is none.
        """
        return self.base + self._files.next_data(self.handle, offset - self.base)

    def clear_from(self, offset: int) -> None:
        """Zero all bytes from a physical offset on, durably. Raises OSError."""
        if self.linked or self.seals is not None:
            self._detach()
        # Do not truncate and extend the file: a crash in between would leave it too short.
        files, handle = self._files, self.handle
        at = files.next_data(handle, offset - self.base)
        while at < self.size_bytes:
            zeros = bytes(min(_CHUNK_BYTES, self.size_bytes - at))
            if self._differs(at, zeros):
                files.pwrite(handle, zeros, at)
            at = files.next_data(handle, at + len(zeros))
        files.datasync(handle)

    def _differs(self, position: int, expected: bytes) -> bool:
        try:
            return self._files.pread(self.handle, len(expected), position) != expected
        except OSError:
            return True

    def is_zero(self) -> bool:
        """Return whether the file has only zeros."""
        return not has_data(self._files, self.handle, self.size_bytes)

    def _detach(self) -> None:
        """Remove the file's seal, and replace a linked file with a copy of its own."""
        if self.seals is not None:
            self.seals.forget([self.base])
            self.unseal()
        if not self.linked:
            return
        # Not in the log directory: a Java broker takes every file there for a log file.
        directory, name = os.path.split(self.path)
        draft = os.path.join(os.path.dirname(directory), f"cometmq-copy-{name}")
        handle = self._files.open(draft, create=True)
        try:
            self._files.allocate(handle, self.size_bytes)
            chunk = bytearray(min(_CHUNK_BYTES, self.size_bytes))
            for at in range(0, self.size_bytes, len(chunk)):
                view = memoryview(chunk)[: self.size_bytes - at]
                self._files.read_into(self.handle, view, at)
                self._files.pwrite(handle, view, at)
            self._files.datasync(handle)
            # The copy is durable before it gets the name: a crash leaves the old file or a whole
            # copy.
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
        if self._pins:
            self._old_handles.append(old)
        else:
            self._files.close(old)
        self.unmap()

    def unseal(self) -> None:
        """Detach the seal and forget the damage that it revealed."""
        self.seals = None
        self.damaged.clear()

    def find_damage(self, start: int, stop: int) -> int:
        """Return the offset of the first damaged block with bytes between two physical offsets.

        Returns -1 if there is none.
        """
        if not self.damaged:
            return -1
        first = start - (start - self.base) % BLOCK_BYTES
        return next((at for at in range(first, stop, BLOCK_BYTES) if at in self.damaged), -1)

    def differs(self, offset: int) -> bool:
        """Return whether the block at a physical offset differs from its seal or cannot be read.

        A thread may call this.
        """
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
        """Sync all written bytes to the device and wait for it. A thread may call this.

        Raises OSError, with a path, also if the file was deleted or replaced from outside: what was
        written to it would be lost when the handle is closed.
        """
        handle = self.handle
        try:
            self._files.datasync(handle)
        except OSError as error:
            raise placed(error, self.path) from error
        self.check_name(handle)

    def check_name(self, handle: int) -> None:
        """Raise FileNotFoundError if the open file was deleted or replaced from outside.

        ``handle`` is the handle that was synced: the store itself may have replaced or closed it
        since, which is no error.
        """
        if self._files.is_same_file(handle, self.path):
            return
        if not (self.closed or self._is_moving) and handle == self.handle:
            raise FileNotFoundError(
                errno.ENOENT, "it was deleted or replaced while the broker was running", self.path
            )

    def pin(self) -> None:
        """Keep the handle open for a read in a thread, until :meth:`unpin`."""
        self._pins += 1

    @property
    def is_pinned(self) -> bool:
        """True while a thread uses the file."""
        return self._pins > 0

    def unpin(self) -> None:
        """Undo one :meth:`pin`; close the handles that no thread uses any longer."""
        self._pins -= 1
        if self._pins:
            return
        while self._old_handles:
            self._files.close(self._old_handles.pop())
        if self.closed:
            self._files.close(self.handle)

    def close(self) -> None:
        """Release the map, and close the handle once no thread uses it."""
        self.unmap()
        self.closed = True
        if not self._pins:
            self._files.close(self.handle)


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
    """Contiguous log files of one size. ``files`` is in order and may be empty.

    ``places`` are the directories in which they are; ``directory`` names them in messages.
    """

    __slots__ = ("_files", "_first", "directory", "file_bytes", "files", "places")

    def __init__(self, files: Files, place: str | LogDirectories, file_bytes: int) -> None:
        self._files = files
        self._first = 0
        self.places = LogDirectories(files, (place,)) if isinstance(place, str) else place
        self.directory = self.places.text
        self.file_bytes = file_bytes
        self.files: list[LogFile] = []

    def load(
        self, mend: Callable[[FileFault], None] | None = None, *, size_is_sure: bool = False
    ) -> None:
        """Open the log files in all directories.

        If a crash interrupted the creation of the last file, so that it has another size and only
        zeros, it is removed. ``mend`` is called for each other file with a wrong size and for each
        file missing between others, until there is none; without ``mend``, StoreCorrupt is raised.
        ``size_is_sure`` means that the store is known to have files of this size.
        """
        self.places.settle_twins(self.file_bytes)
        while (fault := self._find_fault(size_is_sure)) is not None:
            if mend is None:
                raise StoreCorrupt(fault.path, fault.base, fault.problem)
            mend(fault)
        for base, path in self.places.found():
            handle = self._files.open(path)
            self.files.append(LogFile(self._files, path, base, self.file_bytes, handle))
        self._first = self.files[0].base if self.files else 0

    def _find_fault(self, size_is_sure: bool) -> FileFault | None:
        found = self.places.found()
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
                missing = os.path.join(
                    self.places.usual(before // self.file_bytes), file_name(before)
                )
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
            if not is_zero(self._files, handle, size_bytes):
                return False
        finally:
            self._files.close(handle)
        logger.warning("log_file_removed path=%s size=%d reason=unfinished", path, size_bytes)
        self.places.leave(path)
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
        """Return the free bytes of the file system, or of the best one of several directories."""
        return self.places.free_bytes()

    def create_file(self, base: int) -> LogFile:
        """Create the file that begins at ``base``, without adding it. Raises OSError.

        May run in a thread.
        """
        *others, last = self.places.choices(base // self.file_bytes)
        for directory in others:
            try:
                return self._create_in(directory, base)
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise
                # There may be no room for the note, which a directory with log files does not need.
                logger.warning("no_room_for_log_file base=%d path=%s", base, error.filename)
        return self._create_in(last, base)

    def _create_in(self, directory: str, base: int) -> LogFile:
        try:
            file = LogFile.create(self._files, directory, base, self.file_bytes)
        except OSError:
            # A removal meanwhile may have counted the failed file as another log file of this
            # directory, and left the directory in the note.
            with suppress(OSError):
                self.places.leave(os.path.join(directory, file_name(base)))
            raise
        try:
            self.places.note_file(file.path)
        except OSError:
            file.close()
            self._files.unlink(file.path)
            raise
        return file

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
            self.places.remove(file.path)

    def check_changeable(self, start: int) -> None:
        """Raise SettingsError if a read-only directory has the file of ``start``, or later data.

        Then the log cannot end at ``start``. Call it before anything is written or cut there.
        """
        if not self.places.read_only:
            return
        for file in self.files:
            if file.end > start and (file.base < start or not file.is_zero()):
                self.check_writable(file.path)

    def check_writable(self, path: str) -> None:
        """Raise SettingsError if a log file is in a read-only directory."""
        if self.places.is_read_only(path):
            raise SettingsError(
                "readOnlyCommitLogStorePaths",
                f"{path} has to be written to, and nothing is written there: start once without "
                "its directory in this setting, or move the file to another directory of "
                "storePathCommitLog",
            )

    def leave_read_only(self, end: int) -> None:
        """Delete unused files after the log's end ``end`` if one is in a read-only directory.

        New ones are created in other directories. Raises SettingsError if a file after the end has
        data. Raises OSError.
        """
        behind = [file for file in self.files if file.base >= end]
        for file in behind:
            if self.places.is_read_only(file.path):
                if not all(each.is_zero() for each in behind):
                    self.check_writable(file.path)
                self.drop_after(end - 1)
                return

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
