"""Reading a queue for a consumer: decide what to send, without copying a byte of it.

``read`` looks at queue entries only and gives ranges of the log, with their bytes where that takes
no wait (resident.py). Otherwise the result is cold: the store's ``load`` gets what is missing in a
thread. Far behind the end an answer is smaller (upstream: DefaultMessageStore.getMessage).
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from enum import Enum
from itertools import accumulate
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from cometmq.message.record import PREFIX, QUEUE_OFFSET_POSITION
from cometmq.store.layout import HOLE_SIZE, QUEUE_ENTRY, QUEUE_ENTRY_BYTES
from cometmq.store.loading import damaged, load_ranges
from cometmq.store.resident import is_recent, ranges_at_once

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cometmq.store.commitlog import CommitLog
    from cometmq.store.consumequeue import ConsumeQueue
    from cometmq.store.loading import Piece
    from cometmq.store.mapped import LogFile

MAX_SCANNED_ENTRIES = 800
_iter_entries = QUEUE_ENTRY.iter_unpack
#: Unpacks 0, 1, 2 ... 32 entries at once (upstream's largest pull) into one flat tuple.
_UNPACK = [Struct(">" + "qiq" * count).unpack for count in range(33)]


class ReadStatus(Enum):
    """Why a read gave what it gave; the names are upstream's GetMessageStatus."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


class Query(NamedTuple):
    """What is asked of a queue; see :func:`read`."""

    queue: ConsumeQueue
    offset: int
    max_count: int
    max_bytes: int
    codes: frozenset[int] | None

    @property
    def entry_count(self) -> int:
        """How many queue entries are looked at."""
        return self.max_count if self.codes is None else max(MAX_SCANNED_ENTRIES, self.max_count)


class ReadResult(msgspec.Struct, gc=False):
    """What a read found. ``ranges`` are (physical offset, size); ``chunks`` their bytes, in order.

    ``ranges`` may be empty when ``chunks`` is filled already. With ``cold`` set, ``chunks`` is
    empty until the store's ``load`` has filled it; with ``query`` too, not even the queue entries
    were in memory. ``far`` says that they begin far behind the end of the log.
    """

    status: ReadStatus
    next_offset: int
    min_offset: int
    max_offset: int
    chunks: list[memoryview]
    count: int
    size_bytes: int
    cold: bool
    ranges: list[tuple[int, int]]
    query: Query | None = None
    far: bool = False


class ReadLimits(msgspec.Struct, frozen=True, gc=False):
    """How much one read gives, for hot bytes and for cold ones, those far behind the end."""

    hot_max_bytes: int
    hot_max_count: int
    cold_max_bytes: int
    cold_max_count: int


def empty(status: ReadStatus, next_offset: int, min_offset: int, max_offset: int) -> ReadResult:
    """A result without messages."""
    return ReadResult(status, next_offset, min_offset, max_offset, [], 0, 0, False, [])


def read(query: Query, log: CommitLog, limits: ReadLimits) -> ReadResult:
    """At most ``max_count`` messages and ``max_bytes`` from ``offset`` on; at least one.

    With ``codes``, only entries with one of these tag codes. ``next_offset`` is behind the last
    entry that was looked at.
    """
    queue, offset = query.queue, query.offset
    low, high = queue.min_offset, queue.max_offset
    if not low <= offset < high:
        return _outside(offset, low, high)
    entries = queue.read_at_once(offset, query.entry_count)
    if entries is None:
        waits = empty(ReadStatus.FOUND, offset, low, high)
        waits.cold, waits.query = True, query
        return waits
    return choose(entries, query, log, limits)


def is_far(queue: ConsumeQueue, offset: int, log: CommitLog) -> bool:
    """Whether a queue's entry at an offset is of a record far behind the end of the log."""
    if not queue.min_offset <= offset < queue.max_offset:
        return False
    entry = queue.read_at_once(offset, 1)
    return entry is None or log.is_far(next(_iter_entries(entry))[0])


