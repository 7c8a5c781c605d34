"""Waiting timed messages: all of them on disk by due time, those of the near future also in memory;
and their intake from the timer topic.

A row of store/timerfiles.py stands for a message:

    put      if its tick was delivered: into the wheel, for the next tick
             if its bucket is loaded: into the bucket's file and into the wheel
             otherwise: into the bucket's file
    load     copies a bucket's rows from its file into the wheel, ahead of time
    done     appends a row that ends a wait to the file; for a loaded bucket also notes it in memory

``through`` is the last tick delivered completely, ``loaded`` the first bucket that is not in the
wheel, ``position`` the first queue offset in the timer topic that was not put here.

A tick of the wheel collects all messages due up to its end, so none is early, and none is late by
more than a tick. Within a tick messages keep the order in which they were added.

A record ends the wait of another one if it delivers that one or replaces it. Such a record has
TIMER_OUT_MS, and the other record's physical offset as its prepared offset. So the log alone shows
what has been delivered, and a crash between a delivery and its note changes nothing.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from cometmq.broker.scheduled.duedelivery import GATHER_BYTES, record_in
from cometmq.broker.scheduled.timers.rules import SECOND_MS, due_ms, out_ms
from cometmq.broker.stats import TopicCounts
from cometmq.core.errors import StoreCorrupt
from cometmq.core.histogram import Histogram
from cometmq.message import properties as props
from cometmq.message.names import TIMER_TOPIC
from cometmq.store.layout import HOLE_SIZE, QUEUE_ENTRY
from cometmq.store.timerfiles import ROW, ROW_BYTES, bucket_of

if TYPE_CHECKING:
    from cometmq.core.clock import Slices
    from cometmq.message.record import Record
    from cometmq.store.messagestore import MessageStore
    from cometmq.store.timerfiles import TimerFiles

log = logging.getLogger(__name__)

TICK_MS: Final = 25
#: A recall stays valid for this long after its due time.
RECALL_MS: Final = 1_000
#: Limit of buffered rows before they are written to the files.
BUFFER_BYTES: Final = 1 << 20
#: Upper ends of the ranges by which delays are counted, as in RocketMQ: 1 min to 3 days.
DELAY_BOUNDS_S: Final = (60.0, 600.0, 3_600.0, 43_200.0, 86_400.0, 259_200.0)
_ROWS_A_PAUSE: Final = 256
_ENTRIES: Final = 256
_OUT_MARK: Final = props.TIMER_OUT_MS.encode()


def tick_of(due_ms: int) -> int:
    """Return the tick in which a message due at ``due_ms`` is delivered."""
    return -(-due_ms // TICK_MS)


class Wheel:
    """Rows (store/timerfiles.py) by tick; ``count`` is their number."""

    __slots__ = ("_heap", "_ticks", "count")

    def __init__(self) -> None:
        self._ticks: dict[int, bytearray] = {}
        self._heap: list[int] = []
        self.count = 0

    def put(self, tick: int, row: bytes) -> None:
        """Add a row to a tick."""
        rows = self._ticks.get(tick)
        if rows is None:
            rows = self._ticks[tick] = bytearray()
            heappush(self._heap, tick)
        rows += row
        self.count += 1

    def next_tick(self) -> int | None:
        """Return the first tick that has rows, or None."""
        return self._heap[0] if self._heap else None

    def take(self) -> bytes:
        """Remove the first tick, and return its rows."""
        rows = bytes(self._ticks.pop(heappop(self._heap)))
        self.count -= len(rows) // ROW_BYTES
        return rows


@dataclass(frozen=True, slots=True)
class Waiting:
    """One waiting message; ``size`` is negative for a recall."""

    due_ms: int
    queue_offset: int
    physical_offset: int
    size: int
    topic: str = ""


class Pending:
    """All waiting messages, in files and in the wheel. ``count`` is their number, as far as
    known."""

    def __init__(self, files: TimerFiles) -> None:
        self.files = files
        self.wheel = Wheel()
        self.position = 0
        self.through = 0
        self.loaded = 0
        self.count = 0
        self._loading = -1
        #: Last tick with rows that are in the wheel only, because their own tick was delivered.
        self._late_tick = 0
        #: Physical offsets of records in loaded buckets whose wait ended before they were due.
        self._gone: set[int] = set()

    def clear(self) -> None:
        """Remove all waiting messages, also on disk, and reset the progress. Raise OSError if
        that fails."""
        self.files.clear()
        self.wheel = Wheel()
        self.position = self.through = self.loaded = self.count = 0
        self._loading = -1
        self._gone.clear()

    def begin(self, through: int) -> None:
        """Start with an empty wheel, and with everything delivered up to the tick ``through``."""
        self.through = through
        self.loaded = self.first_needed()

    def put(self, waiting: Waiting) -> None:
        """Add a waiting message."""
        row = ROW.pack(waiting.due_ms, waiting.queue_offset, waiting.physical_offset, waiting.size)
        tick, bucket = tick_of(waiting.due_ms), bucket_of(waiting.due_ms)
        self.count += 1
        if tick <= self.through:
            # Not into a file: rows there count as delivered if they are due up to ``through``.
            self._late_tick = self.through + 1
            self.wheel.put(self._late_tick, row)
            return
        self.files.add(bucket, row)
        if bucket < self.loaded or bucket == self._loading:
            self.wheel.put(tick, row)

    def is_noted_by_files(self) -> bool:
        """Decide whether the files hold all waiting messages, not counting rows due up to
        ``through``."""
        return self._late_tick <= self.through

    def first_needed(self) -> int:
        """Return the first bucket that has waiting messages, or recalls that are still valid."""
        return first_bucket(self.through)

    def done(self, physical_offset: int, earliest_ms: int, latest_ms: int) -> None:
        """End the wait of a record whose due time lies in a span of at most one bucket's length.

        The caller adjusts ``count``.
        """
        if tick_of(latest_ms) <= self.through:
            return
        for bucket in {bucket_of(earliest_ms), bucket_of(latest_ms)}:
            if bucket < self.loaded or bucket == self._loading:
                self._gone.add(physical_offset)
            self.files.add(bucket, ROW.pack(latest_ms, 0, physical_offset, 0))

    def is_gone(self, physical_offset: int) -> bool:
        """Decide whether the wait of a due row's record has ended already. Call this once per
        row: it forgets the mark."""
        if physical_offset not in self._gone:
            return False
        self._gone.discard(physical_offset)
        return True

    def next_bucket(self, until_ms: int) -> int | None:
        """Return the next bucket to load, if one begins before ``until_ms``.

        Otherwise return None and count the buckets before that time as loaded, as they have no
        rows.
        """
        last = bucket_of(until_ms)
        found = self.files.first_from(self.loaded)
        if found is not None and found <= last:
            return found
        self.loaded = max(self.loaded, last + 1)
        return None

    def begin_load(self, bucket: int) -> tuple[int, int, int]:
        """Begin to load a bucket: its new rows go into the wheel too. Return the arguments for
        the files' ``fetch``. Raise OSError if the bucket cannot be read."""
        read = self.files.begin_read(bucket)
        self._loading = bucket
        return read

    async def end_load(self, bucket: int, rows: bytes, slices: Slices) -> None:
        """Put the rows that a bucket had at :meth:`begin_load` into the wheel."""
        done = await done_in(rows, slices)
        through = self.through
        for number, (due, _, physical, size) in enumerate(ROW.iter_unpack(rows)):
            if not number % _ROWS_A_PAUSE:
                await slices.pause()
            tick = tick_of(due)
            is_over = tick <= through and (size > 0 or tick_of(due + RECALL_MS) <= through)
            if size and not is_over and physical not in done:
                at = number * ROW_BYTES
                self.wheel.put(max(tick, through + 1), rows[at : at + ROW_BYTES])
        self.loaded, self._loading = bucket + 1, -1


