"""A store directory on disk, read only: its files, their sizes, and the broker that uses it.

Sizes that a broker takes from its settings are derived from the files, so that a directory can be
inspected without its broker's configuration.
"""

from __future__ import annotations

import os.path
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING

from cometmq.core.errors import NoStore, StoreCorrupt, StoreError
from cometmq.store.checkpoint import (
    Checkpoint,
    Positions,
    abort_path,
    lock_path,
    read_checkpoint,
    read_positions,
)
from cometmq.store.layout import (
    QUEUE_ENTRY_BYTES,
    file_offset,
    is_index_name,
    is_topic_name,
    queue_id_of,
)
from cometmq.store.log.directories import LogDirectories

if TYPE_CHECKING:
    from cometmq.store.config import StoreConfig
    from cometmq.store.files import ReadOnlyFiles

_DEFAULT_LOG_BYTES = 1 << 30
_SIZES_A_QUEUE = 4
_SIZES_ASKED = 40


class StoreInUse(StoreError):
    """A broker runs on the directory; its files may be half written."""

    def __init__(self, path: str, holder: int) -> None:
        who = "a CometMQ broker" if holder < 0 else f"process {holder}, a Java broker"
        super().__init__(f"store {path} is in use by {who}: stop it first")


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file whose name is the offset of its first byte."""

    base: int
    path: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """A queue that has files; ``bases`` are the byte positions at which they begin."""

    topic: str
    queue_id: int
    directory: str
    bases: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StoreDirectory:
    """The contents of a store directory.

    ``holder`` is the holder of the lock: 0 for none, -1 for a CometMQ broker, else a process id.
    ``positions`` are None if a Java broker used the store last. ``others`` are the paths of other
    files in the directories of the log.
    """

    root: str
    log_directories: tuple[str, ...]
    holder: int
    crashed: bool
    checkpoint: Checkpoint
    positions: Positions | None
    log_files: tuple[FileInfo, ...]
    log_file_bytes: int
    queue_file_bytes: int
    index_files: tuple[str, ...]
    others: tuple[str, ...] = field(default=())

    @property
    def log_directory(self) -> str:
        """The directories of the log files, as one text."""
        return ",".join(self.log_directories)

    @property
    def by_number(self) -> dict[int, FileInfo]:
        """The log files by number, from 0; the numbers of missing files are left out.

        The dict is built on each access; :meth:`log_file` finds a single file.
        """
        return {
            (file.base - self.log_start) // self.log_file_bytes: file for file in self.log_files
        }

    def log_file(self, number: int) -> FileInfo:
        """Return the log file of a number that ``by_number`` has."""
        last = self.log_start + (number + 1) * self.log_file_bytes - 1
        return self.log_files[bisect_right(self.log_files, last, key=attrgetter("base")) - 1]

    @property
    def log_start(self) -> int:
        """First offset of the log."""
        return self.log_files[0].base if self.log_files else 0

    @property
    def log_stop(self) -> int:
        """End of the last log file."""
        return self.log_files[-1].base + self.log_file_bytes if self.log_files else 0

    @property
    def is_clean(self) -> bool:
        """True after a clean stop; then all files must match."""
        return (
            not self.crashed
            and self.holder == 0
            and (self.positions is None or self.positions.clean)
        )

    @property
    def log_bytes(self) -> int:
        """Total size of all log files."""
        return sum(file.size_bytes for file in self.log_files)


def read_directory(config: StoreConfig, files: ReadOnlyFiles) -> StoreDirectory:
    """Read the contents of a store directory.

    Raises NoStore, OSError. Raises StoreCorrupt if two directories of the log have a file of the
    same offset, or if a noted one has no log file or is not named in the settings.
    """
    root = config.store_path_root_dir
    directories = config.commit_log_directories
    if not files.exists(root):
        raise NoStore(root, "it does not exist")
    for path in directories:
        if not files.exists(path):
            raise NoStore(root, _missing(path, is_only=len(directories) == 1))
    LogDirectories.of(files, config).check_noted(is_changed=False)
    log_files = _log_files(files, directories)
    sizes = [file.size_bytes for file in log_files]
    return StoreDirectory(
        root,
        directories,
        files.lock_holder(lock_path(root)),
        files.exists(abort_path(root)),
        read_checkpoint(files, root),
        read_positions(files, root),
        tuple(log_files),
        max(set(sizes), key=sizes.count) if sizes else _DEFAULT_LOG_BYTES,
        _queue_file_bytes(files, root, config),
        tuple(_index_files(files, root)),
        tuple(
            os.path.join(path, name)
            for path in directories
            for name in files.names(path)
            if file_offset(name) is None
        ),
    )


def _missing(path: str, *, is_only: bool) -> str:
    if is_only:
        return f"{path} is missing (storePathCommitLog in its settings?)"
    # A Java broker makes a directory with its first file, so it may never have been there.
    return f"{path} is missing: mount its device, or make it if no log file was ever there"


def _log_files(files: ReadOnlyFiles, directories: Iterable[str]) -> list[FileInfo]:
    """Return the log files of all directories, in order. Raises StoreCorrupt, OSError."""
    found = sorted(
        (file for path in directories for file in _numbered(files, path)),
        key=attrgetter("base", "path"),
    )
    for file, following in pairwise(found):
        if file.base == following.base:
            raise StoreCorrupt(
                following.path,
                file.base,
                f"{file.path} is the same log file: a start removes the one without data; if both "
                "have data, move the one away that does not belong to this log",
            )
    return found


def _numbered(files: ReadOnlyFiles, directory: str) -> list[FileInfo]:
    found: list[FileInfo] = []
    for name in files.names(directory):
        base = file_offset(name)
        if base is not None:
            path = os.path.join(directory, name)
            found.append(FileInfo(base, path, size_of(files, path)))
    return found


def size_of(files: ReadOnlyFiles, path: str) -> int:
    """Return the length of a file. Raises OSError."""
    handle = files.open(path)
    try:
        return files.size(handle)
    finally:
        files.close(handle)


def _index_files(files: ReadOnlyFiles, root: str) -> list[str]:
    directory = os.path.join(root, "index")
    return [os.path.join(directory, name) for name in files.names(directory) if is_index_name(name)]


def find_queues(files: ReadOnlyFiles, directory: StoreDirectory) -> list[QueueInfo]:
    """Return every queue that has files, by topic and queue id."""
    found: list[QueueInfo] = []
    for topic, number, path in _queue_directories(files, directory.root):
        names = _names(files, path)
        bases = tuple(base for each in names if (base := file_offset(each)) is not None)
        if bases:
            found.append(QueueInfo(topic, number, path, bases))
    return found


def _queue_directories(files: ReadOnlyFiles, root: str) -> Iterator[tuple[str, int, str]]:
    top = os.path.join(root, "consumequeue")
    for topic in filter(is_topic_name, files.names(top)):
        numbers = map(queue_id_of, _names(files, os.path.join(top, topic)))
        for number in sorted(number for number in numbers if number is not None):
            yield topic, number, os.path.join(top, topic, str(number))


def _names(files: ReadOnlyFiles, path: str) -> list[str]:
    try:
        return files.names(path)
    except NotADirectoryError:
        return []


def _queue_file_bytes(files: ReadOnlyFiles, root: str, config: StoreConfig) -> int:
    """Return the most frequent length of the first queue files; all should have it."""
    sizes: list[int] = []
    for _, _, path in _queue_directories(files, root):
        sizes += [info.size_bytes for info in _numbered(files, path)[:_SIZES_A_QUEUE]]
        if len(sizes) >= _SIZES_ASKED:
            break
    whole = [size for size in sizes if size and not size % QUEUE_ENTRY_BYTES]
    return max(set(whole), key=whole.count) if whole else config.queue_file_bytes