def choose(
    entries: bytes | bytearray, query: Query, log: CommitLog, limits: ReadLimits
) -> ReadResult:
    """The result from the queue entries that a query looks at."""
    queue, offset = query.queue, query.offset
    if query.codes is None:
        plain = _plain(entries, log, min(query.max_bytes, limits.hot_max_bytes), limits)
        if plain is not None:
            chunks, count, total, far = plain
            low, high = queue.min_offset, queue.max_offset
            return ReadResult(
                ReadStatus.FOUND, offset + count, low, high, chunks, count, total, False, [],
                None, far,
            )  # fmt: skip
    return _one_by_one(entries, query, log, limits)


def _one_by_one(
    entries: bytes | bytearray, query: Query, log: CommitLog, limits: ReadLimits
) -> ReadResult:
    queue, offset, max_count, max_bytes, codes = query
    low, high, log_start = queue.min_offset, queue.max_offset, log.segments.start
    ranges: list[tuple[int, int]] = []
    start = stop = -1
    scanned = count = total = 0
    removed = far = False
    for phys, size, code in _iter_entries(entries):
        if codes is not None and code not in codes:
            scanned += 1
            continue
        if size == HOLE_SIZE or phys < log_start:
            removed = True
            scanned += 1
            continue
        if count:
            if total + size > max_bytes or count >= max_count:
                break
        else:
            far = log.is_far(phys)
            max_bytes = min(max_bytes, limits.cold_max_bytes if far else limits.hot_max_bytes)
            max_count = min(max_count, limits.cold_max_count if far else limits.hot_max_count)
        if phys != stop:
            if count:
                ranges.append((start, stop - start))
            start = phys
        stop = phys + size
        scanned += 1
        count += 1
        total += size
    if not count:
        return empty(_nothing_found(scanned, removed), offset + scanned, low, high)
    ranges.append((start, stop - start))
    chunks = None if far else ranges_at_once(log, ranges)
    if chunks is None:
        chunks = _in_windows(log, ranges)
    return ReadResult(
        ReadStatus.FOUND, offset + scanned, low, high, chunks or [], count, total, chunks is None,
        ranges, None, far,
    )  # fmt: skip


def _plain(
    entries: bytes | bytearray, log: CommitLog, max_bytes: int, limits: ReadLimits
) -> tuple[list[memoryview], int, int, bool] | None:
    """All of the entries as chunks with their count and size, and whether they are far behind the
    end, when every one is in memory, in one file and wanted; None when they have to be looked at
    one by one.

    What nearly every pull finds, in half the time of the loop: all entries are unpacked at once,
    and only the first and the last place are checked, for a queue's records go up.
    """
    count = len(entries) // QUEUE_ENTRY_BYTES
    if not 0 < count <= limits.hot_max_count:
        return None
    if count < len(_UNPACK):
        fields = _UNPACK[count](entries)
        places, sizes = fields[::3], fields[1::3]
    else:
        places, sizes = _first_within(entries, max_bytes)
        count = len(places)
        if not count:
            return None
    first, stop, total = places[0], places[-1] + sizes[-1], sum(sizes)
    if total > max_bytes or first < log.segments.start:
        return None
    file = log.segments.find(first)
    if file is None or stop > file.end:
        return None
    far = log.is_far(first)
    if far or (file.unproven is not None and not file.is_proven(first, stop)):
        found = _plain_from_windows(places, sizes, log, file)
        return None if found is None else (*found, far)
    if is_recent(log, first):
        base, whole = file.base, file.view
    else:
        resident = file.resident(first, stop)
        if resident is None:
            return None
        base, whole = first, resident
    if stop - first == total:
        return [whole[first - base : stop - base]], count, total, False
    return (
        [
            whole[place - base : place - base + size]
            for place, size in zip(places, sizes, strict=True)
        ],
        count,
        total,
        False,
    )


