"""The contents of a store directory: its log files, its queues, and the end of the log.

Nothing is locked or written, so a broker may run at the same time. A file that it deletes between
two lookups is treated as if it had never existed. Layout: store/layout.py.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from io import FileIO
from typing import Final

import msgspec

from cometmq.core.errors import CometError
from cometmq.message.record import FIXED_BYTES, PREFIX, BadRecord, decode_one
from cometmq.message.walk import next_record, problem_at
from cometmq.speedups import check_records
from cometmq.store.layout import file_offset

_PIECE_BYTES: Final = 256 << 10
_ZEROS: Final = bytes(_PIECE_BYTES)
_FURTHER_BYTES: Final = 4 << 20
_RECORD_BYTES_MAX: Final = 1 << 27
_POSITIONS: Final = ("cometmq-progress.json", "cometmq-positions.json")


class NoStore(CometError):
    """Raised if ``path`` is no store directory."""

    def __init__(self, path: str, problem: str) -> None:
        self.path = path
        self.problem = problem
        super().__init__(f"{path} is not a store directory: {problem}")


@dataclass(frozen=True, slots=True)
class LogFile:
    """A file of the commit log: the physical offset of its first byte, and its length."""

    path: str
    base: int
    size_bytes: int

    @property
    def stop(self) -> int:
        """The physical offset after its last byte."""
        return self.base + self.size_bytes


class _Positions(msgspec.Struct):
    """The fields of CometMQ's position files that say how far queue files are complete."""

    written: int = 0
    complete: int = -1
    number: int = 0


def opened(path: str) -> FileIO:
    """Open a file for :func:`read_at`; the caller closes it. Raises OSError."""
    return FileIO(path)


def read_at(handle: FileIO, size: int, at: int) -> bytes:
    """Read up to ``size`` bytes from byte ``at`` of a file. Raises OSError."""
    handle.seek(at)
    return handle.read(size)


def log_files(root: str) -> list[LogFile]:
    """Return the files of the commit log, in order. Raises NoStore."""
    folder = os.path.join(root, "commitlog")
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise NoStore(root, f"commitlog cannot be listed ({error.strerror})") from None
    found: list[LogFile] = []
    for name in names:
        base = file_offset(name)
        if base is not None:
            path = os.path.join(folder, name)
            try:
                found.append(LogFile(path, base, os.stat(path).st_size))
            except FileNotFoundError:
                continue
    return found


def has_queues(root: str) -> bool:
    """Return whether the store has queues, or only a log."""
    return os.path.isdir(os.path.join(root, "consumequeue"))


def queue_names(root: str) -> list[tuple[str, int]]:
    """Return topic and id of every queue, in order."""
    found: list[tuple[str, int]] = []
    top = os.path.join(root, "consumequeue")
    for topic in sorted(_names(top)):
        ids = [int(name) for name in _names(os.path.join(top, topic)) if name.isdecimal()]
        found += [(topic, queue_id) for queue_id in sorted(ids)]
    return found


def _names(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except (FileNotFoundError, NotADirectoryError):
        return []


def noted_complete(root: str) -> int | None:
    """Return the physical offset up to which queue files are complete according to CometMQ.

    Returns None if CometMQ never ran here. An outdated position file has an offset that is too low.
    """
    found: list[_Positions] = []
    for name in _POSITIONS:
        try:
            with opened(os.path.join(root, name)) as handle:
                found.append(msgspec.json.decode(read_at(handle, 1 << 20, 0), type=_Positions))
        except (OSError, msgspec.MsgspecError):
            continue
    if not found:
        return None
    newest = max(found, key=lambda each: each.number)
    return newest.written if newest.complete < 0 else newest.complete


def log_end(files: list[LogFile], hint: int = -1) -> int:
    """Return the physical offset after the last record of a log.

    ``hint`` is the start or the end of a record, as known from the queues. With it, only some
    megabytes after the last record are read instead of the whole last file. Raises OSError.
    """
    for file in reversed(files):
        start = hint if file.base <= hint <= file.stop else file.base
        end = _end_of_file(file, start, file.size_bytes if hint < 0 else _FURTHER_BYTES)
        if end > file.base or file is files[0]:
            return end
    return 0


def _end_of_file(file: LogFile, start: int, further_bytes: int) -> int:
    """Follow the chain of sizes from ``start`` to where no further record begins within
    ``further_bytes``.

    The limit matters because most of a new file is zeros, and reading them would take most of the
    time.
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
            # The damage in between is handled when the records are read.
            position = further


def _follow(handle: FileIO, file: LogFile, position: int) -> int:
    while file.stop - position >= FIXED_BYTES:
        data = read_at(handle, _PIECE_BYTES, position - file.base)
        stop = check_records(data, 0, len(data), position)
        if stop:
            position += stop
            continue
        if len(data) < FIXED_BYTES or problem_at(data, 0, position):
            break
        size = PREFIX.unpack_from(data)[0]
        if not len(data) < size <= min(_RECORD_BYTES_MAX, file.stop - position):
            break
        # Longer than one read: it counts if it can be decoded as a whole.
        if not _is_whole(read_at(handle, size, position - file.base)):
            break
        position += size
    return position


def find_record(handle: FileIO, file: LogFile, start: int, stop: int) -> int:
    """Return the first position in ``start <= position < stop`` where a record of this file begins,
    or -1.

    A record contains its own physical offset, so the search can start anywhere inside other
    records.
    """
    position = start
    while position < stop:
        try:
            data_at = handle.seek(position - file.base, os.SEEK_DATA) + file.base
        except OSError:
            # Only a hole follows.
            return -1
        # The record may begin in the hole before the data, since sizes begin with zero bytes.
        position = max(position, data_at - FIXED_BYTES)
        data = read_at(handle, _PIECE_BYTES, position - file.base)
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
