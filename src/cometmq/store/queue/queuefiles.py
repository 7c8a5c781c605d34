"""The files of consume queues: handles, reads and writes at byte positions, syncs, removal.

Files have their full length from the start, because Java brokers refuse files of another length.
They are sparse, with zeros after the last entry. Handles are kept in a bounded LRU cache, so only
memory limits the number of queues.

The files of removed queues are moved aside in one step and deleted from the disk later:

    consumequeue/.deleted/pending-<n>   the removal is not durably recorded yet
    consumequeue/.deleted/gone-<n>      may be deleted from the disk

No topic can have the name ``.deleted``, and Java brokers ignore it. A start that finds pending
files does not know whether their queues should exist, so it dispatches the whole log again.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os.path
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from cometmq.core.errors import StoreCorrupt
from cometmq.store.files import exhaust, rewrite_in_place
from cometmq.store.layout import QUEUE_ENTRY_BYTES, file_name, file_offset

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from cometmq.store.files import Buffer, Files

logger = logging.getLogger(__name__)

FOLDER: Final = ".deleted"
_PENDING: Final = "pending-"
_GONE: Final = "gone-"


class Removals:
    """The files that were moved aside; ``directory`` is the directory of all queues."""

    __slots__ = ("_files", "_has_work", "_numbers", "directory")

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self.directory = os.path.join(directory, FOLDER)
        taken = [name.rpartition("-")[2] for name in files.names(self.directory)]
        self._numbers = count(max((int(text) for text in taken if text.isdecimal()), default=0) + 1)
        self._has_work = asyncio.Event()
        self._has_work.set()

    @property
    def unfinished(self) -> bool:
        """True if files are pending."""
        return any(name.startswith(_PENDING) for name in self._files.names(self.directory))

    def set_aside(self, topic_path: str) -> str:
        """Move the directory of a topic aside, as pending, and return its new path.

        The directory need not exist. Raises OSError, and then leaves it in its place.
        """
        files = self._files
        if not files.exists(self.directory):
            files.make_directory(self.directory)
        pending = os.path.join(self.directory, f"{_PENDING}{next(self._numbers)}")
        if files.exists(topic_path):
            files.rename(topic_path, pending)
        else:
            files.make_directory(pending)
        return pending

    def discard(self, queue_paths: Iterable[str]) -> None:
        """Move directories of queues aside, for deletion. Raises OSError."""
        gone = os.path.join(self.directory, f"{_GONE}{next(self._numbers)}")
        self._files.make_directory(gone)
        for path in queue_paths:
            self._files.rename(path, os.path.join(gone, os.path.basename(path)))
        self._has_work.set()

    def settle(self, pending: str) -> None:
        """Release pending files for deletion. Raises OSError."""
        name = os.path.basename(pending).replace(_PENDING, _GONE)
        self._files.rename(pending, os.path.join(self.directory, name))
        self._has_work.set()

    def settle_all(self) -> None:
        """Release all pending files for deletion. Raises OSError."""
        for name in self._files.names(self.directory):
            if name.startswith(_PENDING):
                self.settle(os.path.join(self.directory, name))

    async def run(self, executor: Executor) -> None:
        """Delete what may be deleted, also leftovers of earlier runs, until cancelled."""
        while True:
            await self._has_work.wait()
            self._has_work.clear()
            try:
                await self._remove_gone(executor)
            except OSError as error:
                logger.error("deleted_queues_not_removed path=%s error=%r", self.directory, error)

    async def _remove_gone(self, executor: Executor) -> None:
        async def in_thread(call: Callable[..., Any], *values: object) -> Any:
            return await asyncio.get_running_loop().run_in_executor(executor, call, *values)

        files = self._files
        for name in await in_thread(files.names, self.directory):
            if name.startswith(_GONE):
                gone = os.path.join(self.directory, name)
                # One file per call: each call is short, and other work of the executor can run in
                # between.
                for below in await in_thread(files.names, gone):
                    folder = os.path.join(gone, below)
                    # ``remove_tree`` removes everything else.
                    with suppress(NotADirectoryError, IsADirectoryError):
                        for file in await in_thread(files.names, folder):
                            await in_thread(files.unlink, os.path.join(folder, file))
                await in_thread(files.remove_tree, gone)


#: For more files than this, a sync of the whole file system is faster.
_SYNC_LIMIT = 512
#: Limits of ``kept_bytes`` and ``long_bytes``: of one queue, and of all queues together.
_KEPT_BYTES = 1_280
_KEPT_IN_ALL_BYTES = 32 << 20
_LONG_BYTES = 20_000
_LONG_IN_ALL_BYTES = 256 << 20


_CLEAR_BYTES = 1 << 16


class QueueFiles:
    """The files of all queues: an LRU cache of handles, and the set of unsynced files.

    ``kept_bytes`` is the size of the written entries that a queue keeps in memory. A queue with
    ``long_bytes`` of entries in memory is written at once, out of turn. For more than
    ``sync_limit`` files, the whole file system is synced.
    """

    __slots__ = (
        "_all_unsynced",
        "_failed",
        "_files",
        "_handles",
        "_limit",
        "_logged",
        "directory",
        "file_bytes",
        "kept_bytes",
        "long_bytes",
        "lost",
        "new_directories",
        "queue_count",
        "removals",
        "sync_limit",
        "unsynced",
    )

    def __init__(self, files: Files, directory: str, file_bytes: int, limit: int = 256) -> None:
        self._files = files
        self._handles: OrderedDict[str, int] = OrderedDict()
        self._limit = limit
        self._failed: set[str] = set()
        self._all_unsynced = False
        self.directory = directory
        self.removals = Removals(files, directory)
        self.file_bytes = file_bytes
        self.kept_bytes = _KEPT_BYTES
        self.long_bytes = _LONG_BYTES
        self.sync_limit = _SYNC_LIMIT
        self.queue_count = 0
        #: Files that were found deleted from outside while the broker runs; the next start rebuilds
        #: them.
        self.lost: set[str] = set()
        self._logged: set[str] = set()
        self.unsynced: set[str] = set()
        self.new_directories: set[str] = set()

    def share_memory(self, queue_count: int) -> None:
        """Divide the memory for entries among ``queue_count`` queues."""
        share = _KEPT_IN_ALL_BYTES // queue_count
        self.kept_bytes = min(_KEPT_BYTES, share - share % QUEUE_ENTRY_BYTES)
        self.long_bytes = min(_LONG_BYTES, _LONG_IN_ALL_BYTES // queue_count)

    def _handle(self, path: str, *, create: bool) -> int:
        handle = self._handles.get(path)
        if handle is not None:
            self._handles.move_to_end(path)
            return handle
        try:
            handle = self._files.open(path)
        except FileNotFoundError:
            if not create:
                raise
            handle = self._create(path)
        else:
            if create:
                self._lengthen(handle)
        self._handles[path] = handle
        if len(self._handles) > self._limit:
            self._files.close(self._handles.popitem(last=False)[1])
        return handle

    def _create(self, path: str) -> int:
        directory = os.path.dirname(path)
        if not self._files.exists(directory):
            self._files.make_directory(directory)
            self.queue_count += 1
        self._mark_names_unsynced(directory)
        handle = self._files.open(path, create=True)
        try:
            self._files.resize(handle, self.file_bytes)
        except OSError:
            # Leave no file of another length: it would be used later, and Java brokers refuse it.
            self._files.close(handle)
            with suppress(OSError):
                self._files.unlink(path)
            raise
        return handle

    def _lengthen(self, handle: int) -> None:
        """Extend a file that did not get its full length when it was created."""
        try:
            if self._files.size(handle) < self.file_bytes:
                self._files.resize(handle, self.file_bytes)
        except OSError:
            self._files.close(handle)
            raise

    def _mark_names_unsynced(self, directory: str) -> None:
        while len(directory) >= len(os.path.dirname(self.directory)):
            self.new_directories.add(directory)
            directory = os.path.dirname(directory)

    def write(self, directory: str, position: int, data: Buffer, *, begins: bool = False) -> None:
        """Write entries at a byte position of a queue, across files if needed.

        ``begins`` says that the queue has no earlier entries. Otherwise a missing file, which must
        have some, raises FileNotFoundError. Raises OSError.
        """
        view = memoryview(data)
        while view:
            base = position - position % self.file_bytes
            room = base + self.file_bytes - position
            path = os.path.join(directory, file_name(base))
            if position > base and path not in self._handles and not begins:
                self._check_there(path)
            self._files.pwrite(self._handle(path, create=True), view[:room], position - base)
            self.unsynced.add(path)
            position += min(room, len(view))
            view = view[room:]

    def _check_there(self, path: str) -> None:
        if self._files.exists(path):
            return
        # A new file would have zeros for the earlier entries: consumers would not get their
        # messages.
        if path not in self.lost:
            self.lost.add(path)
            logger.error("queue_file_lost path=%s", path)
        raise FileNotFoundError(
            errno.ENOENT,
            "it was deleted while the broker was running; restart the broker to create it again",
            path,
        )

    def read(self, directory: str, position: int, size_bytes: int) -> bytes:
        """Read entries from a byte position, at most up to the end of that file.

        Returns nothing if there is no such file.
        """
        base = position - position % self.file_bytes
        size = min(size_bytes, base + self.file_bytes - position)
        try:
            # The same as file_name and os.path.join, which would take as long as the read.
            handle = self._handle(f"{directory}{os.sep}{base:020d}", create=False)
        except FileNotFoundError:
            return b""
        return self._files.pread(handle, size, position - base)

    def read_cached(self, directory: str, position: int, size_bytes: int) -> bytearray | None:
        """Return the bytes of :meth:`read` if they are in memory; None if the device must be read.

        Raises StoreCorrupt if the file cannot be opened: the caller knows that it should exist.
        """
        base = position - position % self.file_bytes
        buffer = bytearray(min(size_bytes, base + self.file_bytes - position))
        path = f"{directory}{os.sep}{base:020d}"
        try:
            handle = self._handle(path, create=False)
            if self._files.read_cached(handle, buffer, position - base) < len(buffer):
                return None
        except OSError as error:
            if isinstance(error, FileNotFoundError):
                self.lost.add(path)
            raise self._unreadable(path, error) from error
        return buffer

    def fetch(self, directory: str, position: int, size_bytes: int) -> bytes:
        """Read as :meth:`read` does, through a separate handle, so that a thread may call it.

        Raises StoreCorrupt if the file cannot be read.
        """
        base = position - position % self.file_bytes
        path = os.path.join(directory, file_name(base))
        try:
            handle = self._files.open(path)
            try:
                size = min(size_bytes, base + self.file_bytes - position)
                return self._files.pread(handle, size, position - base)
            finally:
                self._files.close(handle)
        except OSError as error:
            raise self._unreadable(path, error) from error

    def _unreadable(self, path: str, error: OSError) -> StoreCorrupt:
        # Log it once: a refused consumer asks again and again.
        if path not in self._logged:
            self._logged.add(path)
            logger.error("queue_file_unreadable path=%s error=%r", path, str(error))
        return StoreCorrupt(
            path, -1, f"cannot read this queue file: {error.strerror}",
            ways_out=("repair it, or restart the broker, which creates lost files again",),
        )  # fmt: skip

    def bases(self, directory: str) -> list[int]:
        """Return the byte positions at which a queue's files begin, in order."""
        return [
            offset
            for name in self._files.names(directory)
            if (offset := file_offset(name)) is not None
        ]

    def is_clear(self, directory: str, position: int) -> bool:
        """Return whether the file at a byte position holds only zeros from there on."""
        base = position - position % self.file_bytes
        path = os.path.join(directory, file_name(base))
        if not self._files.exists(path):
            return True
        handle = self._handle(path, create=False)
        at = position - base
        while (at := self._files.next_data(handle, at)) < self.file_bytes:
            found = self._files.pread(handle, _CLEAR_BYTES - at % _CLEAR_BYTES, at)
            if found.count(0) != len(found):
                return False
            at += max(len(found), 1)
        return True

    def complete(self, directory: str, base: int) -> None:
        """Extend a file that is too short to its full length with zeros."""
        path = os.path.join(directory, file_name(base))
        self._files.resize(self._handle(path, create=False), self.file_bytes)
        self.unsynced.add(path)

    def cut(self, directory: str, position: int, bases: list[int]) -> None:
        """Zero everything from a byte position on, and drop later files."""
        for base in bases:
            if base > position:
                self.drop(directory, base)
            elif base <= position < base + self.file_bytes:
                path = os.path.join(directory, file_name(base))
                handle = self._handle(path, create=False)
                self._files.resize(handle, position - base)
                self._files.resize(handle, self.file_bytes)
                self.unsynced.add(path)

    def drop(self, directory: str, base: int) -> None:
        """Remove one file of a queue."""
        path = os.path.join(directory, file_name(base))
        self.forget(path)
        self._files.unlink(path)

    def forget(self, path: str) -> None:
        """Close the handle of a file that is being removed."""
        handle = self._handles.pop(path, None)
        if handle is not None:
            self._files.close(handle)
        self.unsynced.discard(path)

    def set_aside(self, topic: str) -> str:
        """Move all queues of a topic aside, as pending (see Removals), and return their new path.

        Raises OSError; then nothing has changed.
        """
        directory = os.path.join(self.directory, topic)
        count = len(self._files.names(directory))
        pending = self.removals.set_aside(directory)
        self.queue_count -= count
        self._moved(directory)
        return pending

    def discard(self, topic: str, queue_ids: Iterable[int]) -> None:
        """Remove the files of some queues of a topic, if there are any. Raises OSError."""
        paths = [os.path.join(self.directory, topic, str(queue_id)) for queue_id in queue_ids]
        found = [path for path in paths if self._files.exists(path)]
        self.removals.discard(found)
        self.queue_count -= len(found)
        for path in found:
            self._moved(path)

    def _moved(self, directory: str) -> None:
        inside = directory + os.sep
        for path in [path for path in self._handles if path.startswith(inside)]:
            self.forget(path)
        self.unsynced = {path for path in self.unsynced if not path.startswith(inside)}
        self.new_directories.update((self.directory, self.removals.directory))

    def take_unsynced(self) -> tuple[list[str], list[str]]:
        """Return the files and directories to sync; they count as synced unless given back."""
        paths, directories = list(self.unsynced), list(self.new_directories)
        self.unsynced = set()
        self.new_directories = set()
        return paths, directories

    def mark_unsynced(self, topics: Mapping[str, Collection[int]]) -> None:
        """Mark all files of some queues as unsynced, since their state on the device is unknown."""
        if sum(map(len, topics.values())) > self.sync_limit:
            self._all_unsynced = True
            return
        for topic, queue_ids in topics.items():
            for queue_id in queue_ids:
                directory = os.path.join(self.directory, topic, str(queue_id))
                self._mark_names_unsynced(directory)
                names = (file_name(base) for base in self.bases(directory))
                self.unsynced.update(os.path.join(directory, name) for name in names)

    def give_back(self, paths: list[str], directories: list[str]) -> None:
        """Mark files and directories as unsynced after a failed sync."""
        self.unsynced.update(paths)
        self.new_directories.update(directories)

    def rewrite_failed(self, paths: list[str]) -> Iterator[None]:
        """Rewrite those of the files whose last sync failed, in steps of 0.1 ms.

        Call it before :meth:`sync_paths`, in the thread that writes queues. In another thread, it
        could overwrite entries that are written between its read and its write. Raises OSError.
        """
        for path in sorted(self._failed.intersection(paths)):
            try:
                handle = self._files.open(path)
            except FileNotFoundError:
                continue
            try:
                yield from rewrite_in_place(self._files, handle)
            finally:
                self._files.close(handle)
            self._failed.discard(path)

    def sync_paths(self, paths: list[str], directories: list[str]) -> None:
        """Sync files and directories; a thread may call this. Raises OSError.

        It opens separate handles; for very many files it syncs the whole file system. After a
        failure, the next sync first writes the files again, because the kernel may have marked
        unwritten pages as clean. The failure is recorded here because the caller may have been
        cancelled.
        """
        try:
            self._sync_paths(paths, directories)
        except OSError:
            self._failed.update(paths)
            raise
        self._failed.difference_update(paths)

    def _sync_paths(self, paths: list[str], directories: list[str]) -> None:
        at_once = self._all_unsynced or len(paths) > self.sync_limit
        for path in sorted(self._failed.intersection(paths) if at_once else paths):
            try:
                handle = self._files.open(path)
            except FileNotFoundError:
                continue
            try:
                if path in self._failed:
                    exhaust(rewrite_in_place(self._files, handle))
                if not at_once:
                    self._files.datasync(handle)
            finally:
                self._files.close(handle)
        if at_once:
            if self._files.exists(self.directory):
                self._files.sync_filesystem(self.directory)
            self._all_unsynced = False
            directories = []
        for directory in sorted(directories):
            # The topic may have been deleted in the meantime.
            with suppress(FileNotFoundError):
                self._files.sync_directory(directory)

    def close(self) -> None:
        """Close every handle."""
        while self._handles:
            self._files.close(self._handles.popitem()[1])