def _first_within(
    entries: bytes | bytearray, max_bytes: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Places and sizes of the first of many entries, as many as have ``max_bytes`` together."""
    places, sizes, _ = zip(*_iter_entries(entries), strict=True)
    count = bisect_right(list(accumulate(sizes)), max_bytes)
    return places[:count], sizes[:count]


def _plain_from_windows(
    places: tuple[int, ...], sizes: tuple[int, ...], log: CommitLog, file: LogFile
) -> tuple[list[memoryview], int, int] | None:
    """What :func:`_plain` gives, as far as windows have it: what was read already is given by the
    limits for what is in memory, without waiting for the rest."""
    find = log.windows.find
    chunks: list[memoryview] = []
    count = total = first = 0
    last = len(places) - 1
    for number, (place, size) in enumerate(zip(places, sizes, strict=True)):
        stop = place + size
        if number < last and places[number + 1] == stop:
            continue
        found = find(file, places[first], stop)
        if found is None:
            break
        chunks.append(found)
        total += len(found)
        count = first = number + 1
    return (chunks, count, total) if count else None


def _in_windows(log: CommitLog, ranges: list[tuple[int, int]]) -> list[memoryview] | None:
    """The bytes of ranges (offset, size); None when one was not read lately."""
    chunks: list[memoryview] = []
    for start, size in ranges:
        file = log.segments.find(start)
        found = None if file is None else log.windows.find(file, start, start + size)
        if found is None:
            return None
        chunks.append(found)
    return chunks


async def load(result: ReadResult, log: CommitLog, limits: ReadLimits) -> None:
    """Fill the chunks of a cold result; fewer come when their file was dropped meanwhile, or behind
    a damaged block. Raises StoreCorrupt when nothing is before that."""
    query = result.query
    if query is not None:
        entries = await asyncio.get_running_loop().run_in_executor(
            None, query.queue.fetch, query.offset, query.entry_count
        )
        found = choose(entries, query, log, limits)
        for name in ReadResult.__struct_fields__:
            setattr(result, name, getattr(found, name))
    if result.cold:
        fill(result, await load_ranges(log, result.ranges, ahead=True))


def fill(result: ReadResult, pieces: Sequence[Piece]) -> None:
    """Give a cold result its bytes: one piece for each range, fewer when a file was dropped.

    It ends before the first record that touches damage. Raises StoreCorrupt when that is the first
    one.
    """
    result.cold = False
    result.chunks = chunks = [piece.view for piece in pieces]
    bad = next((number for number, piece in enumerate(pieces) if piece.damage >= 0), -1)
    if bad >= 0:
        piece = pieces[bad]
        sound = [size for _, size in _records(piece.view[: max(0, piece.damage - piece.start)])]
        chunks[bad:] = [piece.view[: sum(sound)]] if sound else []
        if not chunks:
            raise damaged(piece)
    if bad < 0 and len(pieces) == len(result.ranges):
        return
    if not chunks:
        result.status = ReadStatus.MESSAGE_WAS_REMOVING
        result.count = result.size_bytes = 0
        return
    *_, (last, _) = _records(chunks[-1])
    result.count = sum(1 for chunk in chunks for _ in _records(chunk))
    result.size_bytes = sum(map(len, chunks))
    at = last + QUEUE_OFFSET_POSITION
    result.next_offset = int.from_bytes(chunks[-1][at : at + 8], "big") + 1


def _records(chunk: memoryview) -> list[tuple[int, int]]:
    """Place and size of each record that lies whole in a chunk."""
    found: list[tuple[int, int]] = []
    at = 0
    while at + PREFIX.size <= len(chunk):
        size = PREFIX.unpack_from(chunk, at)[0]
        if at + size > len(chunk):
            break
        found.append((at, size))
        at += size
    return found


def _nothing_found(scanned: int, removed: bool) -> ReadStatus:
    if not scanned:
        return ReadStatus.OFFSET_FOUND_NULL
    return ReadStatus.MESSAGE_WAS_REMOVING if removed else ReadStatus.NO_MATCHED_MESSAGE


def _outside(offset: int, low: int, high: int) -> ReadResult:
    if high == 0:
        return empty(ReadStatus.NO_MESSAGE_IN_QUEUE, 0, low, high)
    if offset < low:
        return empty(ReadStatus.OFFSET_TOO_SMALL, low, low, high)
    if offset == high:
        return empty(ReadStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
    return empty(ReadStatus.OFFSET_OVERFLOW_BADLY, high, low, high)
