"""Reads of a queue for a consumer: choose the records to send, without copying a byte.

``read`` examines only queue entries and returns ranges of the log, with their bytes if these are in
memory (coldreads.py). Otherwise the result is *cold*, and the store's ``load`` reads the missing
bytes in a thread. Far from the log's end, a read returns fewer messages
(upstream: DefaultMessageStore.getMessage).

``read_matching_at_once`` is for consumers that select messages by an SQL92 expression. It examines
many messages that are in memory near the end of the log, and returns those that match. It leaves
all other data to ``read``.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

import msgspec

from cometmq.core.errors import StoreCorrupt
from cometmq.filter.sql92 import Budget
from cometmq.message.record import QUEUE_OFFSET_POSITION, iter_sizes
from cometmq.speedups import match_records, take_records
from cometmq.store.layout import HOLE_SIZE, QUEUE_ENTRY, QUEUE_ENTRY_BYTES
from cometmq.store.read.coldreads import RECENT_BYTES
from cometmq.store.read.validation import count_proven, proof_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cometmq.speedups import Program
    from cometmq.store.config import StoreConfig
    from cometmq.store.log.commitlog import CommitLog
    from cometmq.store.queue.consumequeue import ConsumeQueue
    from cometmq.store.read.coldreads import ColdReads, Piece
    from cometmq.store.read.validation import EntryRepairs

MAX_SCANNED_ENTRIES = 800
#: Number of queue entries that a filtered read examines in one step; enough for most responses.
_STEP_ENTRIES: Final = 256
_NO_BOUND: Final = 1 << 62
_iter_entries = QUEUE_ENTRY.iter_unpack

#: Queue offsets, physical offsets and sizes of the entries that a read returns.
Entries: TypeAlias = tuple["Sequence[int]", "Sequence[int]", "Sequence[int]"]


class ReadStatus(Enum):
    """The outcome of a read; the names are upstream's GetMessageStatus."""

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
    """The parameters of a read; see :func:`read`."""

    queue: ConsumeQueue
    offset: int
    max_count: int
    max_bytes: int
    codes: frozenset[int] | None

    @property
    def entry_count(self) -> int:
        """Number of queue entries to examine."""
        return self.max_count if self.codes is None else max(MAX_SCANNED_ENTRIES, self.max_count)


class ReadResult(msgspec.Struct, gc=False):
    """The result of a read.

    ``ranges`` are (physical offset, size), ``chunks`` their bytes in order; ``ranges`` may be empty
    if ``chunks`` is filled. If ``cold`` is True, ``chunks`` is empty until the store's ``load`` has
    filled it for ``query``. ``entries`` are the queue entries that the records must match; if a
    cold result has none, they must be read first. ``wrong`` is the queue offset of an entry that
    must be repaired first, -1 if there is none. ``far`` says that the records begin far from the
    log's end.
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
    wrong: int = -1
    entries: Entries | None = None


class ReadLimits(msgspec.Struct, frozen=True, gc=False):
    """Limits of one read, for hot records and for cold ones, which are far from the log's end."""

    hot_max_bytes: int
    hot_max_count: int
    cold_max_bytes: int
    cold_max_count: int


def read_limits(config: StoreConfig) -> ReadLimits:
    """Return the limits that a store's settings ask for."""
    return ReadLimits(
        config.max_transfer_bytes_on_message_in_memory,
        config.max_transfer_count_on_message_in_memory,
        config.max_transfer_bytes_on_message_in_disk,
        config.max_transfer_count_on_message_in_disk,
    )


def empty(status: ReadStatus, next_offset: int, min_offset: int, max_offset: int) -> ReadResult:
    """Return a result without messages."""
    return ReadResult(status, next_offset, min_offset, max_offset, [], 0, 0, False, [])


def read(query: Query, reads: ColdReads, limits: ReadLimits) -> ReadResult:
    """Read at most ``max_count`` messages and ``max_bytes`` from ``offset`` on.

    The first message is returned whatever its size. ``codes`` selects entries by tag code.
    ``next_offset`` of the result follows the last examined entry.
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
    return choose(entries, query, reads, limits, is_right=offset >= queue.tail_offset)


def is_far(queue: ConsumeQueue, offset: int, reads: ColdReads) -> bool:
    """Return whether the entry at an offset is for a record far from the log's end."""
    if not queue.min_offset <= offset < queue.max_offset:
        return False
    entry = queue.read_at_once(offset, 1)
    return entry is None or reads.is_far(next(_iter_entries(entry))[0])