def first_bucket(through: int) -> int:
    """Return the first bucket still needed once everything up to a tick is delivered."""
    return bucket_of(through * TICK_MS - RECALL_MS)


async def done_in(rows: bytes, slices: Slices) -> set[int]:
    """Return the physical offsets whose wait ended, according to rows of size 0."""
    done: set[int] = set()
    for number, (_, _, physical, size) in enumerate(ROW.iter_unpack(rows)):
        if not number % _ROWS_A_PAUSE:
            await slices.pause()
        if not size:
            done.add(physical)
    return done


def waiting_of(record: Record) -> Waiting | None:
    """Return due time and place of a record of the timer topic; None if it has no due time."""
    properties = props.decode(record.properties)
    due = due_ms(properties, record.store_ms)
    if due is None:
        return None
    is_recall = props.TIMER_DEL_UNIQKEY in properties
    size = -record.size_bytes if is_recall else record.size_bytes
    topic = properties.get(props.REAL_TOPIC, "")
    return Waiting(due, record.queue_offset, record.physical_offset, size, topic)


def end_mark(physical_offset: int) -> int:
    """Return the prepared offset of a record that ends the wait of the one at ``physical_offset``.

    It is that offset, except that 0 becomes -1, because a prepared offset of 0 means "none".
    """
    return physical_offset or -1


