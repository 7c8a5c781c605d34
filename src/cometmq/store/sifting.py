"""Reading a queue for a consumer that wants some of its messages, by what their properties say.

A read (reader.py) looks at as many messages as it gives. Here blocks of messages are looked at, so
large that what they cost besides the look hardly counts; that takes messages near the end of the
log, whose bytes are at hand. What matches beyond an answer waits, for a while, for the read that
goes on there, and what was found out is kept for others that want the same (verdicts.py).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple, Protocol

from cometmq.filter.stored import texts_at
from cometmq.store.layout import HOLE_SIZE, QUEUE_ENTRY_BYTES
from cometmq.store.reader import MAX_SCANNED_ENTRIES, ReadResult, ReadStatus, empty
from cometmq.store.resident import is_recent
from cometmq.store.verdicts import Verdicts

if TYPE_CHECKING:
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

    def select(self, texts: Sequence[str]) -> Sequence[int]:
        """The numbers, from 0 and upwards, of the messages that match, by their property texts
        (filter/columns.py)."""
        ...


class _Block(NamedTuple):
    """Records of a queue in one view: where each begins in it, and its size. ``copy`` is what the
    view is of, unless that is the map of a file."""

    view: memoryview
    starts: Sequence[int]
    sizes: Sequence[int]
    copy: bytes | None = None

    @property
    def texts(self) -> list[str]:
        """The property texts of the records (filter/columns.py)."""
        return texts_at(self.copy or self.view, self.starts, self.sizes)


@dataclass(slots=True)
class _Answer:
    """What is given so far, and how much at the most."""

    max_count: int
    max_bytes: int
    chunks: list[memoryview] = field(default_factory=list)
    count: int = 0
    size_bytes: int = 0

    @property
    def room(self) -> int:
        """How many messages more."""
        return self.max_count - self.count

    def take(self, look: _Look) -> None:
        """Add what matches, as far as there is room; at least one message comes always."""
        if look.block is None:
            return
        view, starts, sizes, copy = look.block
        taken = look.matching[: -self.room - 1 : -1]
        size_bytes = sum([sizes[at] for at in taken])
        while taken and self.size_bytes + size_bytes > self.max_bytes:
            if not self.count and len(taken) == 1:
                break
            size_bytes -= sizes[taken.pop()]
        if not taken:
            return
        del look.matching[-len(taken) :]
        self.count += len(taken)
        self.size_bytes += size_bytes
        if copy is None:
            self.chunks += [view[starts[at] : starts[at] + sizes[at]] for at in taken]
        else:
            records = [copy[starts[at] : starts[at] + sizes[at]] for at in taken]
            self.chunks.append(memoryview(b"".join(records)))


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

        None when nothing can be looked at here, far behind the end of the log for one:
        :func:`reader.read` knows what to do then.
        """
        queue, start = query.queue, query.offset
        low, high = queue.min_offset, queue.max_offset
        if not low <= start < high:
            return None
        stop = min(high, start + MAX_SCANNED_ENTRIES)
        answer = _Answer(
            min(query.max_count, limits.hot_max_count), min(query.max_bytes, limits.hot_max_bytes)
        )
        known = self._looks.pop((queue, matcher), None)
        goes_on = known is not None and known.next_offset == start
        look = known if goes_on and known is not None else _Look(None, start, start, [])
        while True:
            answer.take(look)
            at = look.next_offset
            if look.matching or not answer.room or at >= stop:
                break
            known_numbers = self._verdicts.find(queue, matcher, at)
            if known_numbers is not None:
                found = _known_look(query, log, at, stop, known_numbers, answer.room)
            else:
                size = _size_of_block(at - start, answer)
                if goes_on:
                    size = max(size, min(2 * look.size, _MAX_BLOCK))
                found = self._look(query, log, at, stop, size, matcher)
            if found is None:
                break
            look = found
        if at == start:
            return None
        self._keep(queue, matcher, look)
        if not answer.count:
            return empty(ReadStatus.NO_MATCHED_MESSAGE, at, low, high)
        chunks, count, size_bytes = answer.chunks, answer.count, answer.size_bytes
        return ReadResult(ReadStatus.FOUND, at, low, high, chunks, count, size_bytes, False, [])

    def _look(
        self, query: Query, log: CommitLog, offset: int, stop: int, size: int, matcher: Matcher
    ) -> _Look | None:
        """Look at the block at an offset; None when its bytes are not at hand."""
        block = _block(query, log, offset, stop, size, to_look=True)
        if block is None:
            return None
        size = len(block.sizes)
        numbers = matcher.select(block.texts)
        self._verdicts.put(query.queue, matcher, offset, size, numbers)
        return _Look(block, offset, offset + size, [*reversed(numbers)])

    def _keep(self, queue: ConsumeQueue, matcher: Matcher, look: _Look) -> None:
        if not look.matching or look.block is None or look.block.copy is None:
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


def _size_of_block(looked_at: int, answer: _Answer) -> int:
    """How many entries to look at next: as many as should hold what is still wanted."""
    expected = 2 * answer.room
    if looked_at:
        expected = answer.room * looked_at // answer.count if answer.count else _MAX_BLOCK
    steps = -(-expected // _BLOCK_STEP)
    return min(max(steps, 1) * _BLOCK_STEP, _MAX_BLOCK)


def _block(
    query: Query, log: CommitLog, offset: int, stop: int, size: int, *, to_look: bool = False
) -> _Block | None:
    """The block at an offset, as far as its bytes are at hand; None when the first are not.

    ``to_look`` at its records they are copied, unless they are large: each look at a record in the
    map would wait for memory anew, copying it waits once.
    """
    entries = query.queue.read_at_once(offset, min(size, stop - offset))
    if not entries:
        return None
    places, sizes = _unpacked(entries)
    first = places[0]
    # No records of a block are as large together as a hole says it is.
    if sum(sizes) >= HOLE_SIZE or first < log.segments.start or log.is_far(first):
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
    total = sum(sizes)
    if not to_look or total > _MAX_COPY_BYTES:
        return _Block(view, [place - base for place in places], sizes)
    if end - first == total:
        copy = bytes(view[first - base : end - base])
    else:
        copy = b"".join(
            [
                view[(at := place - base) : at + size]
                for place, size in zip(places, sizes, strict=True)
            ]
        )
    return _Block(memoryview(copy), [*accumulate(sizes[:-1], initial=0)], sizes, copy)


def _unpacked(entries: bytes | bytearray) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Physical offsets and sizes."""
    count = len(entries) // QUEUE_ENTRY_BYTES
    unpack = _UNPACK.get(count) or Struct(">" + "qiq" * count).unpack
    fields = unpack(entries)
    return fields[::3], fields[1::3]