def choose(
    entries: bytes | bytearray,
    query: Query,
    reads: ColdReads,
    limits: ReadLimits,
    *,
    is_right: bool = False,
    gone: int = -1,
) -> ReadResult:
    """Return the result for the queue entries that a query examines.

    ``is_right`` says that the entries need no check, because they were never read from a file. The
    log is known to have no records for queue offsets up to ``gone``.
    """
    found = _at_once(entries, query, reads, limits, is_right=is_right)
    if found is None and entries and reads.is_far(int.from_bytes(entries[:8], "big")):
        found = _from_windows(entries, query, reads, limits, is_right=is_right)
    if found is not None:
        return found
    return _one_by_one(entries, query, reads, limits, is_right=is_right, gone=gone)


def _at_once(
    entries: bytes | bytearray,
    query: Query,
    reads: ColdReads,
    limits: ReadLimits,
    *,
    is_right: bool,
) -> ReadResult | None:
    """Handle the usual case: all records in one file, near the log's end and in memory.

    Returns None if the entries must be examined one by one.
    """
    queue, offset, max_count, max_bytes, codes = query
    log = reads.log
    written, segments = log.written, log.segments
    first = int.from_bytes(entries[:8], "big")
    if not entries or written - first > reads.hot_bytes:
        return None
    files = segments.files
    is_last = files and files[-1].base <= first < files[-1].end
    file = files[-1] if is_last else segments.find(first)
    if file is None:
        return None
    base, end = file.base, file.end
    # The same as ColdReads.recent_from, without a call: nearly every pull runs this.
    recent = max(log.opened_at, written - min(RECENT_BYTES, reads.hot_bytes), reads.sound_from)
    found = take_records(
        entries,
        offset,
        codes,
        (min(max_count, limits.hot_max_count), min(max_bytes, limits.hot_max_bytes)),
        (file.view, base, base, min(end, written), recent),
        None if is_right else proof_of(queue),
        lambda start, stop: reads.mapped(file, start, stop) is not None,
    )
    if found is None:
        return None
    looked_at, count, size_bytes, records = found
    low, high = queue.min_offset, queue.max_offset
    if not count:
        return empty(ReadStatus.NO_MATCHED_MESSAGE, offset + looked_at, low, high)
    return ReadResult(
        ReadStatus.FOUND, offset + looked_at, low, high, [records], count, size_bytes, False, []
    )


class _Taken(msgspec.Struct, gc=False):
    """The entries that a read selects, and the number of entries that it examined.

    ``removed`` says that some were skipped because the log no longer has their records. ``wrong``
    is the queue offset of an entry that must be repaired, -1 if there is none.
    """

    offsets: list[int]
    places: list[int]
    sizes: list[int]
    scanned: int = 0
    removed: bool = False
    far: bool = False
    wrong: int = -1

    def ranges(self) -> list[tuple[int, int]]:
        """Return the ranges of the records; adjacent records are joined."""
        ranges: list[tuple[int, int]] = []
        start = stop = -1
        for place, size in zip(self.places, self.sizes, strict=True):
            if place != stop:
                if stop >= 0:
                    ranges.append((start, stop - start))
                start = place
            stop = place + size
        ranges.append((start, stop - start))
        return ranges


def _one_by_one(
    entries: bytes | bytearray,
    query: Query,
    reads: ColdReads,
    limits: ReadLimits,
    *,
    is_right: bool,
    gone: int,
) -> ReadResult:
    taken = _take(entries, query, reads, limits, is_right=is_right, gone=gone)
    if taken.wrong >= 0:
        return _wrong(query, taken.wrong)
    queue, scanned = query.queue, taken.scanned
    low, high = queue.min_offset, queue.max_offset
    if not taken.sizes:
        nothing = _nothing_found(scanned, taken.removed)
        return empty(nothing, query.offset + scanned, low, high)
    ranges = taken.ranges()
    chunks = reads.ranges_at_once(ranges)
    result = ReadResult(
        ReadStatus.FOUND, query.offset + scanned, low, high, chunks or [], len(taken.sizes),
        sum(taken.sizes), chunks is None, ranges, query, taken.far, -1,
        (taken.offsets, taken.places, taken.sizes),
    )  # fmt: skip
    if chunks is not None and not is_right:
        keep_proven(result, query)
    return result