def ended_by(record: Record) -> tuple[int, int] | None:
    """Return physical offset and second of the message whose wait a record ends; None if it ends
    none."""
    if not record.prepared_offset or _OUT_MARK not in record.properties:
        return None
    slot_ms = out_ms(props.decode(record.properties))
    return None if slot_ms is None else (max(record.prepared_offset, 0), slot_ms)


def end_wait(pending: Pending, ended: tuple[int, int]) -> None:
    """End the wait of a message. Its second is enough; the exact due time does not matter."""
    physical_offset, slot_ms = ended
    pending.done(physical_offset, slot_ms, slot_ms + SECOND_MS)


class Intake:
    """Takes in records of the timer topic while the broker runs.

    ``counts`` counts their messages by topic; ``delays`` has, by topic, how long after their birth
    messages are due, in seconds.
    """

    def __init__(self, store: MessageStore, pending: Pending) -> None:
        self._store = store
        self._pending = pending
        self.counts = TopicCounts()
        self.delays: dict[str, Histogram] = {}

    @property
    def lag(self) -> int:
        """Number of records of the timer topic that were not taken in yet."""
        queue = self._store.find_queue(TIMER_TOPIC, 0)
        return 0 if queue is None else max(queue.max_offset - self._pending.position, 0)

    @property
    def is_used(self) -> bool:
        """True if there ever was a timed message."""
        return self._store.find_queue(TIMER_TOPIC, 0) is not None

    def log_offset(self) -> int:
        """Return the log offset before which all records of the timer topic were taken in."""
        queue = self._store.find_queue(TIMER_TOPIC, 0)
        position = self._pending.position
        if queue is None or position >= queue.max_offset:
            return self._store.dispatched_offset
        return int(QUEUE_ENTRY.unpack(queue.read(position, 1))[0])

    async def follow(self, slices: Slices) -> None:
        """Take in all records of the timer topic that are there now."""
        queue = self._store.find_queue(TIMER_TOPIC, 0)
        if queue is None:
            return
        pending, end = self._pending, queue.max_offset
        pending.position = max(pending.position, queue.min_offset)
        while pending.position < end:
            entries = [*QUEUE_ENTRY.iter_unpack(queue.read(pending.position, _ENTRIES))]
            entries = _bounded(entries)
            places = [(at, size) for at, size, _ in entries]
            found = await self._store.reads.gather(places)
            if not await self._store.repairs.prove(queue, pending.position, places, found):
                continue
            for (physical, size, _), view in zip(entries, found, strict=True):
                if size != HOLE_SIZE:
                    self._take(physical, record_or_none(view, physical))
                pending.position += 1
                await slices.pause()
            if pending.files.buffered_bytes > BUFFER_BYTES:
                try:
                    await pending.files.write(slices)
                except OSError as error:
                    # Rows can stay in memory and in the log for now; due messages must not be
                    # delayed.
                    log.error("timers not written error=%s", error)
                    return

    def _take(self, physical: int, record: Record | None) -> None:
        waiting = None if record is None else waiting_of(record)
        if record is None or waiting is None:
            log.error(
                "timed message lost offset=%d physical=%d reason=%s",
                self._pending.position, physical,
                "not in the log" if record is None else "it has no delivery time",
            )  # fmt: skip
            return
        self._pending.put(waiting)
        if waiting.size > 0:
            self.counts.add(waiting.topic)
            if waiting.topic in self.counts.by_topic:  # a limited number of topics is counted
                delays = self.delays.setdefault(waiting.topic, Histogram(DELAY_BOUNDS_S))
                delays.add(max(waiting.due_ms - record.born_ms, 0) // 1_000)


def _bounded(entries: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Return as many entries as may be read together, at least one."""
    room = GATHER_BYTES
    for number, (_, size, _) in enumerate(entries):
        room -= 0 if size == HOLE_SIZE else size
        if room < 0:
            return entries[: max(number, 1)]
    return entries


def record_or_none(found: memoryview | StoreCorrupt | None, physical: int) -> Record | None:
    """Return a record of the timer topic; None, after logging it, if it is damaged or missing."""
    try:
        return record_in(found, TIMER_TOPIC)
    except StoreCorrupt as error:
        log.error("timed message damaged physical=%d reason=%s", physical, error)
        return None
