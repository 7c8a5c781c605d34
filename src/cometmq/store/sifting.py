"""Reading a queue for a consumer that wants some of its messages, by what their properties say.

A read (reader.py) looks at as many messages as it gives. Here blocks of messages are looked at, so
large that what they cost besides the look hardly counts; that takes messages near the end of the
log, whose bytes are at hand. What matches beyond an answer waits, for a while, for the read that
goes on there, and what was found out is kept for others that want the same (verdicts.py).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, repeat
from struct import Struct
from struct import error as StructError
from typing import TYPE_CHECKING, NamedTuple, Protocol

from cometmq.filter.budget import Budget
from cometmq.filter.stored import texts_at
from cometmq.store.gathered import Gathered
from cometmq.store.layout import HOLE_SIZE, QUEUE_ENTRY_BYTES
from cometmq.store.queueproof import are_entries_right, are_of_queue
from cometmq.store.reader import MAX_SCANNED_ENTRIES, ReadResult, ReadStatus, empty
from cometmq.store.resident import is_recent
from cometmq.store.verdicts import PAGE_ENTRIES, Verdicts

if TYPE_CHECKING:
    from cometmq.store.commitlog import CommitLog
    from cometmq.store.consumequeue import ConsumeQueue
    from cometmq.store.gathered import Run
    from cometmq.store.reader import Query, ReadLimits

_BLOCK_STEP = 32
_MAX_BLOCK = 256
_MAX_COPY_BYTES = 256 << 10
#: Blocks that wait for the next read.
_MAX_WAITING = 32
#: Of expressions of more parts nobody looks ahead: others would wait for it.
_MAX_AHEAD_WEIGHT = 64
#: Of these, and of longer ones, it is not remembered either which messages match: that would keep
#: them in memory.
_MAX_KEPT_CHARS = 16_384
#: Unpacks 32, 64 ... 256 entries at once into one flat tuple.
_UNPACK = {
    size: Struct(">" + "qiq" * size).unpack
    for size in range(_BLOCK_STEP, _MAX_BLOCK + 1, _BLOCK_STEP)
}


#: Physical offset and size, of a queue entry.
_PLACE = Struct(">qi")


class Matcher(Protocol):
    """What a consumer wants."""

    @property
    def expression(self) -> str:
        """The same in words."""
        ...

    @property
    def weight(self) -> int:
        """How many parts of it are evaluated for each message (filter/budget.py)."""
        ...

    def select(self, texts: Sequence[str]) -> Sequence[int]:
        """The numbers, from 0 and upwards, of the messages that match, by their property texts
        (filter/columns.py)."""
        ...


class Ahead(Protocol):
    """Who looks at messages before they are asked for."""

    @property
    def verdicts(self) -> Verdicts:
        """What is known."""
        ...

    @property
    def gathered(self) -> Gathered:
        """Records that match."""
        ...

    def read_on(self, queue: ConsumeQueue, wanted: Matcher, start: int, position: int) -> None:
        """A consumer that was at ``start`` of a queue is at ``position`` now."""
        ...


class _Block(NamedTuple):
    """Records of a queue in one view: where each begins in it, and its size, by its number from the
    first on. ``copy`` is what the view is of, unless that is the map of a file."""

    view: memoryview
    starts: Sequence[int] | Mapping[int, int]
    sizes: Sequence[int] | Mapping[int, int]
    copy: bytes | None = None


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

    def take_gathered(self, run: Run, at: int) -> int:
        """Add what a run has from a queue offset on; gives where to go on."""
        max_bytes = max(self.max_bytes - self.size_bytes, 0)
        records, count, onward = run.piece(at, self.room, max_bytes)
        if not count and not self.count:
            records, count, onward = run.piece(at, 1, HOLE_SIZE)
        if count:
            self.chunks.append(records)
            self.count += count
            self.size_bytes += len(records)
        return onward

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


class _Sought(NamedTuple):
    """What is looked for at an offset of a queue, before ``stop``: what an answer has room for, and
    ``budget`` is left. If a block has to be looked at, it has at least ``least`` entries."""

    answer: _Answer
    offset: int
    stop: int
    least: int
    budget: Budget


class Sifter:
    """Reads for all consumers of a store."""

    def __init__(self, ahead: Ahead | None = None) -> None:
        self._looks: OrderedDict[tuple[ConsumeQueue, int, Matcher], _Look] = OrderedDict()
        self._ahead = ahead
        self._verdicts = Verdicts() if ahead is None else ahead.verdicts
        self._gathered = Gathered() if ahead is None else ahead.gathered

    def read(
        self, query: Query, log: CommitLog, limits: ReadLimits, matcher: Matcher
    ) -> ReadResult | None:
        """At most ``max_count`` messages and ``max_bytes`` that match, from ``offset`` on; at least
        one where one is found, of at most MAX_SCANNED_ENTRIES that are looked at; fewer when
        that is much work (filter/budget.py).

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
        known = self._looks.pop((queue, queue.restarts, matcher), None)
        goes_on = known is not None and known.next_offset == start
        look = known if goes_on and known is not None else _Look(None, start, start, [])
        budget = Budget(matcher.weight)
        while True:
            answer.take(look)
            at = look.next_offset
            if look.matching or not answer.room or at >= stop or budget.is_spent:
                break
            least = min(2 * look.size, _MAX_BLOCK) if goes_on else 0
            sought = _Sought(answer, at, stop, least, budget)
            try:
                found = self._onward(query, log, sought, matcher)
            except (IndexError, OverflowError, StructError):
                found = None  # an entry is wrong: reader.read has it made right
            if found is None:
                break
            look = found
        if at == start or not are_of_queue(queue, start, at, answer.chunks):
            return None
        self._keep(queue, matcher, look)
        if (
            self._ahead is not None
            and matcher.weight <= _MAX_AHEAD_WEIGHT
            and len(matcher.expression) <= _MAX_KEPT_CHARS
        ):
            self._ahead.read_on(queue, matcher, start, at)
        if not answer.count:
            return empty(ReadStatus.NO_MATCHED_MESSAGE, at, low, high)
        chunks, count, size_bytes = answer.chunks, answer.count, answer.size_bytes
        return ReadResult(ReadStatus.FOUND, at, low, high, chunks, count, size_bytes, False, [])

    def _onward(
        self,
        query: Query,
        log: CommitLog,
        sought: _Sought,
        matcher: Matcher,
    ) -> _Look | None:
        """What comes next, the cheapest way; None when nothing can be said or added."""
        answer, at, stop, least, _ = sought
        run = self._gathered.find(query.queue, matcher, at)
        if run is not None:
            onward = answer.take_gathered(run, at)
            return _Look(None, at, onward, []) if onward > at else None
        known = self._verdicts.find(query.queue, matcher, at)
        if known is not None:
            return _known_look(query, log, at, stop, known, answer.room)
        size = max(_size_of_block(at - query.offset, answer), least)
        return self._look(query, log, sought, size, matcher)

    def _look(
        self, query: Query, log: CommitLog, sought: _Sought, size: int, matcher: Matcher
    ) -> _Look | None:
        """Look at the block at an offset; None when its bytes are not at hand."""
        offset, stop, budget = sought.offset, sought.stop, sought.budget
        size = min(size, budget.count)
        onward = offset - offset % PAGE_ENTRIES + PAGE_ENTRIES
        if offset + size > onward and self._verdicts.find(query.queue, matcher, onward):
            size = onward - offset
        found = _block(query, log, offset, stop, size)
        if found is None:
            return None
        block, texts = found
        size = budget.take(texts, None if block.copy is None else len(block.copy))
        if size < len(texts):
            texts = texts[:size]
        numbers = matcher.select(texts)
        if matcher.weight <= _MAX_AHEAD_WEIGHT and len(matcher.expression) <= _MAX_KEPT_CHARS:
            self._verdicts.put(query.queue, matcher, offset, size, numbers)
        return _Look(block, offset, offset + size, [*reversed(numbers)])

    def _keep(self, queue: ConsumeQueue, matcher: Matcher, look: _Look) -> None:
        if not look.matching or look.block is None or look.block.copy is None:
            look = _Look(None, look.next_offset - look.size, look.next_offset, [])
        self._looks[queue, queue.restarts, matcher] = look
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
    their bytes are not at hand, or an entry is wrong. Only the entries of those are taken apart."""
    size, numbers = known
    if len(numbers) > wanted:
        numbers = numbers[:wanted]
        size = numbers[-1] + 1
    size = min(size, stop - offset)
    if not numbers:
        return _Look(None, offset, offset + size, [])
    entries = query.queue.read_at_once(offset, min(numbers[-1] + 1, size))
    if not entries:
        return None
    read = len(entries) // QUEUE_ENTRY_BYTES
    if read <= numbers[-1]:
        numbers, size = [each for each in numbers if each < read], read
        if not numbers:
            return _Look(None, offset, offset + size, [])
    entry_places = [each * QUEUE_ENTRY_BYTES for each in numbers]
    places, sizes = zip(*map(_PLACE.unpack_from, repeat(entries), entry_places), strict=True)
    place = _at_hand(log, places, sizes)
    if place is None:
        return None
    if place.fitting < len(numbers):
        numbers = numbers[: place.fitting]
        size = numbers[-1] + 1
    base = place.base
    places, sizes = places[: len(numbers)], sizes[: len(numbers)]
    begins = [at - base for at in places]
    if offset < query.queue.tail_offset:
        offsets = [offset + number for number in numbers]
        if not are_entries_right(query.queue, offsets, places, sizes, place.view, begins):
            return None
    starts = dict(zip(numbers, begins, strict=True))
    block = _Block(place.view, starts, dict(zip(numbers, sizes, strict=True)))
    return _Look(block, offset, offset + size, numbers[::-1])


def _size_of_block(looked_at: int, answer: _Answer) -> int:
    """How many entries to look at next: as many as should hold what is still wanted."""
    expected = 2 * answer.room
    if looked_at:
        expected = answer.room * looked_at // answer.count if answer.count else _MAX_BLOCK
    steps = -(-expected // _BLOCK_STEP)
    return min(max(steps, 1) * _BLOCK_STEP, _MAX_BLOCK)


def _block(
    query: Query, log: CommitLog, offset: int, stop: int, size: int
) -> tuple[_Block, list[str]] | None:
    """The block at an offset, as far as its bytes are at hand, and the property texts of its
    records (filter/columns.py); None when the first are not, or an entry is wrong.

    Its records are copied, unless they are large: each look at a record in the map would wait for
    memory anew, copying it waits once.
    """
    entries = query.queue.read_at_once(offset, min(size, stop - offset))
    if not entries:
        return None
    places, sizes = _unpacked(entries)
    place = _at_hand(log, places, sizes)
    if place is None:
        return None
    places, sizes = places[: place.fitting], sizes[: place.fitting]
    view, base = place.view, place.base
    first, end = places[0], places[-1] + sizes[-1]
    total = sum(sizes)
    is_proven = offset >= query.queue.tail_offset
    offsets = range(offset, offset + len(places))
    if total > _MAX_COPY_BYTES:
        starts = [each - base for each in places]
        if not is_proven and not are_entries_right(
            query.queue, offsets, places, sizes, view, starts
        ):
            return None
        return _Block(view, starts, sizes), texts_at(view, starts, sizes)
    if end - first == total:
        copy = bytes(view[first - base : end - base])
    else:
        copy = b"".join(
            [
                view[(at := each - base) : at + size]
                for each, size in zip(places, sizes, strict=True)
            ]
        )
    starts = [*accumulate(sizes[:-1], initial=0)]
    if not is_proven and not are_entries_right(query.queue, offsets, places, sizes, copy, starts):
        return None
    return _Block(memoryview(copy), starts, sizes, copy), texts_at(copy, starts, sizes)


class _Place(NamedTuple):
    """Where records are at hand: in a view that begins at a physical offset, as many of them as
    ``fitting``."""

    view: memoryview
    base: int
    fitting: int


def _at_hand(log: CommitLog, places: Sequence[int], sizes: Sequence[int]) -> _Place | None:
    """The records that lie there, as far as they are in one file; None when the bytes of these are
    not in memory, or not known to be good."""
    first, end, fitting = places[0], places[-1] + sizes[-1], len(places)
    # No records of a block are as large together as a hole says it is.
    if sum(sizes) >= HOLE_SIZE or first < log.segments.start or log.is_far(first):
        return None
    file = log.segments.find(first)
    if file is None:
        return None
    if end > file.end:
        fitting = sum(place < file.end for place in places)
        end = places[fitting - 1] + sizes[fitting - 1]
    if file.unproven is not None and not file.is_proven(first, end):
        return None
    if is_recent(log, first):
        return _Place(file.view, file.base, fitting)
    found = file.resident(first, end)
    return None if found is None else _Place(found, first, fitting)


def _unpacked(entries: bytes | bytearray) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Physical offsets and sizes."""
    count = len(entries) // QUEUE_ENTRY_BYTES
    unpack = _UNPACK.get(count) or Struct(">" + "qiq" * count).unpack
    fields = unpack(entries)
    return fields[::3], fields[1::3]