def _take(
    entries: bytes | bytearray,
    query: Query,
    reads: ColdReads,
    limits: ReadLimits,
    *,
    is_right: bool,
    gone: int,
) -> _Taken:
    _, offset, max_count, max_bytes, codes = query
    log_start = reads.log.segments.start
    taken = _Taken([], [], [])
    count = total = stop = 0
    for scanned, (phys, size, code) in enumerate(_iter_entries(entries)):
        if codes is not None and code not in codes:
            continue
        if size == HOLE_SIZE or (
            phys < log_start
            and (
                is_right
                or offset + scanned <= gone
                or _is_gone(query.queue, entries, scanned, log_start)
            )
        ):
            taken.removed = True
            continue
        # Physical offsets increase: if not, this entry or the previous one is wrong. Return what
        # was selected before it; the next read begins with this entry.
        if not is_right and (phys < stop or not _may_be(phys, size, reads.log)):
            taken.wrong = -1 if count else offset + scanned
            taken.scanned = scanned
            return taken
        if not count:
            taken.far = far = reads.is_far(phys)
            max_bytes = min(max_bytes, limits.cold_max_bytes if far else limits.hot_max_bytes)
            max_count = min(max_count, limits.cold_max_count if far else limits.hot_max_count)
        elif total + size > max_bytes or count >= max_count:
            taken.scanned = scanned
            return taken
        taken.offsets.append(offset + scanned)
        taken.places.append(phys)
        taken.sizes.append(size)
        count += 1
        total += size
        stop = phys + size
    taken.scanned = len(entries) // QUEUE_ENTRY_BYTES
    return taken


def _may_be(place: int, size: int, log: CommitLog) -> bool:
    """Return whether the log may have a record at that position."""
    return log.segments.start <= place and size > 0 and place + size <= log.written


def _is_gone(queue: ConsumeQueue, entries: bytes | bytearray, number: int, log_start: int) -> bool:
    """Return whether an entry that points before the log's start is for a removed record.

    This is certain if the queue's first entry and the entry after this one are for removed records
    too. Otherwise the entry itself may be wrong.
    """
    at = (number + 1) * QUEUE_ENTRY_BYTES
    if at + QUEUE_ENTRY_BYTES > len(entries):
        return False
    first = queue.read(queue.min_offset, 1)
    if len(first) < QUEUE_ENTRY_BYTES:
        return False
    for entry in (
        entries[at - QUEUE_ENTRY_BYTES : at],
        entries[at : at + QUEUE_ENTRY_BYTES],
        first,
    ):
        place, size, _ = QUEUE_ENTRY.unpack(entry)
        if size <= 0 or (size != HOLE_SIZE and not 0 <= place < log_start):
            return False
    return True


def keep_proven(result: ReadResult, query: Query) -> None:
    """Keep the records before the first one that does not match its entry.

    If that is the first record, the result becomes cold until the entry is repaired.
    """
    entries = result.entries
    if entries is None or not result.chunks:
        return
    offsets, places, sizes = entries
    count = count_proven(query.queue, offsets, places, sizes[: result.count], result.chunks)
    if count == result.count:
        return
    if not count:
        _copy(_wrong(query, offsets[0]), result)
        return
    left = result.size_bytes = sum(sizes[:count])
    chunks: list[memoryview] = []
    for chunk in result.chunks:
        chunks.append(chunk[:left])
        left -= len(chunks[-1])
        if not left:
            break
    result.chunks, result.count, result.next_offset = chunks, count, offsets[count]


def _wrong(query: Query, offset: int) -> ReadResult:
    """Return a cold result that waits for the repair of an entry."""
    low, high = query.queue.min_offset, query.queue.max_offset
    found = empty(ReadStatus.FOUND, query.offset, low, high)
    found.cold, found.query, found.wrong = True, query, offset
    return found


def _copy(source: ReadResult, target: ReadResult) -> None:
    for name in ReadResult.__struct_fields__:
        setattr(target, name, getattr(source, name))


