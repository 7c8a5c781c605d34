"""The files of a store directory, read only: the log with its records, and the queues with their
entries.

Nothing is locked or written, so a broker may run at the same time. A file that the broker deletes
between two lookups is treated as if it had never existed. Layout: store/layout.py.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from io import FileIO
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from cometmq.core.errors import NoStore
from cometmq.message.record import FIXED_BYTES, PREFIX, BadRecord, decode_one
from cometmq.message.walk import is_blank, next_record, problem_at
from cometmq.spark import decode
from cometmq.spark.decode import Block
from cometmq.spark.store.urls import (
    PAGE_BYTES,
    RemoteFile,
    is_url,
    joined,
    list_below,
    listed,
    open_url,
    shown,
)
from cometmq.speedups import RecordColumns, check_records
from cometmq.store.layout import (
    HOLE_SIZE,
    QUEUE_ENTRY,
    QUEUE_ENTRY_BYTES,
    QUEUE_ENTRY_COLUMNS,
    file_name,
    file_offset,
)

BLOCK_BYTES: Final = 2 << 20
"""Bytes read at a time: large enough that the cost of a call is small, and small enough to stay in
the processor's caches. A block makes few batches (read/corrupt.py), which Spark processes while the
next block is decoded."""

RECORD_BYTES_MAX: Final = 1 << 27
"""A larger size counts as damage."""

_SEARCH_BYTES: Final = 256 << 10
_ZEROS: Final = bytes(_SEARCH_BYTES)
_FURTHER_BYTES: Final = 4 << 20
"""Bytes after the last known record in which the end of a log searches further records."""

_LAST_BYTES: Final = 64 << 10
"""Bytes read beyond a part, for its last record, which may extend into the next part."""

_POSITIONS: Final = ("cometmq-progress.json", "cometmq-positions.json")

ENTRY: Final = np.dtype(QUEUE_ENTRY_COLUMNS)
"""A queue entry as a numpy type, see store/layout.py."""

Entries = npt.NDArray[np.void]

Listed = tuple[tuple[int, int], ...]
"""Files of a folder that are named by an offset: that offset, and the size in bytes."""

StoreFile = FileIO | RemoteFile


@dataclass(frozen=True, slots=True)
class LogFileStatus:
    """A file of the commit log: ``base`` is the physical offset of its first byte. ``path`` may be
    a URL with credentials, so ``repr`` leaves it out."""

    path: str = field(repr=False)
    base: int
    size_bytes: int

    @property
    def stop(self) -> int:
        """The physical offset after its last byte."""
        return self.base + self.size_bytes


@dataclass(frozen=True, slots=True)
class DamagedBytes:
    """Bytes that are no record, from ``start`` to ``stop`` (physical offsets): the next record
    begins at ``stop``, or the part ends there."""

    start: int
    stop: int
    problem: str


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """One entry of a queue: the physical offset and the size of its record, and the tag code."""

    physical: int
    size_bytes: int
    tag_code: int

    @property
    def is_record(self) -> bool:
        """True if the entry refers to a record."""
        return 0 < self.size_bytes < HOLE_SIZE


class _Positions(msgspec.Struct):
    """The fields of CometMQ's position files that say how far queue files are complete: up to the
    physical offset ``complete``, or ``written`` if that is negative. ``number`` grows with each
    writing of a file."""

    written: int = 0
    complete: int = -1
    number: int = 0


def opened(path: str) -> StoreFile:
    """Open a file for :func:`read_at`; the caller closes it. Raises OSError, StoreUnreadable."""
    return open_url(path) if is_url(path) else FileIO(path)


def read_at(handle: StoreFile, size: int, at: int) -> bytes:
    """Read up to ``size`` bytes from byte ``at`` of a file. Raises OSError."""
    handle.seek(at)
    return handle.read(size)


def log_files(root: str) -> list[LogFileStatus]:
    """Return the files of the commit log, in order. Raises NoStore, StoreUnreadable."""
    try:
        found = _numbered(joined(root, "commitlog"))
    except OSError as error:
        raise NoStore(shown(root), f"commitlog cannot be listed ({error.strerror})") from None
    return [LogFileStatus(path, base, size_bytes) for base, path, size_bytes in found]


def _numbered(folder: str) -> list[tuple[int, str, int]]:
    """Return offset, path and size of the files of a folder that are named by an offset, in order.
    Raises OSError, StoreUnreadable."""
    found: list[tuple[int, str, int]] = []
    sizes = listed(folder) if is_url(folder) else None
    for name in sorted(os.listdir(folder) if sizes is None else sizes):
        base = file_offset(name)
        if base is not None:
            path = joined(folder, name)
            try:
                size_bytes = os.stat(path).st_size if sizes is None else sizes[name]
            except FileNotFoundError:
                continue
            found.append((base, path, size_bytes))
    return found


def log_end(files: list[LogFileStatus], hint: int = -1) -> int:
    """Return the physical offset after the last record of a log.

    ``hint`` is the start or the end of a record, known from the queues; -1 for none. With a hint,
    only _FURTHER_BYTES after the last record are read instead of the whole last file. Raises
    OSError.
    """
    for file in reversed(files):
        start = hint if file.base <= hint <= file.stop else file.base
        end = _end_of_file(file, start, file.size_bytes if hint < 0 else _FURTHER_BYTES)
        if end > file.base or file is files[0]:
            return end
    return 0


def _end_of_file(file: LogFileStatus, start: int, further_bytes: int) -> int:
    """Return the end of the last record of a file, followed from the record at ``start``.

    After the last record, ``further_bytes`` are searched for another one. The limit matters because
    most of a new file is zeros, and reading them would take most of the time.
    """
    position = start
    with opened(file.path) as handle:
        while True:
            position = _follow(handle, file, position)
            further = find_record(
                handle, file, position + 1, min(position + further_bytes, file.stop)
            )
            if further < 0:
                return position
            # Damage lies between: it is reported when the records are read.
            position = further


def _follow(handle: StoreFile, file: LogFileStatus, position: int) -> int:
    """Return the end of the chain of valid records that begins at ``position``."""
    while file.stop - position >= FIXED_BYTES:
        data = read_at(handle, _SEARCH_BYTES, position - file.base)
        stop = check_records(data, 0, len(data), position)
        if stop:
            position += stop
            continue
        if len(data) < FIXED_BYTES or problem_at(data, 0, position):
            break
        size = PREFIX.unpack_from(data)[0]
        if not len(data) < size <= min(RECORD_BYTES_MAX, file.stop - position):
            break
        # The record is longer than one read: read all of it, and accept it if it can be decoded.
        if not _is_whole(read_at(handle, size, position - file.base)):
            break
        position += size
    return position


def find_record(handle: StoreFile, file: LogFileStatus, start: int, stop: int) -> int:
    """Return the first position in ``start <= position < stop`` where a record of this file begins,
    or -1. Positions are physical offsets.

    A record contains its own physical offset. The search can therefore start inside another record,
    whose bytes are not mistaken for a record.
    """
    position = start
    while position < stop:
        try:
            data_at = handle.seek(position - file.base, os.SEEK_DATA) + file.base
        except OSError:
            # Only a hole of the sparse file follows.
            return -1
        # The record may begin in the hole before the data, since its size begins with zero bytes.
        position = max(position, data_at - FIXED_BYTES)
        data = read_at(handle, _SEARCH_BYTES, position - file.base)
        # Most of a new file is zeros; comparing them is ten times faster than searching.
        found = -1 if _ZEROS.startswith(data) else next_record(data, position, 0, len(data))
        if found >= 0:
            return position + found if position + found < stop else -1
        position += max(1, len(data) - FIXED_BYTES + 1)
    return -1


def _is_whole(data: bytes) -> bool:
    try:
        decode_one(data)
    except BadRecord:
        return False
    return True


def blocks(
    file: LogFileStatus, start: int, stop: int, broker_name: str
) -> Iterator[Block | DamagedBytes]:
    """Yield the records of a log file that begin at ``start <= physical offset < stop``, in order,
    and the damage between them.

    Raises FileNotFoundError before the first block if the file is gone, OSError, StoreUnreadable.
    """
    with opened(file.path) as handle:
        held = file.base + handle.seek(0, os.SEEK_END)
        end = min(stop, held)
        if isinstance(handle, RemoteFile):
            handle.read_on(end - file.base)
        position = start
        if position > file.base:
            # A record that extends into this part belongs to the previous part.
            position = find_record(handle, file, position, end)
        while 0 <= position < end:
            found, following = _next(handle, file, position, end, broker_name)
            if found is not None and (isinstance(found, DamagedBytes) or len(found)):
                yield found
            position = following
        if held < stop:
            yield DamagedBytes(max(start, held), stop, "the file has become shorter")


def _next(
    handle: StoreFile, file: LogFileStatus, position: int, stop: int, broker_name: str
) -> tuple[Block | DamagedBytes | None, int]:
    """Read the records from ``position`` on. Return them or the damage there, and the position to
    continue at (-1: none)."""
    wanted = min(BLOCK_BYTES, file.stop - position, stop - position + _LAST_BYTES)
    data = read_at(handle, wanted, position - file.base)
    if file.stop - position < FIXED_BYTES or is_blank(data, 0, file.stop - position):
        return None, -1
    columns = RecordColumns(data, None, position)
    if not len(columns):
        size = _long_size(data, position)
        if file.stop - position >= size > len(data):
            data = read_at(handle, size, position - file.base)
            columns = RecordColumns(data, None, position)
    if not len(columns):
        problem = _problem(data, position)
        following = find_record(handle, file, position + 1, stop)
        end = following if following >= 0 else stop
        return DamagedBytes(position, end, problem), following
    block = Block(data, broker_name, columns=columns)
    if position + columns.stop > stop:
        block.choose(block.number("physical_offset") < stop)
    return block, position + columns.stop


def _problem(data: bytes, position: int) -> str:
    if len(data) < FIXED_BYTES:
        return "it is cut off"
    problem = problem_at(data, 0, position)
    if not problem and PREFIX.unpack_from(data)[0] > len(data):
        return "its size exceeds the file"
    return problem or decode.problem_at(data, 0, position)


def _long_size(data: bytes, position: int) -> int:
    """Return the size of the record that begins with ``data``, which may be longer; 0 if no record
    begins there."""
    if len(data) < FIXED_BYTES or problem_at(data, 0, position):
        return 0
    size: int = PREFIX.unpack_from(data)[0]
    return size if size <= RECORD_BYTES_MAX else 0


def has_queues(root: str) -> bool:
    """Return whether the store has queues, or only a log."""
    top = joined(root, "consumequeue")
    return bool(_names(top)) if is_url(top) else os.path.isdir(top)


def queue_names(root: str) -> list[tuple[str, int]]:
    """Return topic and id of every queue, in order."""
    found: list[tuple[str, int]] = []
    top = joined(root, "consumequeue")
    with suppress(FileNotFoundError):
        if is_url(top):
            list_below(top)
    for topic in sorted(_names(top)):
        ids = [int(name) for name in _names(joined(top, topic)) if name.isdecimal()]
        found += [(topic, queue_id) for queue_id in sorted(ids)]
    return found


def _names(path: str) -> list[str]:
    try:
        return [*listed(path)] if is_url(path) else os.listdir(path)
    except (FileNotFoundError, NotADirectoryError):
        return []


def noted_complete(root: str) -> int | None:
    """Return the physical offset up to which queue files are complete, from CometMQ's files.

    Return None if CometMQ never ran here. The offset of an outdated file is too low, which is safe.
    """
    found: list[_Positions] = []
    for name in _POSITIONS:
        try:
            with opened(joined(root, name)) as handle:
                found.append(msgspec.json.decode(read_at(handle, 1 << 20, 0), type=_Positions))
        except (OSError, msgspec.MsgspecError):
            continue
    if not found:
        return None
    newest = max(found, key=lambda each: each.number)
    return newest.written if newest.complete < 0 else newest.complete


class ConsumeQueueReader:
    """Reads the entries of one queue. A queue without files is empty.

    The files are listed at creation, or given as ``listed``. Results are cached, so that nothing is
    looked up twice.
    """

    def __init__(self, root: str, topic: str, queue_id: int, listed: Listed | None = None) -> None:
        folder = joined(root, "consumequeue", topic, str(queue_id))
        try:
            found = _numbered(folder) if listed is None else _named(folder, listed)
        except (FileNotFoundError, NotADirectoryError):
            found = []
        self._listed = tuple((base, size_bytes) for base, _, size_bytes in found)
        self._files = [
            (base // QUEUE_ENTRY_BYTES, path, size_bytes // QUEUE_ENTRY_BYTES)
            for base, path, size_bytes in found
        ]
        self._stop: int | None = None
        self._starts: dict[tuple[int, int], int] = {}
        self._seen: dict[int, StoredEntry] = {}
        self._mean_bytes: dict[tuple[int, int], int] = {}

    @property
    def exists(self) -> bool:
        """True if the queue has any file."""
        return bool(self._files)

    def listed(self, start: int, stop: int) -> Listed:
        """Return the files that have entries of a range, for the constructor in another process."""
        return tuple(
            file
            for file, (first, _, count) in zip(self._listed, self._files, strict=True)
            if first < stop and start < first + count
        )

    def stop(self, near: int = 0) -> int:
        """Return the offset after the last entry, cached by the first call. The search begins at
        ``near``, such as the end of another queue of the topic."""
        if self._stop is None:
            self._stop = self._find_stop(near)
        return self._stop

    def _find_stop(self, near: int) -> int:
        for first, path, count in reversed(self._files):
            with opened(path) as handle:

                def is_empty(number: int, of: StoreFile = handle) -> bool:
                    return _entry(of, number).size_bytes <= 0

                found = first_entry(count, near - first, is_empty)
            if found:
                return first + found
        return self._files[0][0] if self._files else 0

    def start(self, physical_min: int, stop: int, near: int = 0) -> int:
        """Return the first offset whose record is at ``physical_min`` or later; ``stop`` if there
        is none. The search begins at ``near``."""
        key = (physical_min, stop)
        if key not in self._starts:
            self._starts[key] = self._find_start(physical_min, stop, near)
        return self._starts[key]

    def _find_start(self, physical_min: int, stop: int, near: int) -> int:
        """Search the file first, then the entry in it."""

        def begins_at(offset: int) -> bool:
            found = self.entry(offset)
            return found.is_record and found.physical >= physical_min

        files = [(first, min(first + count, stop)) for first, _, count in self._files]
        files = [(low, high) for low, high in files if low < high]
        if not files:
            return stop
        if begins_at(files[0][0]):
            return files[0][0]  # the usual case: no record has been deleted
        at = bisect_left(range(1, len(files)), True, key=lambda at: begins_at(files[at][0]))
        low, high = files[at]
        found = low + first_entry(high - low, near - low, lambda number: begins_at(low + number))
        if found < high:
            return found
        return files[at + 1][0] if at + 1 < len(files) else stop

    def entry(self, offset: int) -> StoredEntry:
        """Return one entry; all its fields are 0 if there is none. Raises OSError."""
        if offset not in self._seen:
            self._seen[offset] = self._look_up(offset)
        return self._seen[offset]

    def _look_up(self, offset: int) -> StoredEntry:
        for first, path, count in self._files:
            if first <= offset < first + count:
                with opened(path) as handle:
                    return _entry(handle, offset - first)
        return StoredEntry(0, 0, 0)

    def mean_bytes(self, start: int, stop: int) -> int:
        """Return the mean size in bytes of the records of a range, 1 if there is none."""
        key = (start, stop)
        if key not in self._mean_bytes:
            sizes = self.entries(start, stop)["size"].tolist()
            sizes = [size for size in sizes if 0 < size < RECORD_BYTES_MAX]
            self._mean_bytes[key] = sum(sizes) // len(sizes) if sizes else 1
        return self._mean_bytes[key]

    def entries(self, start: int, stop: int) -> Entries:
        """Return the entries of a range, with zeros for missing ones. Raises OSError."""
        found: Entries = np.zeros(stop - start, ENTRY)
        for first, path, count in self._files:
            low, high = max(start, first), min(stop, first + count)
            if low < high:
                # A file may have been deleted since it was listed.
                with suppress(FileNotFoundError), opened(path) as handle:
                    size = (high - low) * QUEUE_ENTRY_BYTES
                    raw = read_at(handle, size, (low - first) * QUEUE_ENTRY_BYTES)
                    whole = np.frombuffer(raw, ENTRY, len(raw) // QUEUE_ENTRY_BYTES)
                    found[low - start : low - start + len(whole)] = whole
        return found


def first_entry(count: int, near: int, holds: Callable[[int], bool]) -> int:
    """Return the first entry number below ``count`` for which ``holds`` is true, else ``count``.

    ``holds`` must be true for all entries after one for which it is true. Behind a URL, each page
    costs a request, so the search first finds the page: it tests the first and the last entry of
    the page of ``near``, then of pages in growing steps from there, then halves the remaining
    range.
    """
    low, high = 0, count
    page, step = _page_of(min(max(near, 0), max(count - 1, 0))), 1
    while low < high:
        first = max(low, -(-page * PAGE_BYTES // QUEUE_ENTRY_BYTES))
        last = max(first, min(high, (page + 1) * PAGE_BYTES // QUEUE_ENTRY_BYTES) - 1)
        if holds(first):
            high, page = first, page - step
        elif not holds(last):
            low, page = last + 1, page + step
        else:
            low, high = first + 1, last
            break
        if low < high and not _page_of(low) <= page <= _page_of(high - 1):
            page = (_page_of(low) + _page_of(high - 1)) // 2
        step *= 4
    return low + bisect_left(range(low, high), True, key=holds)


def _page_of(number: int) -> int:
    return number * QUEUE_ENTRY_BYTES // PAGE_BYTES


def _named(folder: str, listed: Listed) -> list[tuple[int, str, int]]:
    return [(base, joined(folder, file_name(base)), size_bytes) for base, size_bytes in listed]


def files_now(root: str, listed: Listed, wanted: Sequence[int]) -> list[LogFileStatus]:
    """Return the listed log files that contain any of the physical offsets ``wanted`` (sorted),
    with their current sizes. Raises StoreUnreadable."""
    found: list[LogFileStatus] = []
    for base, path, size_bytes in _named(joined(root, "commitlog"), listed):
        at = bisect_left(wanted, base)
        if at < len(wanted) and wanted[at] < base + size_bytes:
            with suppress(FileNotFoundError), opened(path) as handle:
                found.append(LogFileStatus(path, base, handle.seek(0, os.SEEK_END)))
    return found


def _entry(handle: StoreFile, number: int) -> StoredEntry:
    raw = read_at(handle, QUEUE_ENTRY_BYTES, number * QUEUE_ENTRY_BYTES)
    return StoredEntry(*QUEUE_ENTRY.unpack(raw.ljust(QUEUE_ENTRY_BYTES, b"\0")))
