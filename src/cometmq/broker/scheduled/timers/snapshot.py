"""Snapshots of the waiting messages at one offset of the log: the file, its writing while the
broker runs and when it stops, and the recovery from it at a start.

``cometmq-timers/state.json``:

    position     queue offset in the timer topic before which all messages are in the files
    log_offset   deliveries and other ends of waits before this log offset are accounted for; a
                 start reads the log from here
    through      last tick delivered completely
    count        number of waiting messages at the log offset ``counted_to``
    held         rows whose record was damaged when it was due; they are tried again
    buckets      number, length and CRC-32 of each file
    crc          CRC-32 of this text with 0 in this place

The snapshot is written after the log is durable up to ``log_offset`` and the files up to the noted
lengths. So it is true however the broker ends, and a start only reads the log from there on.

    know    capture a snapshot in memory, between two ticks and within one turn of the event loop
    save    write and sync the files, wait until the log is durable too, then write the snapshot

So a snapshot never claims more than survives a power cut.

A start reads the last snapshot and the log after it; without a valid snapshot, the whole log. Each
record of the timer topic waits, unless a later record ends its wait (pending.py).
"""

from __future__ import annotations

import asyncio
import logging
import os.path
from typing import TYPE_CHECKING, Final
from zlib import crc32

import msgspec

from cometmq.broker.lookup import bounds
from cometmq.broker.scheduled.timers.pending import (
    BUFFER_BYTES,
    TICK_MS,
    end_wait,
    ended_by,
    first_bucket,
    tick_of,
    waiting_of,
)
from cometmq.core.clock import Slices
from cometmq.message.names import TIMER_TOPIC
from cometmq.store.files import read_file, write_file_atomically
from cometmq.store.log.scan import Scan, resumption

if TYPE_CHECKING:
    from cometmq.broker.scheduled.timers.delivery import Rolling, TimerDelivery
    from cometmq.broker.scheduled.timers.pending import Intake, Pending, Waiting
    from cometmq.core.clock import Clock
    from cometmq.message.record import Record
    from cometmq.store.files import Files
    from cometmq.store.messagestore import MessageStore

log = logging.getLogger(__name__)


STATE_FILE = "state.json"


class Snapshot(msgspec.Struct, frozen=True):
    """Content of the file."""

    position: int
    log_offset: int
    through: int
    count: int
    counted_to: int
    held: tuple[tuple[int, int, int, int], ...]
    buckets: tuple[tuple[int, int, int], ...]
    crc: int = 0

    def note(self) -> dict[int, tuple[int, int]]:
        """Return length and CRC-32 by bucket, the form that the timer files expect."""
        return {bucket: (size, crc) for bucket, size, crc in self.buckets}


def write_snapshot(files: Files, directory: str, snapshot: Snapshot) -> None:
    """Replace the file durably. Call this in a thread. Raise OSError if it cannot be written."""
    plain = msgspec.structs.replace(snapshot, crc=0)
    summed = msgspec.structs.replace(plain, crc=crc32(msgspec.json.encode(plain)))
    path = os.path.join(directory, STATE_FILE)
    write_file_atomically(files, path, msgspec.json.encode(summed), durable=True)


def read_snapshot(files: Files, directory: str) -> Snapshot | None:
    """Return the content of the file; None if there is none or its CRC does not match."""
    try:
        raw = read_file(files, os.path.join(directory, STATE_FILE))
        if raw is None:
            return None
        found = msgspec.json.decode(raw, type=Snapshot)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    plain = msgspec.structs.replace(found, crc=0)
    return found if crc32(msgspec.json.encode(plain)) == found.crc else None


SAVE_INTERVAL_MS: Final = 2_000
KNOW_INTERVAL_MS: Final = 500
#: While no timed message arrives or leaves, a new snapshot is written after this much log.
SAVE_LOG_BYTES: Final = 64 << 20
_DURABLE_LIMIT_MS: Final = 30_000
_DURABLE_STEP_MS: Final = 25


class Saver:
    """Keeps the snapshot of one store's timed messages."""

    def __init__(
        self,
        store: MessageStore,
        pending: Pending,
        delivery: TimerDelivery,
        intake: Intake,
        rolling: Rolling,
        clock: Clock,
    ) -> None:
        self._store = store
        self._pending = pending
        self._delivery = delivery
        self._intake = intake
        self._rolling = rolling
        self._clock = clock
        self._known: Snapshot | None = None
        self._known_ms = 0
        self._saved: Snapshot | None = None

    def know_sometimes(self) -> None:
        """Call :meth:`know` if the last capture is KNOW_INTERVAL_MS old."""
        if self._clock.monotonic_ms() - self._known_ms >= KNOW_INTERVAL_MS:
            self.know()

    def know(self) -> None:
        """Capture the current state in memory. No tick may be delivered in part."""
        pending = self._pending
        if not pending.is_noted_by_files() or self._store.find_queue(TIMER_TOPIC, 0) is None:
            return
        self._known_ms = self._clock.monotonic_ms()
        log_offset, floor = self._intake.log_offset(), self._rolling.floor
        counted_to = self._store.written_offset
        if floor >= 0:
            log_offset, counted_to = min(log_offset, floor), min(counted_to, floor)
        first = pending.first_needed()
        buckets = [
            (bucket, size, crc)
            for bucket, (size, crc) in pending.files.note().items()
            if bucket >= first
        ]
        self._known = Snapshot(
            pending.position,
            log_offset,
            pending.through,
            pending.count,
            counted_to,
            tuple(self._delivery.held.values()),
            tuple(buckets),
        )

    async def save_forever(self) -> None:
        """Save at every SAVE_INTERVAL_MS, until cancelled."""
        while True:
            await self._clock.sleep_ms(SAVE_INTERVAL_MS)
            await self.save()

    async def save(self) -> bool:
        """Write the last captured state if it changed. Return False, after logging it, if that
        failed."""
        known = self._known
        if known is None or not self._is_news(known):
            return True
        files, loop = self._pending.files, asyncio.get_running_loop()
        executor = self._store.executor
        unsynced: list[int] = []
        try:
            await files.write(Slices(self._clock))
            unsynced = files.take_unsynced()
            await loop.run_in_executor(executor, files.sync, unsynced)
            if not await self._log_durable(known.log_offset):
                return False
            await loop.run_in_executor(
                executor, write_snapshot, self._store.files, files.directory, known
            )
            self._saved = known
            files.drop_before(first_bucket(known.through))
        except OSError as error:
            files.give_back(unsynced)
            log.error("timers not saved error=%s", error)
            return False
        return True

    def _is_news(self, known: Snapshot) -> bool:
        saved = self._saved
        if saved is None or known.log_offset - saved.log_offset > SAVE_LOG_BYTES:
            return True
        return (known.position, known.count, known.held, known.buckets) != (
            saved.position,
            saved.count,
            saved.held,
            saved.buckets,
        )

    async def _log_durable(self, offset: int) -> bool:
        """Sync the log up to ``offset``; return False after a failure or _DURABLE_LIMIT_MS."""
        store = self._store
        deadline_ms = self._clock.monotonic_ms() + _DURABLE_LIMIT_MS
        while store.durable_offset < offset:
            if store.log.failure is not None or self._clock.monotonic_ms() > deadline_ms:
                return False
            store.flusher.sync_in_thread()
            await self._clock.sleep_ms(_DURABLE_STEP_MS)
        return True


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
    """One pass over the log, which takes waiting messages and ends of waits into ``pending``.

    Ends of waits before the log offset ``counted_to`` are in the count of ``pending`` already.
    """

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
