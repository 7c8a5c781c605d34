"""The files of consume queues: handles, reads and writes at byte positions, syncs.

Files are as long as the setting says from the start, sparse, zeros behind the last entry, since a
Java broker refuses another length. Handles sit in one bounded LRU, so that the number of queues is
bound by nothing but memory.
"""

from __future__ import annotations

import errno
import logging
import os.path
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from cometmq.core.errors import StoreCorrupt
from cometmq.store.files import write_again
from cometmq.store.layout import QUEUE_ENTRY_BYTES, file_name, file_offset
from cometmq.store.queue.removal import Removals

if TYPE_CHECKING:
    from cometmq.store.files import Buffer, Files

logger = logging.getLogger(__name__)

#: Beyond as many files, syncing the whole file system is quicker.
_SYNC_LIMIT = 512
_KEPT_BYTES = 1_280
_KEPT_IN_ALL_BYTES = 32 << 20
_LONG_BYTES = 20_000
_LONG_IN_ALL_BYTES = 256 << 20


_CLEAR_BYTES = 1 << 16


class QueueFiles:
    """The files of all queues: handles in an LRU, and which of them still have to be synced.

    ``kept_bytes`` is how much of its written entries a queue keeps in memory, ``long_bytes`` with
    how much in memory it is written at once, whoever waits for their turn. More than ``sync_limit``
    files are synced as a whole.
    """

    __slots__ = (
        "_doubted",
        "_failed",
        "_files",
        "_handles",
        "_limit",
        "_told",
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
        self._doubted = False
        self.directory = directory
        self.removals = Removals(files, directory)
        self.file_bytes = file_bytes
        self.kept_bytes = _KEPT_BYTES
        self.long_bytes = _LONG_BYTES
        self.sync_limit = _SYNC_LIMIT
        self.queue_count = 0
        #: Files that somebody deleted while we run, as far as that was noticed: the next start has
        #: to make them again.
        self.lost: set[str] = set()
        self._told: set[str] = set()
        self.unsynced: set[str] = set()
        self.new_directories: set[str] = set()

    def share_memory(self, queue_count: int) -> None:
        """Have that many queues hold no more in memory than all of them together may."""
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
        self._doubt_names(directory)
        handle = self._files.open(path, create=True)
        try:
            self._files.resize(handle, self.file_bytes)
        except OSError:
            # Found again, it would be written to as it is: a queue file that no broker can read.
            self._files.close(handle)
            with suppress(OSError):
                self._files.unlink(path)
            raise
        return handle

    def _lengthen(self, handle: int) -> None:
        """Give a file its length that did not get it when it was made."""
        try:
            if self._files.size(handle) < self.file_bytes:
                self._files.resize(handle, self.file_bytes)
        except OSError:
            self._files.close(handle)
            raise

    def _doubt_names(self, directory: str) -> None:
        while len(directory) >= len(os.path.dirname(self.directory)):
            self.new_directories.add(directory)
            directory = os.path.dirname(directory)

    def write(self, directory: str, position: int, data: Buffer, *, begins: bool = False) -> None:
        """Write entries at a byte position of a queue, over the ends of files. Raises OSError, also
        for a file that is gone, unless the queue ``begins`` there."""
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
        # A new one would have zeros for the entries before: messages that nobody could read.
        if path not in self.lost:
            self.lost.add(path)
            logger.error("queue_file_lost path=%s", path)
        raise FileNotFoundError(
            errno.ENOENT,
            "it was deleted while the broker runs; stop and start the broker, it makes it again",
            path,
        )

    def read(self, directory: str, position: int, size_bytes: int) -> bytes:
        """Read entries from a byte position to at most the end of that file.

        Nothing when there is no such file.
        """
        base = position - position % self.file_bytes
        size = min(size_bytes, base + self.file_bytes - position)
        try:
            # As file_name gives it; the join alone would take as long as the read.
            handle = self._handle(f"{directory}{os.sep}{base:020d}", create=False)
        except FileNotFoundError:
            return b""
        return self._files.pread(handle, size, position - base)

    def read_cached(self, directory: str, position: int, size_bytes: int) -> bytearray | None:
        """As :meth:`read`, of what is in memory; None when the device would have to be asked.

        Raises StoreCorrupt when the file cannot be opened: whoever asks knows that there is one.
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
        """As :meth:`read`, through a handle of its own, so that a thread may do it."""
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
        # Once: a consumer that is refused asks again and again.
        if path not in self._told:
            self._told.add(path)
            logger.error("queue_file_unreadable path=%s error=%r", path, str(error))
        return StoreCorrupt(
            path, -1, f"this queue file cannot be read: {error.strerror}",
            ways_out=("put it right, or stop and start the broker: it makes lost files again",),
        )  # fmt: skip

    def bases(self, directory: str) -> list[int]:
        """The byte positions at which a queue's files begin, in order."""
        return [
            offset
            for name in self._files.names(directory)
            if (offset := file_offset(name)) is not None
        ]

    def is_clear(self, directory: str, position: int) -> bool:
        """Whether the file at a byte position holds nothing but zeros from there on."""
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
        """Bring a file that is too short to its length with zeros."""
        path = os.path.join(directory, file_name(base))
        self._files.resize(self._handle(path, create=False), self.file_bytes)
        self.unsynced.add(path)

    def cut(self, directory: str, position: int, bases: list[int]) -> None:
        """Make everything from a byte position on zeros, and drop later files."""
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
        """Close the handle of a file that goes away."""
        handle = self._handles.pop(path, None)
        if handle is not None:
            self._files.close(handle)
        self.unsynced.discard(path)

    def set_aside(self, topic: str) -> str:
        """Move all queues of a topic aside, pending (removal.py); gives where they are.

        Raises OSError; then nothing has changed.
        """
        directory = os.path.join(self.directory, topic)
        count = len(self._files.names(directory))
        aside = self.removals.set_aside(directory)
        self.queue_count -= count
        self._moved(directory)
        return aside

    def discard(self, topic: str, queue_ids: Iterable[int]) -> None:
        """Take some queues of a topic away, as far as they have files. Raises OSError."""
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
        """The files and directories to sync now; they count as synced unless given back."""
        paths, directories = list(self.unsynced), list(self.new_directories)
        self.unsynced = set()
        self.new_directories = set()
        return paths, directories

    def doubt(self, topics: Mapping[str, Collection[int]]) -> None:
        """Nobody knows what of the files of some queues is on the device: all is to be synced."""
        if sum(map(len, topics.values())) > self.sync_limit:
            self._doubted = True
            return
        for topic, queue_ids in topics.items():
            for queue_id in queue_ids:
                directory = os.path.join(self.directory, topic, str(queue_id))
                self._doubt_names(directory)
                names = (file_name(base) for base in self.bases(directory))
                self.unsynced.update(os.path.join(directory, name) for name in names)

    def give_back(self, paths: list[str], directories: list[str]) -> None:
        """These have to be synced still."""
        self.unsynced.update(paths)
        self.new_directories.update(directories)

    def sync_paths(self, paths: list[str], directories: list[str]) -> None:
        """Sync files and directories; a thread may do it. Raises OSError.

        Through handles of their own; with very many, all of the file system at once. When it fails,
        the next sync writes them again first: whoever waited may have gone meanwhile.
        """
        try:
            self._sync_paths(paths, directories)
        except OSError:
            self._failed.update(paths)
            raise
        self._failed.difference_update(paths)

    def _sync_paths(self, paths: list[str], directories: list[str]) -> None:
        at_once = self._doubted or len(paths) > self.sync_limit
        for path in sorted(self._failed.intersection(paths) if at_once else paths):
            try:
                handle = self._files.open(path)
            except FileNotFoundError:
                continue
            try:
                if path in self._failed:
                    write_again(self._files, handle)
                if not at_once:
                    self._files.datasync(handle)
            finally:
                self._files.close(handle)
        if at_once:
            if self._files.exists(self.directory):
                self._files.sync_filesystem(self.directory)
            self._doubted = False
            directories = []
        for directory in sorted(directories):
            # Its topic may be deleted meanwhile.
            with suppress(FileNotFoundError):
                self._files.sync_directory(directory)

    def close(self) -> None:
        """Close every handle."""
        while self._handles:
            self._files.close(self._handles.popitem()[1])