def _from_windows(
    entries: bytes | bytearray,
    query: Query,
    reads: ColdReads,
    limits: ReadLimits,
    *,
    is_right: bool,
) -> ReadResult | None:
    """Return records far from the log's end that are in windows (coldreads.py).

    The limits for hot records apply, because no record has to be read from the device. Returns None
    if the windows lack the first record, or if the entries must be examined one by one.
    """
    queue, offset, max_count, max_bytes, codes = query
    max_count = min(max_count, limits.hot_max_count)
    max_bytes = min(max_bytes, limits.hot_max_bytes)
    proof = None if is_right else proof_of(queue)
    total = len(entries) // QUEUE_ENTRY_BYTES
    chunks: list[memoryview] = []
    looked_at = count = size_bytes = 0
    while looked_at < total and count < max_count and size_bytes < max_bytes:
        start, size, _ = QUEUE_ENTRY.unpack_from(entries, looked_at * QUEUE_ENTRY_BYTES)
        part = reads.part_at_once(start, start + size, _stop_of(entries, total - 1))
        if part is None:
            break
        view, base, stop = part
        rest = range(looked_at + 1, total)
        last = looked_at + 1 + bisect_right(rest, stop, key=partial(_stop_of, entries))
        most = max_count - count, max_bytes - size_bytes
        some = entries[looked_at * QUEUE_ENTRY_BYTES : last * QUEUE_ENTRY_BYTES]
        log = view, base, start, stop, start
        found = take_records(some, offset + looked_at, codes, most, log, proof, _is_there)
        # The first record is always returned, whatever its size; a later one may exceed the limit.
        if found is None or (count and size_bytes + found[2] > max_bytes):
            break
        looked_at += found[0]
        count += found[1]
        size_bytes += found[2]
        chunks.append(found[3])
    if not count:
        return None
    low, high, onward = queue.min_offset, queue.max_offset, offset + looked_at
    return ReadResult(
        ReadStatus.FOUND, onward, low, high, chunks, count, size_bytes, False, [], None, True
    )


def _stop_of(entries: bytes | bytearray, number: int) -> int:
    """Return the end of an entry's record."""
    place, size, _ = QUEUE_ENTRY.unpack_from(entries, number * QUEUE_ENTRY_BYTES)
    return int(place + size)


def _is_there(_start: int, _stop: int) -> bool:
    return True


async def load(
    result: ReadResult, reads: ColdReads, limits: ReadLimits, repairs: EntryRepairs
) -> None:
    """Fill the chunks of a cold result; repair wrong entries first.

    Records are missing if their file was dropped in the meantime or if they follow a damaged block.
    Raises StoreCorrupt if damage leaves no record, or if an entry cannot be repaired.
    """
    gone = -1
    repaired: set[int] = set()
    while result.cold:
        query, wrong = result.query, result.wrong
        if query is None or (wrong < 0 and result.entries is not None):
            fill(result, await reads.load(result.ranges, ahead=True))
            if query is not None:
                keep_proven(result, query)
            continue
        if wrong >= 0:
            if wrong in repaired:
                raise StoreCorrupt(
                    query.queue.directory, -1, f"entry {wrong} is still wrong after its repair"
                )
            repaired.add(wrong)
            if await repairs.repair(query.queue, wrong) is None:
                gone = wrong
        _copy(choose(await _fetch(query), query, reads, limits, gone=gone), result)


async def _fetch(query: Query) -> bytes | bytearray:
    """Return the entries for a query, read in a thread unless they are in memory."""
    queue = query.queue
    if not queue.min_offset <= query.offset < queue.max_offset:
        return b""
    entries = queue.read_at_once(query.offset, query.entry_count)
    if entries is not None:
        return entries
    try:
        return await asyncio.get_running_loop().run_in_executor(
            None, queue.fetch, query.offset, query.entry_count
        )
    except StoreCorrupt:
        if query.offset < queue.min_offset:
            return b""  # the file expired in the meantime
        raise


def fill(result: ReadResult, pieces: Sequence[Piece]) -> None:
    """Set the bytes of a cold result to ``pieces``: one for each range, fewer if a file is gone.

    The result ends before the first record that touches damage. Raises StoreCorrupt if that is the
    first one.
    """
    result.cold = False
    result.chunks = chunks = [piece.view for piece in pieces]
    bad = next((number for number, piece in enumerate(pieces) if piece.damage >= 0), -1)
    if bad >= 0:
        piece = pieces[bad]
        sound = [size for _, size in iter_sizes(piece.view[: max(0, piece.damage - piece.start)])]
        chunks[bad:] = [piece.view[: sum(sound)]] if sound else []
        if not chunks:
            raise piece.error()
    if bad < 0 and len(pieces) == len(result.ranges):
        return
    if not chunks:
        result.status = ReadStatus.MESSAGE_WAS_REMOVING
        result.count = result.size_bytes = 0
        return
    *_, (last, _) = iter_sizes(chunks[-1])
    result.count = sum(1 for chunk in chunks for _ in iter_sizes(chunk))
    result.size_bytes = sum(map(len, chunks))
    at = last + QUEUE_OFFSET_POSITION
    result.next_offset = int.from_bytes(chunks[-1][at : at + 8], "big") + 1


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


