"""Directories of the commit log: usually one; several if ``storePathCommitLog`` has a comma.

If there are several, the log consists of the files in all of them, as in RocketMQ (upstream:
MultiPathMappedFileQueue.java). New files go in turn to the ``n`` directories that are neither
read-only nor full: in sorted order, to number ``(offset / file size) mod n``. If all are full, the
turn goes through all that are not read-only. A directory is full if its device is used beyond
``diskSpaceCleanForciblyRatio``.

A directory may be empty because its device is not mounted. If there are several directories, a
durable note says which of them have log files: ``cometmq-log-directories.json`` in the root
directory.

    creation    the note is written once the file and its name are durable. A crash in between
                leaves an unused file that is not noted; the next start notes it
    removal     the note is written before the last file of a directory is removed

So a noted directory without a log file, or one that the settings no longer name, stops a start.

A power cut may bring back a file whose creation failed, although another directory got the file of
this offset instead. The first has only zeros, and :meth:`LogDirectories.settle_twins` removes it. A
start fails if two files of one offset have data.
"""

from __future__ import annotations

import errno
import logging
import os.path
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Final

import msgspec

from cometmq.core.errors import SettingsError, StoreCorrupt
from cometmq.store.files import (
    is_zero,
    least_used,
    make_durable_directory,
    read_file,
    write_file_atomically,
)
from cometmq.store.layout import LOG_DIRECTORIES, file_offset

if TYPE_CHECKING:
    from cometmq.store.config import StoreConfig
    from cometmq.store.files import DiskSpace, Files

logger = logging.getLogger(__name__)

NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class LogDirectories:
    """The directories of one log, and the note of those with files.

    ``writable`` directories are sorted and get new files; ``read_only`` ones do not. ``text`` names
    all of them, for messages. ``full_percent`` returns the use in percent above which a device is
    full. Without ``note_path``, or with one directory, nothing is noted.
    """

    __slots__ = (
        "_files",
        "_full_percent",
        "_lock",
        "_noted",
        "_unnoted",
        "note_path",
        "read_only",
        "text",
        "writable",
    )

    def __init__(
        self,
        files: Files,
        writable: Sequence[str],
        read_only: Sequence[str] = (),
        *,
        note_path: str = "",
        full_percent: Callable[[], float] = lambda: 100.0,
    ) -> None:
        self._files = files
        self.writable = tuple(writable)
        self.read_only = tuple(read_only)
        self.text = ",".join(self.all)
        self.note_path = note_path
        self._full_percent = full_percent
        self._noted: frozenset[str] = frozenset()
        #: Removed files whose directories are still noted, because there was no room for the note.
        self._unnoted: set[str] = set()
        self._lock = threading.Lock()

    @classmethod
    def of(cls, files: Files, config: StoreConfig) -> LogDirectories:
        """Return the directories that the settings name."""
        return cls(
            files,
            config.writable_log_directories,
            config.read_only_log_directories,
            note_path=os.path.join(config.store_path_root_dir, LOG_DIRECTORIES),
            full_percent=lambda: config.disk_space_clean_forcibly_ratio,
        )

    @property
    def all(self) -> tuple[str, ...]:
        """All directories, the writable ones first."""
        return (*self.writable, *self.read_only)

    @property
    def is_spread(self) -> bool:
        """True if there are several directories."""
        return len(self.writable) + len(self.read_only) > 1

    @property
    def is_noted(self) -> bool:
        """True if the note names directories."""
        return bool(self._noted)

    def is_read_only(self, path: str) -> bool:
        """Return whether a log file is in a read-only directory."""
        return bool(self.read_only) and os.path.dirname(path) in self.read_only

    # --- files -------------------------------------------------------------------------------

    def found(self) -> list[tuple[int, str]]:
        """Return offset and path of every log file, in order. Raises OSError."""
        pairs = [
            (base, os.path.join(directory, name))
            for directory in self.all
            for name in self._files.names(directory)
            if (base := file_offset(name)) is not None
        ]
        if self.is_spread:
            pairs.sort()
        return pairs

    def choices(self, number: int) -> Sequence[str]:
        """Return the directories that may get the log file ``number``, the best one first.

        The next one is used if a device has no room although it does not count as full.
        """
        if len(self.writable) == 1:
            return self.writable
        limit = self._full_percent()
        full = [
            path for path in self.writable if self._files.disk_space(path).used_ratio * 100 > limit
        ]
        wanted = [path for path in self.writable if path not in full] or list(self.writable)
        at = number % len(wanted)
        return [*wanted[at:], *wanted[:at], *(path for path in full if path not in wanted)]

    def usual(self, number: int) -> str:
        """Return the directory that gets the log file ``number`` if none is full."""
        return self.writable[number % len(self.writable)]

    def space(self) -> DiskSpace:
        """Return the space of the least used device that gets new files.

        Devices that are gone are left out, so that retention goes on with the others. Raises
        OSError if all are gone.
        """
        found: list[DiskSpace] = []
        for path in self.writable:
            try:
                found.append(self._files.disk_space(path))
            except OSError:
                if not found and path == self.writable[-1]:
                    raise
        return least_used(found)

    def free_bytes(self) -> int:
        """Return the free bytes of the device that has most. Raises OSError."""
        return max(self._files.disk_space(path).free_bytes for path in self.writable)

    def sync_names(self) -> None:
        """Make the names of all log files durable. Raises OSError."""
        for path in self.all:
            if not self.is_spread or self._files.exists(path):
                self._files.sync_directory(path)

    def remove(self, path: str) -> None:
        """Delete a log file durably, as :func:`remove_file` does. May run in a thread."""
        if self.is_spread and not self._files.exists(path) and path not in self._unnoted:
            return  # its device may be away, so the note stays
        try:
            self.leave(path)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            # The removal may make room for the note. If the process ends between the two, the next
            # start refuses and says why.
            self._unnoted.add(path)
            remove_file(self._files, path)
            self.leave(path)
        else:
            remove_file(self._files, path)
        self._unnoted.discard(path)

    def settle_twins(self, file_bytes: int) -> None:
        """Remove files with only zeros if another directory has a file of the same offset.

        Raises StoreCorrupt if two files of one offset have data, SettingsError if they are the same
        file, OSError.
        """
        if not self.is_spread:
            return
        for base, same in groupby(self.found(), key=itemgetter(0)):
            paths = [path for _, path in same]
            if len(paths) > 1:
                self._settle(base, paths, file_bytes)

    def _settle(self, base: int, paths: list[str], file_bytes: int) -> None:
        sizes: dict[str, int] = {}
        used: list[str] = []
        for path in paths:
            handle = self._files.open(path)
            try:
                for other in paths:
                    if other != path and self._files.is_same_file(handle, other):
                        raise SettingsError(
                            "storePathCommitLog", f"{path} and {other} are the same file: name "
                            "each directory of the log once",
                        )  # fmt: skip
                sizes[path] = self._files.size(handle)
                if has_data(self._files, handle, sizes[path]):
                    used.append(path)
            finally:
                self._files.close(handle)
        if len(used) > 1:
            raise StoreCorrupt(
                used[1], base,
                f"{used[0]} is another file of the same offset, and both have data: move the one "
                "that does not belong to this log away",
            )  # fmt: skip
        # If no file has data, any one may be kept.
        kept = max(
            used or paths,
            key=lambda path: (not self.is_read_only(path), sizes[path] == file_bytes),
        )
        for path in paths:
            if path != kept:
                logger.warning("log_file_removed path=%s reason=%r", path, f"{kept} is used")
                self.remove(path)

    # --- the note ----------------------------------------------------------------------------

    def prepare(self) -> None:
        """Read the note, and create missing directories that get files. The caller has the lock.

        Raises the errors of :meth:`check_noted`.
        """
        self.check_noted()
        if self.is_spread:
            for path in self.writable:
                make_durable_directory(self._files, path)
                if os.path.abspath(path) not in self._noted:
                    self._sync_above(path)

    def _sync_above(self, path: str) -> None:
        """Sync all directories above one that has no files yet.

        An earlier run may have created several levels, and ended before it synced them.
        """
        place = os.path.abspath(path)
        while (above := os.path.dirname(place)) != place:
            # Not every system has directories that can be read or synced, such as a read-only root.
            with suppress(OSError):
                self._files.sync_directory(above)
            place = above

    def check_noted(self, *, is_changed: bool = True) -> None:
        """Read the note. With ``is_changed``, make it durable first: the store will be changed.

        Raises SettingsError if two names are those of one directory, StoreCorrupt if a noted
        directory is not named or has no log file, OSError.
        """
        self._check_names()
        self._noted = self._read_note(is_changed=is_changed)
        named = {os.path.abspath(path) for path in self.all}
        otherwise = f"if its files were moved or removed on purpose, delete {self.note_path}"
        for path in sorted(self._noted):
            if path not in named:
                raise StoreCorrupt(
                    path, -1,
                    "this directory has log files, and neither storePathCommitLog nor "
                    "readOnlyCommitLogStorePaths names it (a list has a comma): name it; "
                    f"{otherwise}",
                )  # fmt: skip
            if all(file_offset(name) is None for name in self._files.names(path)):
                raise StoreCorrupt(
                    path, -1,
                    "this directory had log files, and has none now: is its device mounted, or "
                    f"another one over its files? Otherwise restore them; {otherwise}",
                )  # fmt: skip

    def _check_names(self) -> None:
        known: dict[str, str] = {}
        for path in self.all if self.is_spread else ():
            first = known.setdefault(os.path.realpath(path), path)
            if first != path:
                raise SettingsError(
                    "storePathCommitLog", f"{first} and {path} are the same directory: name each "
                    "directory of the log once",
                )  # fmt: skip

    def _read_note(self, *, is_changed: bool) -> frozenset[str]:
        if not self.note_path:
            return frozenset()
        raw = read_file(self._files, self.note_path)
        if raw is None:
            return frozenset()
        if is_changed:
            # The run that wrote it may have ended before it was durable.
            self._files.sync_directory(os.path.dirname(self.note_path))
        try:
            return frozenset(msgspec.json.decode(raw, type=list[str]))
        except ValueError as error:
            raise StoreCorrupt(
                self.note_path, -1,
                f"it cannot be read ({error}): make sure that all directories of the log are "
                "mounted and named, then delete it",
            ) from error  # fmt: skip

    def note(self, paths: Iterable[str]) -> None:
        """Note the directories of all log files, durably. Raises OSError."""
        if not self.is_spread:
            return
        used = {_directory_of(path) for path in paths}
        for path in self.all:
            if os.path.abspath(path) not in self._noted | used:
                logger.warning(
                    "log_directory_empty path=%s hint=%r", path,
                    "right for a new directory; if it had log files, stop, and mount its device",
                )  # fmt: skip
        with self._lock:
            self._write_note(used)

    def check_all_used(self) -> None:
        """Raise StoreCorrupt if the log has data and a directory has none of its files.

        Call it before anything is repaired in a store that another broker wrote. Raises OSError.
        """
        paths = [path for _, path in self.found()] if self.is_spread else []
        if not any(map(self._has_data, paths)):
            return
        used = {_directory_of(path) for path in paths}
        for path in self.all:
            if os.path.abspath(path) not in used:
                raise StoreCorrupt(
                    path, -1,
                    "another broker wrote this store, and this directory has no log files: is its "
                    "device mounted? If it never had any, leave it out for one start",
                )  # fmt: skip

    def _has_data(self, path: str) -> bool:
        handle = self._files.open(path)
        try:
            return has_data(self._files, handle, self._files.size(handle))
        finally:
            self._files.close(handle)

    def note_file(self, path: str) -> None:
        """Note the directory of a new log file, durably. Raises OSError. May run in a thread."""
        if self.is_spread:
            with self._lock:
                self._write_note({*self._noted, _directory_of(path)})

    def leave(self, path: str) -> None:
        """Remove the directory of a log file from the note, durably, if it has no other log file.

        Call it before the file is removed. Raises OSError. May run in a thread.
        """
        if not self.is_spread:
            return
        with self._lock:
            directory, name = os.path.split(path)
            others = (other for other in self._files.names(directory) if other != name)
            if all(file_offset(other) is None for other in others):
                self._write_note(self._noted - {_directory_of(path)})

    def _write_note(self, wanted: Iterable[str]) -> None:
        noted = frozenset(wanted)
        if noted != self._noted:
            data = msgspec.json.encode(sorted(noted))
            try:
                write_file_atomically(self._files, self.note_path, data, durable=True)
            except OSError as error:
                raise placed(error, self.note_path) from error
            self._noted = noted


def _directory_of(path: str) -> str:
    return os.path.dirname(os.path.abspath(path))


def placed(error: OSError, path: str) -> OSError:
    """Return a copy of an error with the path, which the system leaves out for an open file."""
    return OSError(error.errno, error.strerror or str(error), path)


def has_data(files: Files, handle: int, size_bytes: int) -> bool:
    """Return whether a file has more than zeros; bytes that cannot be read count as data."""
    try:
        return not is_zero(files, handle, size_bytes)
    except OSError:
        return True


def remove_file(files: Files, path: str) -> None:
    """Delete a log file durably. Raises OSError.

    The name must be gone durably before the next file is deleted. Otherwise a power cut could undo
    one deletion and not the other, and leave a gap. May run in a thread.
    """
    files.unlink(path)
    files.sync_directory(os.path.dirname(path))
