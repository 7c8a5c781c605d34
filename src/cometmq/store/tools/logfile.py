"""A walk over one log file in pieces: its records as columns, its gaps, its end.

The walk reports bytes that are neither record nor blank as a :class:`Gap`. It does not decide
whether a gap is damage or the torn end of a crash: that depends on the rest of the store.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cometmq.message.record import (
    BLANK_BYTES,
    FIXED_BYTES,
    MAGIC_BLANK,
    PREFIX,
    BadRecord,
    Record,
    TransactionType,
    claimed_size,
    decode_one,
)
from cometmq.message.walk import Bytes, is_blank, next_record, problem_at
from cometmq.speedups import WALKED_COLUMNS, check_records, walk
from cometmq.store.log.checksums import BLOCK_BYTES, sums_of

if TYPE_CHECKING:
    from cometmq.message.walk import Ints
    from cometmq.speedups import Walked
    from cometmq.store.files import Files, ReadOnlyFiles
    from cometmq.store.tools.directory import FileInfo

PIECE_BYTES = 256 * BLOCK_BYTES
_READ_BYTES = 8 * BLOCK_BYTES
#: Bytes that are read of a record before its size is known.
_HEAD_BYTES = 1 << 16
_CUT_OFF = "it is truncated by the end of the file"
_BLANK_MAGIC = MAGIC_BLANK.to_bytes(4, "big")


@dataclass(frozen=True, slots=True)
class Gap:
    """Bytes of the log that are neither record nor blank; physical offsets.

    ``open`` says that no record follows in the same file.
    """

    start: int
    stop: int
    problem: str
    open: bool


class Chunk:
    """Whole records of the log as columns; ``raw`` begins at physical offset ``base``.

    The columns have one number for each record: its position in ``raw``, its physical offset, its
    size, and the fields that dispatch needs. Row ``n`` belongs to queue
    ``queues[queue_numbers[n]]``. The next chunk reuses the buffer.
    """

    def __init__(self, raw: Bytes, base: int, walked: Walked) -> None:
        """Create a chunk of the records that a walk over ``raw`` found."""
        table = np.frombuffer(walked.rows, np.int64).reshape(-1, WALKED_COLUMNS).T.copy()
        (
            self.starts, self.sizes, self.queue_numbers, self.queue_offsets, self.tag_codes,
            self.store_ms, self.sys_flags, _, self._key_counts, *_,
        ) = table  # fmt: skip
        self.raw = raw
        self.places: Ints = self.starts + base
        self.queues = [(topic, queue_id) for topic, queue_id, _ in walked.queues]
        self.key_hashes: Ints = np.frombuffer(walked.hashes, np.uint32).astype(np.int64)

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def key_rows(self) -> Ints:
        """The row of each of ``key_hashes``, in the order of dispatch."""
        return np.repeat(np.arange(len(self)), self._key_counts)

    @property
    def takes_place(self) -> npt.NDArray[np.bool_]:
        """Mask of the records that take a place in their queue."""
        takes: npt.NDArray[np.bool_] = (self.sys_flags & TransactionType.PREPARED) == 0
        return takes

    def of_queues(self, values: Iterable[int]) -> Ints:
        """Expand values of the queues to a column: one value for each record."""
        return np.fromiter(values, np.int64, len(self.queues))[self.queue_numbers]

    def bad_bodies(self) -> list[int]:
        """Return the rows whose body does not match the record's CRC."""
        bad: list[int] = []
        at, stop = int(self.starts[0]), int(self.starts[-1] + self.sizes[-1])
        while (at := check_records(self.raw.data, at, stop, None)) < stop:
            bad.append(int(np.searchsorted(self.starts, at)))
            at += int(self.sizes[bad[-1]])
        return bad


