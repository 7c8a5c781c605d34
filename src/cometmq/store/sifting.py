"""Reading a queue for a consumer that wants some of its messages, by what their properties say.

A read (reader.py) looks at as many messages as it gives. Here blocks of messages are looked at, so
large that what they cost besides the look hardly counts; that takes messages near the end of the
log, whose bytes are at hand. What matches beyond an answer waits, for a while, for the read that
goes on there, and what was found out is kept for others that want the same (verdicts.py).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, compress, count
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple, Protocol

from cometmq.filter.stored import properties_at
from cometmq.store.layout import HOLE_SIZE, QUEUE_ENTRY_BYTES
from cometmq.store.reader import MAX_SCANNED_ENTRIES, ReadResult, ReadStatus, empty
from cometmq.store.resident import is_recent
from cometmq.store.verdicts import Verdicts

if TYPE_CHECKING:
    from cometmq.message.record import Buffer
    from cometmq.store.commitlog import CommitLog
    from cometmq.store.consumequeue import ConsumeQueue
    from cometmq.store.reader import Query, ReadLimits

_BLOCK_STEP = 32
_MAX_BLOCK = 256
_MAX_COPY_BYTES = 256 << 10
#: Blocks that wait for the next read.
_MAX_WAITING = 32
#: Unpacks 32, 64 ... 256 entries at once into one flat tuple.
_UNPACK = {
    size: Struct(">" + "qiq" * size).unpack
    for size in range(_BLOCK_STEP, _MAX_BLOCK + 1, _BLOCK_STEP)
}


class Matcher(Protocol):
    """What a consumer wants."""

    def matches(self, properties: Sequence[Buffer]) -> Sequence[bool]:
        """Says of the property bytes of messages which of them match."""
        ...


class _Block(NamedTuple):
    """Records of a queue in one view: where each begins in it, and its size."""

    view: memoryview
    starts: Sequence[int]
    sizes: Sequence[int]
    is_in_map: bool = True


@dataclass(slots=True)
class _Look:
    """How far a consumer has looked at a queue: the block that begins at ``offset``, and which of
    its records match and were not given yet, the next one last. ``stop`` is behind the block."""

    block: _Block | None
    offset: int
    stop: int
    matching: list[int]

    @property
    def next_offset(self) -> int:
        """Nothing before it is left to be given."""
        return self.offset + self.matching[-1] if self.matching else self.stop

    @property
    def size(self) -> int:
        """Entries in the block."""
        return self.stop - self.offset


class Sifter:
    """Reads for all consumers of a store."""

    def __init__(self) -> None:
        self._looks: OrderedDict[tuple[ConsumeQueue, Matcher], _Look] = OrderedDict()
        self._verdicts = Verdicts()

    def read(
        self, query: Query, log: CommitLog, limits: ReadLimits, matcher: Matcher
    ) -> ReadResult | None:
        """At most ``max_count`` messages and ``max_bytes`` that match, from ``offset`` on; at least
        one where one is found, of at most MAX_SCANNED_ENTRIES that are looked at.

        None when nothing can be looked at here: :func:`reader.read` knows what to do then.
        """
        queue, start = query.queue, query.offset
        low, high = queue.min_offset, queue.max_offset
        if not low <= start < high:
            return None
        stop = min(high, start + MAX_SCANNED_ENTRIES)
        max_count = min(query.max_count, limits.hot_max_count)
        max_bytes = min(query.max_bytes, limits.hot_max_bytes)
        chunks: list[memoryview] = []
        total = 0
        known = self._looks.pop((queue, matcher), None)
        goes_on = known is not None and known.next_offset == start
        look = known if goes_on and known is not None else _Look(None, start, start, [])
        while True:
            if look.block is not None:
                total = _take(look, chunks, total, max_count, max_bytes)
            at = look.next_offset
            if look.matching or len(chunks) >= max_count or at >= stop:
                break
            known_numbers = self._verdicts.find(queue, matcher, at)
            if known_numbers is not None:
                found = _known_look(query, log, at, stop, known_numbers, max_count - len(chunks))
            else:
                size = _size_of_block(at - start, len(chunks), max_count)
                if goes_on:
                    size = max(size, min(2 * look.size, _MAX_BLOCK))
                found = self._look(query, log, at, stop, size, matcher)
            if found is None:
                break
            look = found
        if at == start:
            return None
        self._keep(queue, matcher, look)
        if not chunks:
            return empty(ReadStatus.NO_MATCHED_MESSAGE, at, low, high)
        return ReadResult(ReadStatus.FOUND, at, low, high, chunks, len(chunks), total, False, [])

    def _look(
        self, query: Query, log: CommitLog, offset: int, stop: int, size: int, matcher: Matcher
    ) -> _Look | None:
        """Look at the block at an offset; None when its bytes are not at hand."""
        block = _block(query, log, offset, stop, size)
        if block is None:
            return None
        block = _side_by_side(block)
        verdicts = matcher.matches(properties_at(block.view, block.starts, block.sizes))
        self._verdicts.put(query.queue, matcher, offset, verdicts)
        numbers = [*compress(count(), verdicts)]
        return _Look(block, offset, offset + len(verdicts), numbers[::-1])

    def _keep(self, queue: ConsumeQueue, matcher: Matcher, look: _Look) -> None:
        if not look.matching or look.block is None or look.block.is_in_map:
            look = _Look(None, look.next_offset - look.size, look.next_offset, [])
        self._looks[queue, matcher] = look
        if len(self._looks) > _MAX_WAITING:
            self._looks.popitem(last=False)


def _known_look(
    query: Query,
    log: CommitLog,
    offset: int,
    stop: int,
    known: tuple[int, list[int]],
    wanted: int,
) -> _Look | None:
    """As far as it is known which messages match, and no more of them than are wanted; None when
    their bytes are not at hand."""
    size, numbers = known
    if len(numbers) > wanted:
        numbers = numbers[:wanted]
        size = numbers[-1] + 1
    size = min(size, stop - offset)
    if not numbers:
        return _Look(None, offset, offset + size, [])
    block = _block(query, log, offset, stop, -(-size // _BLOCK_STEP) * _BLOCK_STEP)
    if block is None:
        return None
    size = min(size, len(block.starts))
    return _Look(block, offset, offset + size, [each for each in numbers if each < size][::-1])


def _take(look: _Look, chunks: list[memoryview], total: int, max_count: int, max_bytes: int) -> int:
    """Move what matches to ``chunks``, of ``total`` bytes, as far as there is room; gives the bytes
    that are there then."""
    assert look.block is not None
    view, starts, sizes, _ = look.block
    matching = look.matching
    while matching and len(chunks) < max_count:
        size = sizes[matching[-1]]
        if chunks and total + size > max_bytes:
            break
        at = starts[matching.pop()]
        chunks.append(view[at : at + size])
        total += size
    return total


def _size_of_block(looked_at: int, found: int, wanted: int) -> int:
    """How many entries to look at next: as many as should hold what is still wanted."""
    if looked_at:
        expected = (wanted - found) * looked_at // found if found else _MAX_BLOCK
    else:
        expected = 2 * wanted
    steps = -(-expected // _BLOCK_STEP)
    return min(max(steps, 1) * _BLOCK_STEP, _MAX_BLOCK)


def _block(query: Query, log: CommitLog, offset: int, stop: int, size: int) -> _Block | None:
    """The block at an offset, as far as its bytes are at hand; None when the first are not."""
    entries = query.queue.read_at_once(offset, min(size, stop - offset))
    if not entries:
        return None
    places, sizes = _unpacked(entries)
    first = places[0]
    if HOLE_SIZE in sizes or first < log.segments.start or log.is_far(first):
        return None
    file = log.segments.find(first)
    if file is None:
        return None
    if places[-1] + sizes[-1] > file.end:
        fitting = sum(place < file.end for place in places)
        places, sizes = places[:fitting], sizes[:fitting]
    end = places[-1] + sizes[-1]
    if file.unproven is not None and not file.is_proven(first, end):
        return None
    if is_recent(log, first):
        view, base = file.view, file.base
    else:
        found = file.resident(first, end)
        if found is None:
            return None
        view, base = found, first
    starts = [place - base for place in places]
    return _Block(view, starts, sizes)


def _side_by_side(block: _Block) -> _Block:
    """The block with its records copied, unless they are large: each look at a record in the map
    would wait for memory anew, copying it waits once."""
    view, starts, sizes, _ = block
    if sum(sizes) > _MAX_COPY_BYTES:
        return block
    records = [view[start : start + size] for start, size in zip(starts, sizes, strict=True)]
    joined = memoryview(b"".join(records))
    return _Block(joined, [*accumulate(sizes[:-1], initial=0)], sizes, is_in_map=False)


def _unpacked(entries: bytes | bytearray) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Physical offsets and sizes."""
    count = len(entries) // QUEUE_ENTRY_BYTES
    unpack = _UNPACK.get(count) or Struct(">" + "qiq" * count).unpack
    fields = unpack(entries)
    return fields[::3], fields[1::3]
