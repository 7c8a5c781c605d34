"""Sequential reads of the log from the device, and the search for its continuation after damage.

All reads use ``pread``, never a memory map. In a map an unreadable page would end the process; here
it is reported as damage. The number of bytes read is proportional to the requested range.
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
    head_part,
    iter_spans,
    record_of,
    store_ms_of,
)
from cometmq.speedups import Walked, walk

if TYPE_CHECKING:
    from cometmq.store.log.segments import LogFile, Segments

_CHUNK_BYTES = 1 << 20
_PAGE_BYTES = 4096
#: Bytes that are enough to read all lengths in a record's head, whatever its host addresses.
_LEAST_BYTES = 128
_BLANK = MAGIC_BLANK.to_bytes(4, "big")
_PLACE = head_part("physical_offset")
_ZEROS = bytes(_CHUNK_BYTES)

Check = Callable[[Record], str]
#: Takes rows of a walk, beginning with the given one. Arguments: the walk, the physical offset of
#: its first byte, and the row. Returns the first row that it did not take.
Take = Callable[[Walked, int, int], int]


class Scan:
    """Iterates over records from ``position`` up to ``end`` or the end of the log.

    While a record is yielded, ``position`` is the record's end; after the iteration it is where the
    scan stopped. ``torn`` says that there are bytes other than zeros at that position; ``problem``
    says why they are not a record. ``check`` may reject a whole record: the scan stops before it,
    with the returned text as the problem. ``take`` may take records as rows
    (speedups/plain/walk.py; ``delays_ms`` is passed to the walk); the scan checks and yields only
    the others. To continue after a problem, set ``position`` to an offset after it and iterate
    again.
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
        """Read bytes from ``position`` on, at least the whole first record if they can be read.

        Returns them with the reason why the device returned fewer bytes, or an empty text.
        """
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
        """Yield the whole records in ``view``, which begins at ``position``."""
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
            # The remaining bytes are too few even for a blank.
            self.position = stop

    def _records(self, view: memoryview, start: int) -> Iterator[Record]:
        """Yield the records of ``view`` that ``take`` leaves. Raises BadRecord."""
        at = 0
        if self._take is not None:
            limit = len(view) if self.end is None else min(len(view), self.end - start)
            is_open = True
            while is_open:
                walked = walk(view, at, limit, start, self._delays_ms, check_crc=True)
                yield from self._not_taken(walked, self._take, view, start)
                at, is_open = walked.stop, walked.is_open
        # The walk does not say why it stopped; this loop decodes or reports what follows.
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
        """Return whether the scan can go on where ``view`` has no whole record.

        It can if a blank ends the file there (``position`` moves to the next file), or if a record
        begins there of which more bytes can be read.
        """
        left = len(view) - at
        if left < PREFIX.size:
            return False
        size, magic = PREFIX.unpack_from(view, at)
        if magic == MAGIC_BLANK and size == file.end - self.position:
            self.position = file.end
            return True
        return bool(at and size > left and self.position + left < file.end)


def _read(file: LogFile, offset: int, view: memoryview) -> tuple[memoryview, str]:
    """Fill ``view`` from a physical offset; return the filled part and why it is not all of it."""
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
    """Split ``view``, which begins at a physical offset, into parts that each lie in one page."""
    at, stop = offset, offset + len(view)
    while at < stop:
        after = min(at - (at - file.base) % _PAGE_BYTES + _PAGE_BYTES, stop)
        yield at, view[at - offset : after - offset]
        at = after


def first_record(file: LogFile) -> Record | None:
    """Return the first record of a file, or None if it does not begin with a record."""
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
    """The place where the log continues after damage: a valid record, or a file's last blank.

    ``store_ms`` is the record's store time, 0 for a blank.
    """

    offset: int
    store_ms: int


def resumption(segments: Segments, damage: int, *, of_records: bool = False) -> Resumption | None:
    """Find the first place after the record at ``damage`` from which the log can be read on.

    Returns None if no valid record or blank follows; ``of_records`` ignores blanks. A record is
    valid if its lengths, the CRC of its body and its own physical offset are right.
    """
    for file in segments.files:
        start = max(damage + FIXED_BYTES, file.base)
        for offset in _candidates(file, start):
            found = _at(segments, file, offset)
            if found is not None and (found.store_ms or not of_records):
                return found
    return None


def _candidates(file: LogFile, start: int) -> Iterator[int]:
    """Yield offsets of a file, from ``start`` on, at which a record or a blank may begin.

    These are the places four bytes before each magic number.
    """
    buffer = bytearray(_CHUNK_BYTES)
    while (start := file.next_data(start)) + PREFIX.size <= file.end:
        view = memoryview(buffer)[: file.end - start]
        try:
            file.read_into(view, start)
        except OSError:
            read_around(file, start, view)
        chunk = bytes(view)
        # Most of a last file was allocated but never written: skip zeros quickly.
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
    """Fill ``view`` from a physical offset, with zeros for pages that cannot be read."""
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
    # A body may be full of heads that claim any size: a record is read only if it states its place.
    head, fault = _read(file, offset, memoryview(bytearray(_PLACE.size)))
    if fault or _PLACE.unpack(head)[0] != offset:
        return None
    record = next(
        iter(Scan(segments, offset, offset + 1, chunk_bytes=min(size, _CHUNK_BYTES))), None
    )
    return None if record is None else Resumption(offset, record.store_ms)


def log_bytes(segments: Segments, offset: int, size_bytes: int) -> bytes | None:
    """Return bytes of the log; None if they are not within one file or cannot be read."""
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
    """Return the store time of the record at an offset, ms; -1 if it cannot be read."""
    raw = log_bytes(segments, offset, STORE_MS_BYTES)
    return -1 if raw is None else store_ms_of(raw)