class Matcher(Protocol):
    """The filter of a consumer."""

    @property
    def weight(self) -> int:
        """Number of parts of the filter that are evaluated for each message (filter/sql92.py)."""
        ...

    @property
    def program(self) -> Program:
        """The compiled filter, which runs on the properties of messages."""
        ...


class _Step(NamedTuple):
    """One step of a filtered read: what was examined, and the matching records.

    ``properties_bytes`` is the size of the examined messages' properties.
    """

    looked_at: int
    properties_bytes: int
    matches: int
    size_bytes: int
    records: memoryview


def read_matching_at_once(
    query: Query, reads: ColdReads, limits: ReadLimits, wanted: Matcher
) -> ReadResult | None:
    """Return matching messages from ``offset`` on: at most ``max_count`` and ``max_bytes``.

    The first match is returned whatever its size. At most MAX_SCANNED_ENTRIES are examined, fewer
    if the filter is costly (filter/sql92.py). Returns None if the first message is not in memory
    or its entry is wrong; then call :func:`read`.
    """
    queue, start = query.queue, query.offset
    low, high = queue.min_offset, queue.max_offset
    if not low <= start < high:
        return None
    max_count = min(query.max_count, limits.hot_max_count)
    max_bytes = min(query.max_bytes, limits.hot_max_bytes)
    budget = Budget(wanted.weight)
    at, stop = start, min(high, start + MAX_SCANNED_ENTRIES)
    chunks: list[memoryview] = []
    count = size_bytes = 0
    while at < stop and count < max_count and not budget.is_spent:
        most = max_count - count, max_bytes - size_bytes
        found = _match(queue, at, min(stop - at, _STEP_ENTRIES), reads, wanted, most, budget)
        # The first match is always returned, whatever its size; a later one may exceed the limit.
        if found is None or (count and size_bytes + found.size_bytes > max_bytes):
            break
        at += found.looked_at
        budget.take(found.looked_at, found.properties_bytes)
        if found.matches:
            chunks.append(found.records)
            count += found.matches
            size_bytes += found.size_bytes
    if at == start:
        return None
    if not count:
        return empty(ReadStatus.NO_MATCHED_MESSAGE, at, low, high)
    return ReadResult(ReadStatus.FOUND, at, low, high, chunks, count, size_bytes, False, [])


def _match(
    queue: ConsumeQueue,
    offset: int,
    entry_count: int,
    reads: ColdReads,
    wanted: Matcher,
    most: tuple[int, int],
    budget: Budget,
) -> _Step | None:
    """Filter messages of one log file; return None if the first is not in memory.

    ``most`` is the number and the size of the records that may be returned.
    """
    entries = queue.read_at_once(offset, entry_count)
    if not entries:
        return None
    first = int.from_bytes(entries[:8], "big")
    file = reads.log.segments.find(first)
    if file is None or reads.is_far(first):
        return None
    view, base, end = file.view, file.base, min(file.end, reads.log.written)
    looked_at, properties_bytes, chosen = match_records(
        wanted.program,
        entries,
        offset,
        most,
        (budget.count, budget.size_bytes),
        (view, base, base, end, reads.recent_from),
        None if offset >= queue.tail_offset else proof_of(queue),
        lambda start, stop: reads.mapped(file, start, stop) is not None,
    )
    if not looked_at:
        return None
    every = len(chosen) // QUEUE_ENTRY_BYTES, _NO_BOUND
    # These bytes are in memory and checked: the filter has read them.
    taken = take_records(
        chosen, offset, None, every, (view, base, base, end, base), None, lambda _, __: True
    )
    if taken is None:
        return None
    _, count, size_bytes, records = taken
    return _Step(looked_at, properties_bytes, count, size_bytes, records)
