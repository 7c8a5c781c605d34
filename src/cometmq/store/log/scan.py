"""Reading the log from the device, record by record, and finding where it goes on behind damage.

Everything is read with ``pread``, never through a map: a page that the device cannot give would end
the process there, and here it is damage like any other. So the bytes read are in proportion to the
range that is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cometmq.message.record import (
    FIXED_BYTES,
    MAGIC_BLANK,
    MAGIC_START,
    PREFIX,
    STORE_MS_BYTES,
    BadRecord,
    Record,
    claimed_size,
    decode_one,
    iter_spans,
    record_of,
    store_ms_of,
)
from cometmq.speedups import Walked, walk

if TYPE_CHECKING:
    from cometmq.store.log.logfile import LogFile
    from cometmq.store.log.segments import Segments

_CHUNK_BYTES = 1 << 20
_PAGE_BYTES = 4096
#: What the lengths in a record's head can be told from, whatever its hosts.
_LEAST_BYTES = 128
_BLANK = MAGIC_BLANK.to_bytes(4, "big")
_ZEROS = bytes(_CHUNK_BYTES)

Check = Callable[[Record], str]
#: Takes the rows of a walk from one on, given the physical offset of the first byte that was walked
#: over; gives the row at which that ended.
Take = Callable[[Walked, int, int], int]


class Scan:
    """Reads records from ``position`` on, up to ``end`` or the end of the log.

    While a record is looked at, ``position`` is behind it; afterwards it is where the scan stopped.
    ``torn`` says that bytes other than zeros stand there, ``problem`` why they are no record.
    ``check`` may find fault with a whole record: a text from it stops the scan before that record.
    ``take`` may take records as rows (speedups/plain/walk.py), ``delays_ms`` are for these; only
    what it does not take is checked and given. A scan whose ``position`` was put behind what
    stopped it may be read on.
    """

    __slots__ = (
        "_buffer",
        "_check",
        "_chunk_bytes",
        "_delays_ms",
        "_segments",
        "_take",
        "end",
        "position",
        "problem",
        "records",
        "torn",
    )

    def __init__(
        self,
        segments: Segments,
        start: int,
        end: int | None = None,
        check: Check | None = None,
        chunk_bytes: int = _CHUNK_BYTES,
        take: Take | None = None,
        delays_ms: tuple[int, ...] = (),
    ) -> None:
        self._segments = segments
        self._take = take
        self._delays_ms = delays_ms
        self._chunk_bytes = max(chunk_bytes, _LEAST_BYTES)
        self._buffer = bytearray()
        self._check = check
        self.position = start
        self.end = end
        self.records = 0
        self.torn = False
        self.problem = ""

    def __iter__(self) -> Iterator[Record]:
        self.torn, self.problem = False, ""
        while not self.problem and not self._is_over:
            file = self._segments.find(self.position)
            if file is None:
                return
            view, fault = self._load(file)
            yield from self._walk(file, view, fault)

    @property
    def _is_over(self) -> bool:
        return self.end is not None and self.position >= self.end

    def _load(self, file: LogFile) -> tuple[memoryview, str]:
        """Bytes from ``position`` on, as many as the first record there needs or more; and why
        there are no more of them, when the device gives no more."""
        room = file.end - self.position
        if len(self._buffer) < (wanted := min(room, self._chunk_bytes)):
            self._buffer = bytearray(wanted)
        view, fault = _read(file, self.position, memoryview(self._buffer)[:room])
        size = claimed_size(view)
        if not fault and len(view) < size <= room:
            self._buffer = bytearray(size)
            view, fault = _read(file, self.position, memoryview(self._buffer))
        return view, fault

    def _walk(self, file: LogFile, view: memoryview, fault: str) -> Iterator[Record]:
        """The records that lie in ``view`` whole; it begins at ``position``."""
        start = self.position
        stop = start + len(view)
        try:
            for record in self._records(view, start):
                if self._is_over:
                    return
                self.problem = self._check(record) if self._check is not None else ""
                if self.problem:
                    break
                self.position += record.size_bytes
                self.records += 1
                yield record
        except BadRecord as error:
            at = self.position - start
            if self._is_over or self._goes_on(file, view, at):
                return
            if stop - self.position >= PREFIX.size:
                self.problem = error.problem
        if self.problem:
            at = self.position - start
            self.problem = fault or self.problem
            self.torn = bool(fault) or any(view[at : at + FIXED_BYTES])
        elif fault and self.position == start:
            self.torn, self.problem = True, fault
        elif stop == file.end and not self._is_over:
            # Not even a blank fits in what is left.
            self.position = stop

    def _records(self, view: memoryview, start: int) -> Iterator[Record]:
        """The records of ``view`` that are not taken as rows. Raises BadRecord."""
        at = 0
        if self._take is not None:
            limit = len(view) if self.end is None else min(len(view), self.end - start)
            is_open = True
            while is_open:
                walked = walk(view, at, limit, start, self._delays_ms, check_crc=True)
                yield from self._not_taken(walked, self._take, view, start)
                at, is_open = walked.stop, walked.is_open
        # Whatever stopped the walk, this decides.
        for span in iter_spans(view, at, base=start):
            yield record_of(view, span)

    def _not_taken(
        self, walked: Walked, take: Take, view: memoryview, start: int
    ) -> Iterator[Record]:
        row, count = 0, walked.row_count
        while row < count:
            stop = take(walked, start, row)
            if stop > row:
                self.records += stop - row
                self.position = start + walked.end(stop - 1)
                row = stop
            else:
                yield decode_one(view, walked.begin(row), walked.end(row), check_crc=False)
                row += 1

    def _goes_on(self, file: LogFile, view: memoryview, at: int) -> bool:
        """Whether at a place without a whole record stands the blank that ends the file, or the
        first part of a record, of which more can be read."""
        left = len(view) - at
        if left < PREFIX.size:
            return False
        size, magic = PREFIX.unpack_from(view, at)
        if magic == MAGIC_BLANK and size == file.end - self.position:
            self.position = file.end
            return True
        return bool(at and size > left and self.position + left < file.end)


def _read(file: LogFile, offset: int, view: memoryview) -> tuple[memoryview, str]:
    """Fill ``view`` from a physical offset; what of it was filled, and why not all of it."""
    try:
        file.read_into(view, offset)
        return view, ""
    except OSError:
        for at, page in _pages(file, offset, view):
            try:
                file.read_into(page, at)
            except OSError as error:
                return view[: at - offset], f"it cannot be read from the device: {error}"
        return view, ""


def _pages(file: LogFile, offset: int, view: memoryview) -> Iterator[tuple[int, memoryview]]:
    """``view``, which begins at a physical offset, in parts that each lie in one page."""
    at, stop = offset, offset + len(view)
    while at < stop:
        after = min(at - (at - file.base) % _PAGE_BYTES + _PAGE_BYTES, stop)
        yield at, view[at - offset : after - offset]
        at = after


def first_record(file: LogFile) -> Record | None:
    """The record that a file begins with; None when it begins with none."""
    head, _ = _read(file, file.base, memoryview(bytearray(min(_PAGE_BYTES, file.size_bytes))))
    size = claimed_size(head)
    if size > file.size_bytes:
        return None
    if size > len(head):
        head, _ = _read(file, file.base, memoryview(bytearray(size)))
    try:
        return decode_one(head, check_crc=False)
    except BadRecord:
        return None


@dataclass(frozen=True, slots=True)
class Resumption:
    """Where the log goes on behind damage: a good record, or a blank that ends a file.

    ``store_ms`` is the record's store time, 0 for a blank.
    """

    offset: int
    store_ms: int


def resumption(segments: Segments, damage: int, *, of_records: bool = False) -> Resumption | None:
    """The first place behind the record at ``damage`` from which the log can be read on; None when
    all that follows is no log. ``of_records`` passes blanks by.

    A record counts when its lengths, its body's CRC and its own physical offset are right.
    """
    for file in segments.files:
        start = max(damage + FIXED_BYTES, file.base)
        for offset in _candidates(file, start):
            found = _at(segments, file, offset)
            if found is not None and (found.store_ms or not of_records):
                return found
    return None


def _candidates(file: LogFile, start: int) -> Iterator[int]:
    """Offsets of a file, from ``start`` on, at which a record or a blank may begin: before their
    magic numbers."""
    buffer = bytearray(_CHUNK_BYTES)
    while (start := file.next_data(start)) + PREFIX.size <= file.end:
        view = memoryview(buffer)[: file.end - start]
        try:
            file.read_into(view, start)
        except OSError:
            read_around(file, start, view)
        chunk = bytes(view)
        # What was allocated and never written is most of a last file.
        if chunk != _ZEROS[: len(chunk)]:
            yield from (start + place for place in sorted(_places(chunk)))
        start += max(len(chunk) - PREFIX.size + 1, 1)


def _places(chunk: bytes) -> Iterator[int]:
    for magic in (MAGIC_START, _BLANK):
        place = chunk.find(magic, 4)
        while place >= 0:
            yield place - 4
            place = chunk.find(magic, place + 1)


def read_around(file: LogFile, offset: int, view: memoryview) -> None:
    """Fill ``view`` from a physical offset; pages that the device does not give are zeros."""
    for at, page in _pages(file, offset, view):
        try:
            file.read_into(page, at)
        except OSError:
            page[:] = bytes(len(page))


def _at(segments: Segments, file: LogFile, offset: int) -> Resumption | None:
    head, fault = _read(file, offset, memoryview(bytearray(PREFIX.size)))
    if fault:
        return None
    size, magic = PREFIX.unpack(head)
    if magic == MAGIC_BLANK:
        return Resumption(offset, 0) if size == file.end - offset else None
    if not FIXED_BYTES <= size <= file.end - offset:
        return None
    record = next(
        iter(Scan(segments, offset, offset + 1, chunk_bytes=min(size, _CHUNK_BYTES))), None
    )
    return None if record is None else Resumption(offset, record.store_ms)


def log_bytes(segments: Segments, offset: int, size_bytes: int) -> bytes | None:
    """Bytes of the log; None when they are not in one file, or cannot be read."""
    file = segments.find(offset)
    if file is None or offset + size_bytes > file.end:
        return None
    found = bytearray(size_bytes)
    try:
        file.read_into(found, offset)
    except OSError:
        return None
    return bytes(found)


def log_store_ms(segments: Segments, offset: int) -> int:
    """When the record at an offset was stored, ms; -1 when none can be read there."""
    raw = log_bytes(segments, offset, STORE_MS_BYTES)
    return -1 if raw is None else store_ms_of(raw)
