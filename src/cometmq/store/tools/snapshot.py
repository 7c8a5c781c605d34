"""Snapshots: a second store directory that shares the full log files with the first.

Full log files hardly ever change, so they are hard-linked; all other files are small and copied.
Before an operation changes a linked file, such as a recovery that cuts the log, it replaces the
file by a copy (log/segments.py).
"""

from __future__ import annotations

import errno
import os.path
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec.structs import replace

from cometmq.core.errors import StoreError, StoreLocked
from cometmq.store.checkpoint import (
    Positions,
    lock_path,
    write_checkpoint,
    write_positions,
)
from cometmq.store.files import ReadOnlyFiles, SnapshotFiles
from cometmq.store.layout import EXTENSIONS, LOG_DIRECTORIES, LOST_AND_FOUND, file_name, file_offset
from cometmq.store.log.checksums import DIRECTORY as SEALS
from cometmq.store.tools.directory import FileInfo, StoreDirectory, StoreInUse, read_directory

if TYPE_CHECKING:
    from cometmq.store.config import StoreConfig

#: Bytes that are copied between two reports of progress.
_PIECE_BYTES = 4 << 20
_LOG = "commitlog"
#: Directory of the unfinished files of an erasure (rewriting.py).
DRAFTS = "cometmq-erasing"
_UNFINISHED = ".unfinished"
#: Names in the root that a snapshot leaves out, or treats separately.
_LEFT_OUT = (_LOG, "lock", "set-aside", "cometmq-set-aside", DRAFTS, LOG_DIRECTORIES)
_ENTRIES = ("consumequeue", EXTENSIONS, "index", SEALS)
#: Files in which a running broker records its state. The snapshot gets new ones: with copies, a
#: start would recover as after a crash.
_RUN_FILES = (
    "abort", "checkpoint", "cometmq-positions.json", "cometmq-progress.json", "cometmq-entries",
)  # fmt: skip

#: Called with the number of bytes of each copy, link or hole.
Progress = Callable[[int], None]


def copy_file(
    files: SnapshotFiles,
    source: str,
    target: str,
    *,
    stop: int | None = None,
    full: bool = False,
    progress: Progress = lambda _: None,
) -> int:
    """Copy a file up to byte ``stop``; zeros follow, so that the length stays the same.

    Returns the number of copied bytes, holes excluded. ``full`` allocates the whole length on the
    device; otherwise holes take no space. Raises OSError, FileNotFoundError for a missing source.
    """
    taken = files.open_existing(source)
    try:
        length = files.size(taken)
        made = files.open(target, create=True)
        try:
            files.resize(made, length)
            if full and length:
                files.allocate(made, length)
            end = length if stop is None else min(stop, length)
            return _copy_data(files, taken, made, end, progress)
        finally:
            files.close(made)
    finally:
        files.close(taken)


def _copy_data(files: SnapshotFiles, taken: int, made: int, stop: int, progress: Progress) -> int:
    at = copied = 0
    while at < stop:
        data = min(files.next_data(taken, at), stop)
        if data > at:
            progress(data - at)
            at = data
        end = min(files.next_hole(taken, at), stop)
        while at < end:
            count = files.copy_bytes(taken, made, at, min(_PIECE_BYTES, end - at))
            if not count:
                return copied
            progress(count)
            copied += count
            at += count
    return copied


def _own_names(files: SnapshotFiles, path: str) -> list[str]:
    """Return the names in a directory, without the ``lost+found`` of a file system."""
    return [name for name in files.names(path) if name != LOST_AND_FOUND]


def walk_files(files: SnapshotFiles, root: str) -> Iterator[str]:
    """Yield the path of every file under a directory, relative to it."""
    for name in _own_names(files, root):
        path = os.path.join(root, name)
        if files.is_directory(path):
            yield from (os.path.join(name, each) for each in walk_files(files, path))
        else:
            yield name


class Copies:
    """Copies into one target directory; its subdirectories are created as needed."""

    def __init__(self, files: SnapshotFiles, target: str, progress: Progress) -> None:
        self._files = files
        self._target = target
        self._progress = progress
        self._made: set[str] = set()
        self.copied_bytes = 0
        self.linked_bytes = 0

    def place(self, name: str) -> str:
        """Return the target path for a name, after its directory was created."""
        path = os.path.join(self._target, name)
        directory = os.path.dirname(path)
        if directory not in self._made:
            self._files.make_directory(directory)
            self._made.add(directory)
        return path

    def copy(self, source: str, name: str, *, stop: int | None = None, full: bool = False) -> None:
        """Copy one file; see :func:`copy_file`."""

        self.copied_bytes += copy_file(
            self._files, source, self.place(name), stop=stop, full=full, progress=self._progress
        )

    def link(self, source: str, name: str, size_bytes: int) -> None:
        """Create a hard link to one file in the target."""
        self._files.link(source, self.place(name))
        self.linked_bytes += size_bytes
        self._progress(size_bytes)