@dataclass(slots=True)
class LogWalk:
    """A walk over the log file at ``path``, which begins at physical offset ``base``.

    ``delays_ms`` are the delays of the delay levels, because the tag codes of delayed messages are
    times. After the walk, ``end`` is the end of the last record. ``closed`` says that the file is
    full: a blank or the end of the file follows the last record. ``gaps`` has all other bytes.
    ``sums`` has the CRC of each block, if ``wants_sums``.
    """

    files: Files
    path: str
    base: int
    size_bytes: int
    delays_ms: tuple[int, ...] = ()
    wants_sums: bool = False
    piece_bytes: int = PIECE_BYTES
    end: int = -1
    closed: bool = False
    gaps: list[Gap] = field(default_factory=list)
    sums: bytearray = field(default_factory=bytearray)
    _buffer: bytearray = field(default_factory=bytearray)
    _lost: int = -1
    _lost_stop: int = -1
    _problem: str = ""

    def __iter__(self) -> Iterator[Chunk]:
        handle = self.files.open(self.path)
        try:
            yield from self._pieces(handle)
        finally:
            self.files.close(handle)

    @property
    def _file_end(self) -> int:
        return self.base + self.size_bytes

    def _pieces(self, handle: int) -> Iterator[Chunk]:
        position = start = self.base
        kept = 0
        # Find empty pieces before any read: pages that the system reads ahead would count as data.
        empty = [self._is_empty(handle, *piece) for piece in self._offsets()]
        for (offset, count), is_empty in zip(self._offsets(), empty, strict=True):
            if not self.wants_sums and (self.closed or (is_empty and self._lost >= 0)):
                start, kept = start + kept + count, 0
                position = start
                continue
            self._make_room(kept + count)
            self._read(handle, kept, offset, count)
            if self.closed:
                continue
            filled = kept + count
            position = yield from self._records(start, filled, position)
            kept = min(filled, start + filled - position)
            self._buffer[:kept] = self._buffer[filled - kept : filled]
            start = start + filled - kept
        self._finish(position)

    def _read(self, handle: int, kept: int, offset: int, count: int) -> None:
        """Read a piece after the kept bytes of the previous one, and checksum its blocks."""
        new = memoryview(self._buffer)[kept : kept + count]
        # In small parts, so that the checksum finds the bytes in the processor's cache.
        for at in range(0, count, _READ_BYTES):
            part = new[at : at + _READ_BYTES]
            found = self.files.read_into(handle, part, offset + at)
            if found < len(part):
                part[found:] = bytes(len(part) - found)
            if self.wants_sums:
                self.sums += sums_of(part)

    def _offsets(self) -> Iterator[tuple[int, int]]:
        """Yield the position in the file and the size of each piece."""
        for offset in range(0, self.size_bytes, self.piece_bytes):
            yield offset, min(self.piece_bytes, self.size_bytes - offset)

    def _is_empty(self, handle: int, offset: int, count: int) -> bool:
        """Return whether a part of the file is a hole: nothing was ever written there."""
        return self.files.next_data(handle, offset) >= offset + count

    def _make_room(self, size: int) -> None:
        if len(self._buffer) < size:
            longer = bytearray(size + BLOCK_BYTES)
            longer[: len(self._buffer)] = self._buffer
            self._buffer = longer

    def _records(self, start: int, filled: int, position: int) -> Generator[Chunk, None, int]:
        """Yield chunks from ``position`` on; return the offset at which the next piece continues.

        The buffer has ``filled`` bytes from physical offset ``start`` on.
        """
        data = self._buffer
        raw = np.frombuffer(data, np.uint8)[:filled]
        is_last = start + filled == self._file_end
        while position < start + filled:
            if self._lost >= 0:
                position = self._search(raw, start, position)
                if self._lost >= 0:
                    return position
            walked = walk(data, position - start, filled, start, self.delays_ms, check_crc=False)
            if walked.rows:
                yield Chunk(raw, start, walked)
            position = start + walked.stop
            if walked.is_open:
                continue
            if self._is_closed(start, filled, position):
                return position
            problem = self._problem_at(start, filled, walked.stop)
            if not problem and not is_last and self._may_go_on(walked.stop, filled):
                return position
            self._lost, self._problem = position, problem or _CUT_OFF
            self._lost_stop = position + (data[position - start] != 0)
            position += 1
        return position

    def _is_closed(self, start: int, filled: int, position: int) -> bool:
        room = self._file_end - position
        place = position - start
        if room == 0 or (filled - place >= BLANK_BYTES and is_blank(self._buffer, place, room)):
            self.end, self.closed = position, True
        return self.closed

    def _problem_at(self, start: int, filled: int, place: int) -> str:
        """Return why no record begins at a position; empty if an incomplete one may begin there."""
        if filled - place < FIXED_BYTES:
            return ""
        view = memoryview(self._buffer)[:filled]
        problem = problem_at(view, place, start)
        if not problem and PREFIX.unpack_from(view, place)[0] <= filled - place:
            try:
                decode_one(view, place, check_crc=False)
            except BadRecord as error:
                problem = error.problem
        return problem

    def _may_go_on(self, place: int, filled: int) -> bool:
        """Return whether the bytes at a position may begin a record that ends in a later piece.

        The limit keeps a damaged size from reading half of the file into memory.
        """
        if filled - place < FIXED_BYTES:
            return True
        view = memoryview(self._buffer)[place:filled]
        return PREFIX.unpack_from(view)[0] <= self.piece_bytes or claimed_size(view) > 0

    def _search(self, raw: Bytes, start: int, position: int) -> int:
        """Search for the next record or blank after a gap; return where to continue."""
        place, filled = position - start, len(raw)
        found = -1
        if _any(raw[place:]):
            at = next_record(self._buffer, start, place, filled)
            blank = self._find_blank(start, place, filled)
            found = min((each for each in (at, blank) if each >= 0), default=-1)
            lost = np.flatnonzero(raw[place : found if found >= 0 else filled])
            if len(lost):
                self._lost_stop = position + int(lost[-1]) + 1
        if found < 0:
            # A record may begin in the last bytes and be complete only with the next piece.
            return max(position, start + filled - FIXED_BYTES + 1)
        self.gaps.append(Gap(self._lost, start + found, self._problem, False))
        self._lost = -1
        return start + found

    def _find_blank(self, start: int, place: int, filled: int) -> int:
        at = self._buffer.find(_BLANK_MAGIC, place + 4, filled)
        while at >= 0:
            if is_blank(self._buffer, at - 4, self._file_end - start - at + 4):
                return at - 4
            at = self._buffer.find(_BLANK_MAGIC, at + 1, filled)
        return -1

    def _finish(self, position: int) -> None:
        if self._lost >= 0:
            self.end = self._lost
            if self._lost_stop > self._lost:
                self.gaps.append(Gap(self._lost, self._lost_stop, self._problem, True))
        elif not self.closed:
            self.end = position


def _any(raw: Bytes) -> bool:
    """Return whether there are nonzero bytes, by comparing eight at a time."""
    whole = len(raw) // 8 * 8
    words = np.frombuffer(raw[:whole].data, np.uint64)
    return bool(words.any() or raw[whole:].any())


def read_record(files: ReadOnlyFiles, file: FileInfo, place: int) -> Record | None:
    """Return the record at a physical offset of a log file, with its body unchecked.

    Returns None if there is none. Raises OSError.
    """
    at = place - file.base
    handle = files.open(file.path)
    try:
        data = files.pread(handle, _HEAD_BYTES, at)
        size = claimed_size(data)
        if len(data) < size <= file.size_bytes - at:
            data = files.pread(handle, size, at)
    finally:
        files.close(handle)
    try:
        return decode_one(data, check_crc=False)
    except BadRecord:
        return None
