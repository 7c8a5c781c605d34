"""Reading the log from the device, record by record, and finding where it goes on behind damage.

Everything is read with ``pread``, never through a map: a page that the device cannot give would end
the process there, and here it is damage like any other. So the bytes read are in proportion to the
range that is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING

from cometmq.message.flags import BORN_HOST_V6
from cometmq.message.record import (
    FIXED_BYTES,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    MAX_PROPERTIES_BYTES,
    PREFIX,
    SYS_FLAG_POSITION,
    BadRecord,
    Record,
    decode_one,
    head_of,
)

if TYPE_CHECKING:
    from cometmq.store.mapped import LogFile
    from cometmq.store.segments import Segments

_CHUNK_BYTES = 1 << 20
_PAGE_BYTES = 4096
#: What the lengths in a record's head can be told from, whatever its hosts.
_LEAST_BYTES = 128
_MAGICS = frozenset({MAGIC_V1, MAGIC_V2})
#: What both magic numbers of a record begin with.
_RECORD = MAGIC_V1.to_bytes(4, "big")[:3]
_BLANK = MAGIC_BLANK.to_bytes(4, "big")
_ZEROS = bytes(_CHUNK_BYTES)
_INT = Struct(">i")
_STORE_MS_AT = 56
_MS = Struct(">q")
#: Topic and properties with their lengths, in a record of either magic.
_TAIL_LIMIT_BYTES = 2 + 0xFFFF + 2 + MAX_PROPERTIES_BYTES

Check = Callable[[Record], str]


class Scan:
    """Reads records from ``position`` on, up to ``end`` or the end of the log.

    While a record is looked at, ``position`` is behind it; afterwards it is where the scan stopped.
    ``torn`` says that bytes other than zeros stand there, ``problem`` why they are no record.
    ``check`` may find fault with a whole record: a text from it stops the scan before that record.
    A scan whose ``position`` was put behind what stopped it may be read on.
    """

    __slots__ = (
        "_buffer",
        "_check",
        "_chunk_bytes",
        "_segments",
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
    ) -> None:
        self._segments = segments
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
        size = _size_of(view, self.position)
        if not fault and len(view) < size <= room:
            self._buffer = bytearray(size)
            view, fault = _read(file, self.position, memoryview(self._buffer))
        return view, fault

    def _walk(self, file: LogFile, view: memoryview, fault: str) -> Iterator[Record]:
        """The records that lie in ``view`` whole; it begins at ``position``."""
        start = self.position
        stop = start + len(view)
        while stop - self.position >= PREFIX.size and not self._is_over:
            at = self.position - start
            size, magic = PREFIX.unpack_from(view, at)
            if magic == MAGIC_BLANK and size == file.end - self.position:
                self.position = file.end
                return
            if at and size > stop - self.position and stop < file.end:
                return
            record = self._decode(view, at)
            if record is None:
                self.problem = fault or self.problem
                self.torn = bool(fault) or any(view[at : at + FIXED_BYTES])
                return
            self.position += size
            self.records += 1
            yield record
        if fault and self.position == start:
            self.torn, self.problem = True, fault
        elif stop == file.end and not self._is_over:
            # Not even a blank fits in what is left.
            self.position = stop

    def _decode(self, view: memoryview, at: int) -> Record | None:
        """The record at a place of ``view``; None when it is none, and ``problem`` says why."""
        try:
            record = decode_one(view, at)
        except BadRecord as error:
            self.problem = error.problem
            return None
        if record.physical_offset != self.position:
            self.problem = f"it carries physical offset {record.physical_offset}"
        elif self._check is not None:
            self.problem = self._check(record)
        return None if self.problem else record


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


def _size_of(view: memoryview, offset: int) -> int:
    """The size of the record that ``view`` begins with; 0 when its head contradicts itself."""
    if len(view) < FIXED_BYTES:
        return 0
    size, magic = PREFIX.unpack_from(view)
    (sys_flag,) = _INT.unpack_from(view, SYS_FLAG_POSITION)
    head_bytes = head_of(sys_flag).size
    if magic not in _MAGICS or len(view) < head_bytes:
        return 0
    (body_bytes,) = _INT.unpack_from(view, head_bytes - _INT.size)
    tail_bytes = size - head_bytes - body_bytes
    return size if body_bytes >= 0 and 3 <= tail_bytes <= _TAIL_LIMIT_BYTES else 0


def first_record(file: LogFile) -> Record | None:
    """The record that a file begins with; None when it begins with none."""
    head, _ = _read(file, file.base, memoryview(bytearray(min(_PAGE_BYTES, file.size_bytes))))
    size = _size_of(head, file.base)
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
    for magic in (_RECORD, _BLANK):
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
    raw = log_bytes(segments, offset, _STORE_MS_AT + 12 + _MS.size)
    if raw is None:
        return -1
    found: int = _MS.unpack_from(raw, _STORE_MS_AT + (12 if raw[39] & BORN_HOST_V6 else 0))[0]
    return found
