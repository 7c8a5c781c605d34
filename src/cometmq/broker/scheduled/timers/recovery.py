"""Recovery of waiting timed messages at a start, from the last snapshot and the log after it.

Without a valid snapshot the whole log is read. Each record of the timer topic waits, unless a later
record ends its wait (intake.py).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cometmq.broker.lookup import bounds
from cometmq.broker.scheduled.timers.intake import BUFFER_BYTES, end_wait, ended_by, waiting_of
from cometmq.broker.scheduled.timers.snapshot import read_snapshot
from cometmq.broker.scheduled.timers.wheel import TICK_MS, tick_of
from cometmq.core.slices import Slices
from cometmq.message.names import TIMER_TOPIC
from cometmq.store.log.scan import Scan, resumption

if TYPE_CHECKING:
    from cometmq.broker.scheduled.timers.pending import Pending, Waiting
    from cometmq.broker.scheduled.timers.snapshot import Snapshot
    from cometmq.core.clock import Clock
    from cometmq.message.record import Record
    from cometmq.store.messagestore import MessageStore

log = logging.getLogger(__name__)

#: Rows of messages whose record was damaged when they were due.
Held = tuple[tuple[int, int, int, int], ...]


async def recover(store: MessageStore, pending: Pending, clock: Clock) -> Held:
    """Recover the waiting messages; return the rows that the last run held back.

    Nothing may be appended meanwhile. Raise OSError if the files cannot be read or written.
    """
    _, end = bounds(store, TIMER_TOPIC, 0)
    known = read_snapshot(store.files, pending.files.directory)
    if not end:
        pending.clear()
        pending.begin(clock.wall_ms() // TICK_MS)
        return ()
    fits = known is not None and known.log_offset <= store.dispatched_offset
    if known is not None and fits and pending.files.resume(known.note()):
        return await _resume(store, pending, known, Slices(clock))
    log.warning("timers_rebuilt reason=%r", "no snapshot matches the log")
    await rebuild(store, pending, clock)
    return ()


async def rebuild(store: MessageStore, pending: Pending, clock: Clock) -> None:
    """Recover the waiting messages from the log alone.

    Nothing may be delivered or taken in meanwhile. Raise OSError if the files cannot be written.
    """
    low, _ = bounds(store, TIMER_TOPIC, 0)
    pending.clear()
    pending.position = low
    await _Reading(pending, low, (), Slices(clock)).read(store, store.log.segments.start)


async def _resume(store: MessageStore, pending: Pending, known: Snapshot, slices: Slices) -> Held:
    pending.begin(known.through)
    pending.position, pending.count = known.position, known.count
    reading = _Reading(pending, known.position, known.held, slices, known.counted_to)
    await reading.read(store, max(known.log_offset, store.log.segments.start))
    reading.put_late()
    return reading.held()


class _Reading:
    """One pass over the log."""

    def __init__(
        self, pending: Pending, position: int, held: Held, slices: Slices, counted_to: int = 0
    ) -> None:
        self._pending = pending
        self._counted_to = counted_to
        self._position = position
        self._slices = slices
        #: Messages that were due before the snapshot and stored after it, by physical offset.
        self._late: dict[int, Waiting] = {}
        self._held = {row[2]: row for row in held}

    async def read(self, store: MessageStore, start: int) -> None:
        """Take in all records from the physical offset ``start`` on."""
        segments, end = store.log.segments, store.dispatched_offset
        scan = Scan(segments, start, end)
        files = self._pending.files
        while True:
            for record in scan:
                self._take(record)
                if files.buffered_bytes > BUFFER_BYTES:
                    await files.write(self._slices)
                await self._slices.pause()
            further = resumption(segments, scan.position) if scan.position < end else None
            if further is None or further.offset >= end:
                return
            log.error("timers_log_damaged from=%d to=%d", scan.position, further.offset)
            scan.position = further.offset

    def _take(self, record: Record) -> None:
        pending = self._pending
        ended = ended_by(record)
        if ended is not None:
            self._end(ended, record.physical_offset >= self._counted_to)
        if record.topic != TIMER_TOPIC or record.queue_offset < self._position:
            return
        pending.position = max(pending.position, record.queue_offset + 1)
        waiting = waiting_of(record)
        if waiting is None:
            log.error("timed message lost physical=%d", record.physical_offset)
        elif tick_of(waiting.due_ms) <= pending.through:
            self._late[record.physical_offset] = waiting
        else:
            pending.put(waiting)

    def _end(self, ended: tuple[int, int], is_news: bool) -> None:
        physical_offset, _ = ended
        was_late = self._late.pop(physical_offset, None) is not None
        was_held = self._held.pop(physical_offset, None) is not None
        if not was_late and not was_held:
            end_wait(self._pending, ended)
            self._pending.count -= 1 if is_news else 0

    def held(self) -> Held:
        """Return the rows that are still held back."""
        return tuple(self._held.values())

    def put_late(self) -> None:
        """Put the late messages into ``pending``, which delivers them first."""
        for waiting in self._late.values():
            self._pending.put(waiting)
