"""Dispatch: passes records of the log to consume queues, index and listeners.

Live appends and recovery use the same path, and the same rows (queue/consumequeue.py). A *segment*
is a group of consecutive records (``RecordGroup``), not a file of the log.

Records are dispatched in the order of the log. The :class:`Backlog` holds committed segments that
may not be dispatched yet: with SYNC_FLUSH until the device has them, and large commits until later
turns of the loop. Later commits queue up behind them. Senders do not wait for the dispatch: an
answer promises what the flush policy says, not that every queue has its entry.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from cometmq.core.histogram import Histogram
from cometmq.filter.tags import tag_code
from cometmq.message import properties as props
from cometmq.message.record import (
    TRANSACTION_MASK,
    BadRecord,
    TransactionType,
    decode_one,
    takes_queue_slot,
)
from cometmq.speedups import WriteBatch
from cometmq.store.index import BATCH_KEYS
from cometmq.store.layout import QUEUE_ENTRY, SCHEDULE_TOPIC
from cometmq.store.log.scan import log_bytes, log_store_ms
from cometmq.store.queue.consumequeue import ConsumeQueue, Mark

if TYPE_CHECKING:
    from cometmq.message.record import Record
    from cometmq.store.index import Index
    from cometmq.store.log.segments import Segments
    from cometmq.store.queue.consumequeue import Dispatched, RecordGroup
    from cometmq.store.queue.journal import EntryJournal
    from cometmq.store.queue.queuefiles import QueueFiles

logger = logging.getLogger(__name__)

#: A function called with the queues that got messages; a queue may appear twice.
Listener: TypeAlias = Callable[[Sequence[ConsumeQueue]], None]

#: Rows that are dispatched before the loop serves other events, about 1 ms.
ROWS_PER_TURN = 1_024
#: If this many rows wait after a commit, later turns of the loop dispatch all of them.
MANY_ROWS = 16_384
#: The delay of every level if the settings define no levels.
_UNKNOWN_DELAY_MS = 1_000
#: Upper bounds of the histogram of the time from commit to dispatch, in seconds.
DELAY_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Dispatcher:
    """Appends rows to queues and index.

    ``position`` is the log offset up to which records were dispatched; ``messages`` and
    ``size_bytes`` count them; ``last_ms`` is the store time of the last one. ``problem`` is the
    error of the last failed write, None after a success. Entries stay in memory after an error, and
    the next write tries again. A queue is *dirty* while its files lack entries.
    """

    __slots__ = (
        "_dirty",
        "_index",
        "_mark",
        "_marks",
        "_pool",
        "grown",
        "journal",
        "last_ms",
        "listeners",
        "messages",
        "position",
        "problem",
        "size_bytes",
    )

    def __init__(self, index: Index, pool: QueueFiles, journal: EntryJournal) -> None:
        self._index = index
        self._pool = pool
        self.journal = journal
        #: Dirty queues, longest wait first; ``_marks`` has the position since which the files of
        #: each one lack entries.
        self._dirty: deque[ConsumeQueue] = deque()
        self._marks: deque[Mark] = deque()
        self._mark: Mark = (0, 0)
        #: Queues that may have got messages since :meth:`take_grown`: those that became dirty since
        #: then, and those that were dirty at the time.
        self.grown: dict[ConsumeQueue, None] = {}
        self.listeners: list[Listener] = []
        self.position = 0
        self.messages = self.size_bytes = 0
        self.last_ms = 0
        self.problem: OSError | None = None

    def begin(self, position: int) -> None:
        """Start at ``position``: queue files and index hold all of the log before it."""
        self.position = position
        self._mark = (position, 0)

    def dispatch(self, segment: RecordGroup, end: int, now_ms: int) -> None:
        """Dispatch a segment that ends at the physical offset ``end``.

        Segments must come in log order. A new index file is named after ``now_ms``.
        """
        if isinstance(segment, WriteBatch):
            grown, due = self._dispatch_batch(segment)
        else:
            grown, due = self._dispatch_rows(segment)
        self.position = end
        self._mark = (end, self.last_ms)
        if self._index.pending >= BATCH_KEYS:
            self.write_index(now_ms)
        for queue in due:
            self._write(queue)
        if 0 <= self.journal.end < end:
            self._note_entries(segment)
        for listener in (*self.listeners,):  # a listener may remove itself
            try:
                listener(grown)
            except Exception:
                # The records are stored: a listener's bug must not fail the senders.
                logger.exception("dispatch_listener_failed listener=%r", listener)

    def _dispatch_rows(
        self, rows: Sequence[Dispatched]
    ) -> tuple[list[ConsumeQueue], list[ConsumeQueue]]:
        """Dispatch rows; return the queues that have more messages, and those to write at once."""
        pack = QUEUE_ENTRY.pack
        grown: dict[ConsumeQueue, None] = {}
        for row in rows:
            queue, queue_offset, phys, size, code, _, _ = row
            grown[queue] = None
            self.size_bytes += size
            # The usual case: the entry is the next one of its queue.
            if queue_offset == queue.max_offset:
                queue.tail += pack(phys, size, code)
                queue.max_offset = queue_offset + 1
                queue.put_count += 1
                queue.put_bytes += size
                queue.put_times += 1
                if not queue.is_dirty:
                    self._soil(queue)
            elif queue_offset >= 0:
                self._out_of_order(row)
        self.messages += len(rows)
        if rows:
            self._index.gather(rows)
            self.last_ms = rows[-1][5]
        return [*grown], [queue for queue in grown if self._is_due(queue)]

    def _dispatch_batch(self, batch: WriteBatch) -> tuple[list[ConsumeQueue], list[ConsumeQueue]]:
        """Dispatch a write batch; return the same as :meth:`_dispatch_rows`."""
        grown: list[ConsumeQueue] = []
        due: list[ConsumeQueue] = []
        in_order = False
        while not in_order:
            # The core stops at a row that is out of order; such rows are dispatched one by one.
            queues, (count, size_bytes), soiled, long_ones, in_order = batch.dispatch(
                self._pool.long_bytes
            )
            for queue in soiled:
                self._soil(queue)
            row = None if in_order else batch.pass_row()
            if row is not None:
                queue = row[0]
                self._out_of_order(row)
                queues.append(queue)
                count, size_bytes = count + 1, size_bytes + row[3]
                if self._is_due(queue):
                    long_ones.append(queue)
            self.messages += count
            self.size_bytes += size_bytes
            grown += queues
            due += long_ones
        self._index.gather_batch(batch)
        if len(batch):
            self.last_ms = batch.last_ms
        return grown, due

    def _is_due(self, queue: ConsumeQueue) -> bool:
        return queue.is_prompt or len(queue.tail) >= self._pool.long_bytes

    def _soil(self, queue: ConsumeQueue) -> None:
        queue.is_dirty = True
        self.grown[queue] = None
        self._dirty.append(queue)
        self._marks.append(self._mark)

    def _out_of_order(self, row: Dispatched) -> None:
        queue, queue_offset, phys, size, code, _, _ = row
        if queue_offset < queue.max_offset:
            if not queue.is_older_than(phys):
                # The entry survived the crash: recovery starts before the end of the queue.
                return
            # The topic was deleted and created again: these entries are from before the deletion.
            queue.begin_again_at(queue_offset)
        queue.fill_to(queue_offset)
        queue.tail += QUEUE_ENTRY.pack(phys, size, code)
        queue.max_offset = queue_offset + 1
        queue.put_count += 1
        queue.put_bytes += size
        queue.put_times += 1
        if not queue.is_dirty:
            self._soil(queue)

    def _write(self, queue: ConsumeQueue) -> None:
        """Write a queue that must not wait or has many entries in memory.

        It keeps its place among the dirty queues, whose marks must stay in order.
        """
        try:
            queue.write()
        except OSError as error:
            self._failed(error)

    def _note_entries(self, segment: RecordGroup) -> None:
        try:
            self.journal.add(segment, self.position)
        except OSError as error:
            self._failed(error)

    def take_grown(self) -> list[ConsumeQueue]:
        """Return the queues that may have got messages since the last call."""
        grown, self.grown = self.grown, dict.fromkeys(self._dirty)
        return [*grown]

    @property
    def dirty_count(self) -> int:
        """Number of queues with entries that are not in their files yet."""
        return len(self._dirty)

    @property
    def complete(self) -> Mark:
        """The mark before which the queue files hold the entries of all records."""
        return self._marks[0] if self._marks else self._mark

    def write(self, now_ms: int, limit: int | None = None, before: int | None = None) -> bool:
        """Write the entries of the queues that wait longest, then index entries and journal.

        Writes at most ``limit`` queues, and none whose files are complete up to the log offset
        ``before`` (default: ``position``). Returns True if all files are now complete up to there.
        After an error, entries stay in memory and ``problem`` is set.
        """
        dirty = self._dirty
        bound = self.position if before is None else before
        left = len(dirty) if limit is None else limit
        try:
            while dirty and left and self.complete[0] < bound:
                dirty[0].write()
                dirty.popleft().is_dirty = False
                self._marks.popleft()
                left -= 1
            self.problem = None
        except OSError as error:
            self._failed(error)
        gathered = self.write_gathered(now_ms)
        return gathered and self.problem is None and self.complete[0] >= bound

    def write_index(self, now_ms: int) -> bool:
        """Write the gathered index entries; return whether that succeeded."""
        try:
            self._index.flush_pending(now_ms)
        except OSError as error:
            self._failed(error)
            return False
        return True

    def write_gathered(self, now_ms: int) -> bool:
        """Write the gathered index entries and the rows of the journal.

        Returns whether both succeeded.
        """
        if not self.write_index(now_ms):
            return False
        try:
            if self.journal.start >= 0:
                self.journal.write(self.position)
        except OSError as error:
            self._failed(error)
            return False
        return True

    def _failed(self, error: OSError) -> None:
        if self.problem is None:
            logger.error("dispatch_write_failed error=%r", str(error))
        self.problem = error

    def resume(self, queue: ConsumeQueue, since: Mark) -> None:
        """Add a dirty queue that was restored from the journal.

        Its files may lack entries for records since ``since``.
        """
        queue.is_dirty = True
        self.grown[queue] = None
        self._dirty.append(queue)
        self._marks.append(since)

    def forget(self, gone: Set[ConsumeQueue]) -> None:
        """Drop the unwritten entries of queues that are being deleted."""
        for queue in gone:
            self.grown.pop(queue, None)
        kept = [pair for pair in zip(self._dirty, self._marks, strict=True) if pair[0] not in gone]
        self._dirty = deque(queue for queue, _ in kept)
        self._marks = deque(mark for _, mark in kept)
        if self.journal.start >= 0:
            self.journal.forget(gone)


class Backlog:
    """The segments that wait for their dispatch; ``messages`` counts their rows.

    Until :meth:`start`, released segments are dispatched at once. ``call_soon`` runs a function in
    a later turn of the loop; it is None while there are no later turns. ``delays`` counts messages
    by the time from their commit to their dispatch, in seconds. A small commit that is dispatched
    at once counts as 0 without reading the clock.
    """

    __slots__ = (
        "_again",
        "_dispatcher",
        "_limit",
        "_now_ns",
        "_waiting",
        "call_soon",
        "delays",
        "messages",
    )

    def __init__(self, dispatcher: Dispatcher, now_ns: Callable[[], int]) -> None:
        self._dispatcher = dispatcher
        self._now_ns = now_ns
        #: The physical end of each segment, the segment, and when it was taken (monotonic ns).
        self._waiting: deque[tuple[int, RecordGroup, int]] = deque()
        self.delays = Histogram(DELAY_BOUNDS_S)
        #: Physical offset up to which segments are released.
        self._limit = 0
        #: True while a later turn of the loop will go on with the dispatch.
        self._again = False
        self.call_soon: Callable[[Callable[[], None]], object] | None = None
        self.messages = 0

    def start(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        """Spread the dispatch of many messages over turns of the loop from now on."""
        self.call_soon = call_soon

    def take(self, segments: list[RecordGroup], end: int, now_ms: int, *, ready: bool) -> None:
        """Take the segments that a turn committed, up to the physical offset ``end``.

        ``ready`` says that consumers may see them at once.
        """
        # The usual case: nothing waits, and the turn is small.
        if ready and len(segments) == 1 and not self._waiting and len(segments[0]) <= ROWS_PER_TURN:
            self.delays.counts[0] += len(segments[0])
            self._dispatcher.dispatch(segments[0], end, now_ms)
            return
        taken_ns = self._now_ns()
        for segment in segments:
            for part in parts_of(segment, ROWS_PER_TURN):
                self._waiting.append((end_of(part) if part else end, part, taken_ns))
                self.messages += len(part)
        # The last record may be followed by the blank that closes its file, so the last part ends
        # at ``end``.
        _, last, _ = self._waiting.pop()
        self._waiting.append((end, last, taken_ns))
        if not ready:
            return
        if self.messages < MANY_ROWS or self.call_soon is None:
            self.release(end, now_ms)
        else:
            self._limit = end
            if not self._again:
                self._put_off(now_ms)

    def release(self, limit: int, now_ms: int) -> None:
        """Release the segments that end at or before ``limit`` for dispatch.

        Dispatches as many as one turn may; later turns go on with the rest.
        """
        self._limit = max(limit, self._limit)
        if not self._again:
            self._dispatch(ROWS_PER_TURN if self.call_soon is not None else 1 << 62, now_ms)

    def take_back(self, end: int) -> int:
        """Drop the segments after the physical offset ``end``, which were not stored.

        Their queue offsets are assigned again. Returns the number of dropped messages.
        """
        lost, waiting = 0, self._waiting
        while waiting and waiting[-1][0] > end:
            _, segment, _ = waiting.pop()
            lost += len(segment)
            take_back(segment)
        self.messages -= lost
        return lost

    def close(self, now_ms: int) -> None:
        """Dispatch all released segments at once, at the shutdown: there are no later turns."""
        self.call_soon = None
        self._again = False
        self.release(self._limit, now_ms)

    def _dispatch(self, budget: int, now_ms: int) -> None:
        waiting = self._waiting
        while waiting and waiting[0][0] <= self._limit:
            if budget <= 0:
                self._put_off(now_ms)
                return
            end, segment, taken_ns = waiting.popleft()
            self.messages -= len(segment)
            budget -= len(segment)
            self._dispatcher.dispatch(segment, end, now_ms)
            self.delays.add((self._now_ns() - taken_ns) / 1e9, len(segment))

    def _put_off(self, now_ms: int) -> None:
        assert self.call_soon is not None
        self._again = True
        self.call_soon(lambda: self._go_on(now_ms))

    def _go_on(self, now_ms: int) -> None:
        self._again = False
        self.release(self._limit, now_ms)

    def forget(self, gone: Set[ConsumeQueue]) -> None:
        """Drop the rows of queues that are being deleted."""
        kept = [
            (end, without_queues(segment, gone), taken) for end, segment, taken in self._waiting
        ]
        self._waiting = deque(kept)
        self.messages = sum(len(segment) for _, segment, _ in kept)


def end_of(segment: RecordGroup) -> int:
    """Return the physical offset after the last record."""
    if isinstance(segment, WriteBatch):
        return segment.end
    _, _, phys, size, _, _, _ = segment[-1]
    return phys + size


def parts_of(segment: RecordGroup, rows_max: int) -> Iterator[RecordGroup]:
    """Split rows into parts of at most ``rows_max``; a write batch stays whole."""
    if isinstance(segment, WriteBatch) or len(segment) <= rows_max:
        yield segment
        return
    for first in range(0, len(segment), rows_max):
        yield segment[first : first + rows_max]


def without_queues(segment: RecordGroup, gone: Set[ConsumeQueue]) -> RecordGroup:
    """Return the segment without the rows of deleted queues; it may become empty."""
    if isinstance(segment, WriteBatch):
        segment.drop(gone)
        return segment
    return [row for row in segment if row[0] not in gone]


def take_back(segment: RecordGroup) -> None:
    """Make the queue offsets of a segment free again.

    Neither the segment nor any later one was stored. Take later ones back first.
    """
    if isinstance(segment, WriteBatch):
        segment.take_back()
        return
    for queue, queue_offset, _, _, _, _, _ in reversed(segment):
        if queue_offset >= 0:
            queue.next_offset = queue_offset


def row_of(record: Record, queue: ConsumeQueue, delays_ms: tuple[int, ...]) -> Dispatched:
    """Return the row of a record that was read from the log.

    (upstream: CommitLog.checkMessageAndReturnSize)
    """
    code, keys = code_and_keys(
        record.topic, record.sys_flag, record.store_ms, record.properties, delays_ms
    )
    return (
        queue,
        record.queue_offset if takes_queue_slot(record.sys_flag) else -1,
        record.physical_offset,
        record.size_bytes,
        code,
        record.store_ms,
        keys,
    )


def code_and_keys(
    topic: str, sys_flag: int, store_ms: int, properties: bytes, delays_ms: tuple[int, ...]
) -> tuple[int, tuple[str, ...]]:
    """Return the tag code and the index keys of a record."""
    found = props.decode(properties)
    code = tag_code(found.get(props.TAGS))
    if topic == SCHEDULE_TOPIC:
        delay_ms = delay_of(found.get(props.DELAY, ""), delays_ms)
        code = store_ms + delay_ms if delay_ms else code
    rolled_back = sys_flag & TRANSACTION_MASK == TransactionType.ROLLBACK
    return code, () if rolled_back else props.index_keys(found)


@dataclass(frozen=True, slots=True)
class LogFacts:
    """Facts about single records, read from the log, for extension units (queue/extensions.py)."""

    segments: Segments
    delays_ms: tuple[int, ...]

    def store_ms(self, place: int) -> int:
        """Return the store time of the record at a physical offset, ms; -1 if unreadable."""
        return log_store_ms(self.segments, place)

    def tag_code(self, place: int, size: int) -> int | None:
        """Return the tag code that an entry of a record has; None if it is unreadable."""
        record = self._record(place, size)
        if record is None:
            return None
        code, _ = code_and_keys(
            record.topic, record.sys_flag, record.store_ms, record.properties, self.delays_ms
        )
        return code

    def properties(self, place: int, size: int) -> bytes | None:
        """Return the bytes of the properties of a record; None if it is unreadable."""
        record = self._record(place, size)
        return None if record is None else record.properties

    def _record(self, place: int, size: int) -> Record | None:
        if not 0 < size <= self.segments.file_bytes:
            return None
        raw = log_bytes(self.segments, place, size)
        if raw is None:
            return None
        try:
            return decode_one(raw)
        except BadRecord:
            return None


def delay_of(level_text: str, delays_ms: tuple[int, ...]) -> int:
    """Return the delay in ms of a level, given as text: 0 for no level, the longest if too high."""
    level = int(level_text[:9]) if level_text.isascii() and level_text.isdigit() else 0
    if level <= 0:
        return 0
    return delays_ms[min(level, len(delays_ms)) - 1] if delays_ms else _UNKNOWN_DELAY_MS
