"""What the looker (broker/looker.py) should look at next: messages some way ahead of a consumer.

A consumer that reads on through a queue by an expression will soon want to know of the messages
ahead which match. Those that it reaches before an answer could come the broker looks at itself: so
both have work, neither waits for the other, and what one looks at the other does not. How far ahead
that is, the last answer tells: as far as the consumer got until it came.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from cometmq.store.gathered import Gathered, Run
from cometmq.store.layout import QUEUE_ENTRY, QUEUE_ENTRY_BYTES
from cometmq.store.verdicts import PAGE_ENTRIES

if TYPE_CHECKING:
    from cometmq.store.commitlog import CommitLog
    from cometmq.store.consumequeue import ConsumeQueue
    from cometmq.store.mapped import LogFile
    from cometmq.store.verdicts import Verdicts

#: Messages in one request.
MAX_ASKED: Final = 2_048
#: With fewer left in the queue nobody is asked.
MIN_LEFT: Final = 512
#: As far ahead of a consumer messages are looked at.
WINDOW: Final = 16_384
#: Of longer expressions nobody is told.
MAX_EXPRESSION: Final = 1 << 16
_FIRST_LEAD: Final = 1_024
#: Records are gathered for who read on so often: not where two consumers with one expression take
#: turns at places that are far from each other.
STEADY_READS: Final = 8
#: Who knows all that is to be known asks again so many messages later.
_REST: Final = 1_024
_MAX_READERS: Final = 64


class Wanted(Protocol):
    """What a consumer wants, in words that another process understands."""

    @property
    def expression(self) -> str:
        """A SQL92 expression."""
        ...


@dataclass(slots=True)
class _Reader:
    """Who reads on through a queue by an expression, and is at ``position``. Up to ``reach``
    nothing more is to be asked for; ``lead`` is how far it gets until an answer comes. A request
    is under way since it was at ``asked_at``, unless that is -1; there is no other one before it is
    at ``due_at``. It read on ``reads`` times."""

    queue: ConsumeQueue
    wanted: Wanted
    position: int
    reach: int
    due_at: int
    reads: int = 0
    lead: int = _FIRST_LEAD
    asked_at: int = -1

    @property
    def next_start(self) -> int:
        """Where a request would begin."""
        start = max(self.reach, self.position + self.lead)
        return start + -start % PAGE_ENTRIES

    @property
    def is_due(self) -> bool:
        """Whether there is something to be asked for: not again for one that stands still."""
        return (
            self.asked_at < 0
            and self.position >= self.due_at
            and self.reach - self.position < WINDOW
            and self.queue.max_offset - self.next_start >= MIN_LEFT
        )

    def follows(self, start: int, position: int) -> bool:
        """Whether it is another one that goes from ``start`` to ``position``, who wants the same
        and is somewhat behind."""
        return self.position - WINDOW <= start < self.position and position <= self.reach


class Asked(NamedTuple):
    """A request: ``size`` messages of a reader's queue from ``offset`` on, in one log file, by
    their ``entries``; of the queue as it is since ``restarts``. With ``gathers`` the records that
    match are wanted too; they are all that is wanted where it is ``known`` which match."""

    reader: _Reader
    restarts: int
    offset: int
    size: int
    file: LogFile
    entries: bytes
    gathers: bool
    known: list[int] | None


class LookAhead:
    """Of all consumers of a store: at most one request each is under way."""

    __slots__ = ("_gathered", "_log", "_readers", "_verdicts")

    def __init__(self, log: CommitLog, verdicts: Verdicts, gathered: Gathered) -> None:
        self._log = log
        self._verdicts = verdicts
        self._gathered = gathered
        self._readers: OrderedDict[tuple[ConsumeQueue, Wanted], _Reader] = OrderedDict()

    def read_on(self, queue: ConsumeQueue, wanted: Wanted, start: int, position: int) -> bool:
        """A consumer that was at ``start`` is at ``position`` now; gives whether the looker should
        look at something for it: only when it reads on from where it was."""
        key = queue, wanted
        reader = self._readers.get(key)
        if reader is None:
            if len(wanted.expression) > MAX_EXPRESSION:
                return False
            self._readers[key] = _Reader(queue, wanted, position, position, position + 1)
            if len(self._readers) > _MAX_READERS:
                stale, _ = self._readers.popitem(last=False)
                self._gathered.drop(*stale)
            return False
        if start != reader.position:
            if reader.follows(start, position):
                return False
            self._gathered.drop(*key)
            reader.position = reader.reach = position
            reader.due_at, reader.reads = position + 1, 0
            return False
        reader.position = position
        reader.reads += 1
        self._gathered.find(queue, wanted, position)  # what is before it goes
        self._readers.move_to_end(key)
        return reader.is_due

    def forget(self) -> None:
        """There is nobody to ask any more: what is under way will not be answered."""
        self._readers.clear()
        self._gathered.clear()

    def forget_queue(self, queue: ConsumeQueue) -> None:
        """It is there no more."""
        for key in [key for key in self._readers if key[0] is queue]:
            del self._readers[key]
            self._gathered.drop(*key)

    def next(self) -> Asked | None:
        """What to look at now: for whoever has the least ahead that is known."""
        due = [reader for reader in self._readers.values() if reader.is_due]
        for reader in sorted(due, key=lambda each: each.reach - each.position):
            gathers = reader.reads >= STEADY_READS and self._gathered.has_room(
                reader.queue, reader.wanted
            )
            has_work = self._skip_known(reader, gathers)
            reader.due_at = reader.position + (1 if has_work else _REST)
            asked = self._ask(reader, gathers) if has_work else None
            if asked is not None:
                reader.reach = asked.offset + asked.size
                reader.asked_at = reader.position
                return asked
        return None

    def _skip_known(self, reader: _Reader, gathers: bool) -> bool:
        """Go on to where something is to be done; False, and it stays where it is, when all of the
        window is known, and nothing is to be gathered."""
        start, stop = reader.next_start, reader.position + WINDOW
        find = self._verdicts.find
        while start < stop:
            known = find(reader.queue, reader.wanted, start)
            if known is None or known[0] < PAGE_ENTRIES or (gathers and known[1]):
                reader.reach = start
                return True
            start += PAGE_ENTRIES
        return False

    def _ask(self, reader: _Reader, gathers: bool) -> Asked | None:
        """None when the bytes are none that another process may be sent to."""
        queue, start, log = reader.queue, reader.next_start, self._log
        count = min(queue.max_offset - start, MAX_ASKED)
        if count < MIN_LEFT or start < queue.min_offset:
            return None
        entries = queue.read_at_once(start, count)
        if not entries:
            return None
        first, _, _ = QUEUE_ENTRY.unpack_from(entries)
        file = log.segments.find(first)
        if file is None or log.is_far(first):
            return None
        place, size, _ = QUEUE_ENTRY.unpack_from(entries, len(entries) - QUEUE_ENTRY_BYTES)
        if place + size > file.end:
            entries = _entries_in(entries, file.end)
            place, size, _ = QUEUE_ENTRY.unpack_from(entries, len(entries) - QUEUE_ENTRY_BYTES)
        if file.unproven is not None and not file.is_proven(first, place + size):
            return None
        count = len(entries) // QUEUE_ENTRY_BYTES
        known = self._known(reader, start, count) if gathers else None
        return Asked(reader, queue.restarts, start, count, file, bytes(entries), gathers, known)

    def _known(self, reader: _Reader, start: int, count: int) -> list[int] | None:
        """Which of so many messages match, counted from the first; None when it is not known of
        all of them."""
        numbers: list[int] = []
        for at in range(start, start + count, PAGE_ENTRIES):
            found = self._verdicts.find(reader.queue, reader.wanted, at)
            if found is None or at + found[0] < min(at + PAGE_ENTRIES, start + count):
                return None
            numbers += [at - start + number for number in found[1]]
        return numbers[: bisect_left(numbers, count)]

    def answered(
        self, asked: Asked, numbers: list[int] | None, ends: list[int], records: bytes
    ) -> bool:
        """Take note of which of the messages match; None says that it could not be found out. The
        first of them, which end at ``ends``, are in ``records``. False when they are no more what
        was asked about."""
        reader = asked.reader
        moved = reader.position - reader.asked_at
        if moved >= 0:
            reader.lead = min(moved + moved // 4, WINDOW)
        reader.asked_at = -1
        if numbers is None or asked.restarts != reader.queue.restarts or asked.file.closed:
            return False
        if asked.known is None:
            self._verdicts.put(reader.queue, reader.wanted, asked.offset, asked.size, numbers)
        is_next = reader.reach == asked.offset + asked.size  # it went nowhere else since
        if ends and is_next and self._readers.get((reader.queue, reader.wanted)) is reader:
            size = asked.size if len(ends) == len(numbers) else numbers[len(ends)]
            start, stop = asked.offset, asked.offset + size
            run = Run(asked.restarts, start, stop, numbers[: len(ends)], [0, *ends], records)
            self._gathered.put(reader.queue, reader.wanted, run)
        return True


def _entries_in(entries: bytes | bytearray, end: int) -> bytes | bytearray:
    """Those of records before ``end``; records of a queue go up."""
    count = sum(place < end for place, _, _ in QUEUE_ENTRY.iter_unpack(entries))
    return entries[: count * QUEUE_ENTRY_BYTES]