class TargetNotEmpty(StoreError):
    """The target directory is not empty."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} is not empty: choose a directory that does not exist yet")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A finished snapshot.

    The fields are its path, whether a broker was running, the bounds of the log, and the linked and
    copied bytes.
    """

    path: str
    running: bool
    log_start: int
    log_end: int
    linked_bytes: int
    copied_bytes: int


def snapshot(
    config: StoreConfig,
    target: str,
    files: SnapshotFiles | None = None,
    *,
    copy: bool = False,
    began: Progress = lambda _: None,
    progress: Progress = lambda _: None,
) -> Snapshot:
    """Create a snapshot of the store that ``config`` names; ``target`` appears when it is complete.

    A stopped store is taken as it is. Of a running CometMQ broker the snapshot has:

    - the log up to the offset for which the broker recorded complete queue and index files, or up
      to its durable end, whichever is greater;
    - queue and index files as they are during the copy;
    - new positions, which say how far these files can be trusted. A start of the snapshot recovers
      from them as after a crash of the machine.

    If the log is in several directories, the snapshot has it in one.

    ``copy`` also copies full log files, so that the target may be on another file system. Raises
    NoStore, TargetNotEmpty, StoreError if the snapshot cannot be made, StoreInUse if a Java broker
    runs on the store, OSError.
    """
    files = files or SnapshotFiles()
    directory = read_directory(config, ReadOnlyFiles())
    _refuse_target(files, directory, target)
    if directory.holder > 0:
        raise StoreInUse(directory.root, directory.holder)
    began(directory.log_bytes)
    draft = target.rstrip(os.sep) + _UNFINISHED
    files.remove_tree(draft)
    files.make_directory(draft)
    # A store without messages has no log files, but must have this directory.
    files.make_directory(os.path.join(draft, _LOG))
    copies = Copies(files, draft, progress)
    taking = _Taking(files, directory, copies, copy)
    try:
        if directory.holder:
            start, end = taking.running()
        else:
            lock = _lock(files, directory)
            try:
                start, end = taking.stopped()
            finally:
                files.close(lock)
        files.sync_filesystem(draft)
    except BaseException:
        files.remove_tree(draft)
        raise
    files.rename(draft, target)
    files.sync_directory(os.path.dirname(os.path.abspath(target)))
    running = directory.holder != 0
    return Snapshot(target, running, start, end, copies.linked_bytes, copies.copied_bytes)


def _refuse_target(files: SnapshotFiles, directory: StoreDirectory, target: str) -> None:
    if files.exists(target) and (not files.is_directory(target) or files.names(target)):
        raise TargetNotEmpty(target)
    place = os.path.realpath(target)
    for path in map(os.path.realpath, (directory.root, *directory.log_directories)):
        if place == path or place.startswith(path + os.sep):
            raise StoreError(f"{target} is inside the store ({path}): choose another place")


def _lock(files: SnapshotFiles, directory: StoreDirectory) -> int:
    try:
        return files.lock(lock_path(directory.root))
    except BlockingIOError as error:
        raise StoreLocked(directory.root) from error


class _Taking:
    """One snapshot in progress."""

    def __init__(
        self, files: SnapshotFiles, directory: StoreDirectory, copies: Copies, copy: bool
    ) -> None:
        self._files = files
        self._directory = directory
        self._copies = copies
        self._copy = copy
        #: Paths of the log directories relative to the root. They serve to leave out log files in
        #: directories inside the root.
        self._inner = {
            os.path.relpath(real(path), real(directory.root))
            for path in directory.log_directories
            for real in (os.path.abspath, os.path.realpath)
        }

    def stopped(self) -> tuple[int, int]:
        """Take a stopped store; return the bounds of the log."""
        directory, positions = self._directory, self._directory.positions
        reached = max(positions.written, positions.durable) if positions else 0
        # The last files may be unused. All earlier ones are taken, even if their first bytes are
        # lost.
        used = [*directory.log_files]
        while used and used[-1].base >= reached and not self._is_used(used[-1]):
            used.pop()
        for file in used[:-1]:
            self._take_full(file)
        for file in used[-1:]:
            self._copies.copy(file.path, self._log_name(file), full=True)
        self._take_rest(())
        end = used[-1].base + used[-1].size_bytes if used else directory.log_start
        return directory.log_start, positions.written if positions and positions.clean else end

    def running(self) -> tuple[int, int]:
        """Take everything up to the positions that the broker recorded; return the log's bounds."""
        directory, positions = self._directory, self._directory.positions
        if positions is None:
            raise StoreError(
                f"the broker on {directory.root} has not recorded yet up to where its files are "
                "valid: try again in a few seconds"
            )
        reached = positions.written if positions.complete < 0 else positions.complete
        end = max(reached, positions.durable)
        # Consumer offsets first: if they are older than the log, messages are repeated; if they
        # were newer, messages would be lost.
        self._take_rest((*_RUN_FILES, *_ENTRIES))
        start = self._take_log(end)
        for part in _ENTRIES:
            self._take_tree(part, may_vanish=True)
        self._write_positions(positions, reached, end)
        return start, end

    def _take_log(self, end: int) -> int:
        """Take the log up to ``end``; return the first offset that was taken.

        The running broker may drop the oldest files meanwhile.
        """
        start = -1
        for file in self._directory.log_files:
            if file.base >= end:
                break
            try:
                if file.base + file.size_bytes <= end:
                    self._take_full(file)
                else:
                    self._copies.copy(
                        file.path, self._log_name(file), stop=end - file.base, full=True
                    )
            except FileNotFoundError:
                if start >= 0:
                    raise
                continue
            start = file.base if start < 0 else start
        return max(start, 0)

    def _is_used(self, file: FileInfo) -> bool:
        handle = self._files.open_existing(file.path)
        try:
            return any(self._files.pread(handle, 8, 0))
        finally:
            self._files.close(handle)

    def _log_name(self, file: FileInfo) -> str:
        return os.path.join(_LOG, file_name(file.base))

    def _take_full(self, file: FileInfo) -> None:
        if self._copy:
            self._copies.copy(file.path, self._log_name(file), full=True)
            return
        try:
            self._copies.link(file.path, self._log_name(file), file.size_bytes)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK):
                raise
            raise StoreError(
                f"{file.path} cannot be linked to the snapshot ({error.strerror}): choose a place "
                "on the same file system, or copy with --copy"
            ) from error

    def _take_rest(self, left_out: tuple[str, ...]) -> None:
        """Take the contents of the root directory, except the log and ``left_out``."""
        for name in _own_names(self._files, self._directory.root):
            if name not in (*_LEFT_OUT, *left_out):
                self._take_tree(name, may_vanish=bool(left_out))

    def _is_of_log(self, name: str) -> bool:
        """Return whether a file, named relative to the root, belongs to the log.

        It does if it is in a directory of the log. If the root is such a directory, only log files
        count there.
        """
        directory = os.path.dirname(name)
        if not directory:
            return os.curdir in self._inner and file_offset(name) is not None
        return any(f"{directory}/".startswith(f"{path}/") for path in self._inner)

    def _take_tree(self, top: str, *, may_vanish: bool) -> None:
        root = self._directory.root
        path = os.path.join(root, top)
        inside = self._files.is_directory(path)
        names = (
            [os.path.join(top, each) for each in walk_files(self._files, path)] if inside else [top]
        )
        for name in names:
            if name.endswith(".tmp") or (top == SEALS and not self._has_log_file(name)):
                continue
            if self._is_of_log(name):
                continue
            try:
                self._copies.copy(os.path.join(root, name), name)
            except FileNotFoundError:
                if not may_vanish:
                    raise

    def _has_log_file(self, seal: str) -> bool:
        return self._files.exists(self._copies.place(os.path.join(_LOG, os.path.basename(seal))))

    def _write_positions(self, positions: Positions, reached: int, end: int) -> None:
        root = os.path.dirname(self._copies.place("x"))
        write_checkpoint(self._files, root, positions.checkpoint, durable=False)
        own = replace(
            positions, boot_id="", clean=False, written=reached, synced=reached, durable=end,
            complete=-1, entries=-1,
        )  # fmt: skip
        write_positions(self._files, root, own, durable=True)


def restore(
    source: str,
    target: str,
    files: SnapshotFiles | None = None,
    *,
    began: Progress = lambda _: None,
    progress: Progress = lambda _: None,
) -> int:
    """Copy a snapshot to ``target``, durably; return the copied bytes. The snapshot is not changed.

    Raises FileNotFoundError if there is no snapshot at ``source``, TargetNotEmpty, OSError. After
    an error, the files that were copied so far stay.
    """
    files = files or SnapshotFiles()
    if files.exists(target) and (not files.is_directory(target) or _own_names(files, target)):
        raise TargetNotEmpty(target)
    names = [name for name in walk_files(files, source) if name != "lock"]
    if "checkpoint" not in names and not any(name.startswith(_LOG + os.sep) for name in names):
        raise FileNotFoundError(errno.ENOENT, "there is no snapshot", source)
    began(sum(_size(files, os.path.join(source, name)) for name in names))
    copies = Copies(files, target, progress)
    files.make_directory(target)
    if "checkpoint" in names:
        files.make_directory(os.path.join(target, _LOG))
    for name in names:
        copies.copy(os.path.join(source, name), name, full=name.startswith(_LOG + os.sep))
    files.sync_filesystem(target)
    files.sync_directory(os.path.dirname(os.path.abspath(target)))
    return copies.copied_bytes


def _size(files: SnapshotFiles, path: str) -> int:
    handle = files.open_existing(path)
    try:
        return files.size(handle)
    finally:
        files.close(handle)
