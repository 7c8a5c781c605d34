"""Delivery of due timed messages, tick by tick, and rolling: waiting messages in old log files are
stored again at the end of the log, so that the files can be deleted (upstream rolls all long waits,
however old their file is). Both append copies, each of which ends the wait of its original.

A tick is complete once each message in it is stored in its real topic, recalled, or held back
because its record is damaged. While the store refuses messages, the tick is tried again.

Before the store deletes files (store/maintenance/retention.py), it asks :class:`Rolling` for the
offset before which nothing waits, and deletes no further. Messages below the wanted end that are
due later are then stored again, and TIMER_ROLL_TIMES counts how often. Those due within a minute
stay until they are delivered. The next round of the store deletes the files.

On a full disk, files stay if waiting messages fill more than half of them: their copies would take
as much space as the files free. Waiting messages are never deleted.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from cometmq.broker.scheduled.duedelivery import (
    GATHER_BYTES,
    GATHER_COUNT,
    REST_MS,
    DueDelivery,
    real_place,
    record_in,
)
from cometmq.broker.scheduled.timers.pending import (
    RECALL_MS,
    done_in,
    end_mark,
    record_or_none,
    tick_of,
)
from cometmq.broker.scheduled.timers.rules import is_recalled, rolled
from cometmq.broker.stats import TopicCounts
from cometmq.core.clock import Slices
from cometmq.core.errors import StoreCorrupt, StoreError
from cometmq.message import properties as props
from cometmq.message.names import TIMER_TOPIC
from cometmq.store.timerfiles import ROW, ROW_BYTES, bucket_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from cometmq.broker.scheduled.timers.pending import Pending
    from cometmq.core.clock import Clock
    from cometmq.message.record import Record
    from cometmq.store.messagestore import MessageStore
    from cometmq.store.read.coldreads import Found

log = logging.getLogger(__name__)

#: Interval at which damaged records are tried again; an operator may have restored the file.
RETRY_HELD_MS: Final = 60_000
#: Limit of damaged records held back; further ones are dropped.
MAX_HELD: Final = 10_000
#: Messages due within this time are not rolled.
NEAR_MS: Final = 60_000
_PART_BYTES: Final = 1_024 * ROW_BYTES
_ROWS_A_PAUSE: Final = 256
_DEQUEUED: Final = props.TIMER_DEQUEUE_MS.encode()

#: Due time, queue offset, physical offset and size, as in store/timerfiles.py.
Row = tuple[int, int, int, int]


class TimerDelivery:
    """Delivers due rows.

    ``delivered`` and ``recalls`` count messages since the start, ``counts`` the delivered ones by
    topic. ``held`` has the rows with damaged records, by physical offset.
    """

    def __init__(
        self, store: MessageStore, pending: Pending, redelivery: DueDelivery, clock: Clock
    ) -> None:
        self._store = store
        self._pending = pending
        self._redelivery = redelivery
        self._clock = clock
        #: Keys of recalls and the last tick in which each is valid, in the order of these ticks.
        self._recalled: dict[str, int] = {}
        self._held_tried_ms = 0
        self.held: dict[int, Row] = {}
        self.delivered = 0
        self.counts = TopicCounts()
        self.recalls = 0

    async def deliver_tick(self, tick: int, rows: bytes) -> None:
        """Deliver all rows of a tick, after its recalls are read."""
        self._forget_recalls(tick)
        pending, slices = self._pending, Slices(self._clock)
        # Recalls have a negative size; they come first, because they suppress messages.
        for of_recalls in (True, False):
            for at in range(0, len(rows), _PART_BYTES):
                part = ROW.iter_unpack(rows[at : at + _PART_BYTES])
                due = [row for row in part if (row[3] < 0) is of_recalls]
                due = [row for row in due if not pending.is_gone(row[2])]
                pending.count -= len(due)
                await self._deliver(due)
                await slices.pause()

    async def retry_held(self) -> None:
        """Try damaged records again, at most every RETRY_HELD_MS."""
        now_ms = self._clock.monotonic_ms()
        if self.held and now_ms - self._held_tried_ms >= RETRY_HELD_MS:
            self._held_tried_ms = now_ms
            rows, self.held = list(self.held.values()), {}
            await self._deliver(rows)

    def _forget_recalls(self, tick: int) -> None:
        recalled = self._recalled
        while recalled and recalled[key := next(iter(recalled))] < tick:
            del recalled[key]

    async def _deliver(self, rows: Sequence[Row]) -> None:
        start = 0
        while start < len(rows):
            part = rows[start : start + _count(rows, start)]
            await self._store_all(part, await self._read(part))
            start += len(part)

    async def _read(self, rows: Sequence[Row]) -> list[Found]:
        """Return the records of rows. A record that the device cannot read counts as damaged.

        This never raises: these rows have left the wheel, and an error would lose them.
        """
        places = [(at, abs(size)) for _, _, at, size in rows]
        while True:
            try:
                return await self._store.reads.gather(places)
            except OSError as error:
                if len(rows) > 1:
                    break
                if len(self.held) < MAX_HELD:
                    return [StoreCorrupt("", places[0][0], f"it cannot be read: {error}")]
                log.error("timed delivery failed error=%s", error)
            await self._clock.sleep_ms(REST_MS)
        return [found for row in rows for found in await self._read([row])]

    async def _store_all(self, rows: Sequence[Row], found: list[Found]) -> None:
        """Append rows turn by turn until all are handled; while the store refuses, try again."""
        at = 0
        while at < len(rows):
            stop, error = self._append_some(rows, found, at)
            if stop > at:
                try:
                    await self._redelivery.turn_outcome()
                    at = stop
                except StoreError as failure:
                    error = failure
            if error is not None:
                log.error("timed delivery failed error=%s", error)
                await self._clock.sleep_ms(REST_MS)

    def _append_some(
        self, rows: Sequence[Row], found: list[Found], at: int
    ) -> tuple[int, StoreError | OSError | None]:
        """Append as many rows from ``at`` on as one turn takes.

        Return the index of the first row that is left, and the error if the store refused it.
        """
        redelivery = self._redelivery
        redelivery.begin()
        while at < len(rows):
            try:
                self._append(rows[at], found[at])
            except StoreCorrupt as error:
                self._hold(rows[at], error)
            except OSError as error:
                # For example, its queue cannot be opened. Other messages need not wait for that.
                if len(self.held) >= MAX_HELD:
                    return at, error
                self._hold(rows[at], error)
            except StoreError as error:
                return at, error
            at += 1
            if not redelivery.goes_on():
                break
        return at, None

    def _append(self, row: Row, found: Found) -> None:
        _, queue_offset, physical, size = row
        record = record_in(found, TIMER_TOPIC)
        if record is None:
            log.error(
                "timed message lost offset=%d physical=%d reason=not in the log",
                queue_offset, physical,
            )  # fmt: skip
            return
        properties = props.decode(record.properties)
        if size < 0:
            key = properties.get(props.TIMER_DEL_UNIQKEY, "")
            self._recalled[key] = tick_of(row[0] + RECALL_MS)
        elif self._recalled and is_recalled(properties, self._recalled):
            self.recalls += 1
        else:
            self._append_to_place(record, properties)

    def _append_to_place(self, record: Record, properties: dict[str, str]) -> None:
        place = real_place(properties)
        if place is None:
            return
        stamp = b"%s\x01%d" % (_DEQUEUED, self._clock.wall_ms())
        raw = props.joined(record.properties, stamp)
        if len(raw) > props.MAX_SIZE_BYTES:
            raw = record.properties
        mark = end_mark(record.physical_offset)
        if self._redelivery.append(record, place, properties, raw, prepared_offset=mark):
            self.delivered += 1
            self.counts.add(place[0])

    def _hold(self, row: Row, error: StoreCorrupt | OSError) -> None:
        """Hold a row back for :meth:`retry_held`; at MAX_HELD, drop it."""
        physical = row[2]
        if len(self.held) >= MAX_HELD:
            log.error("timed message given up physical=%d reason=%s", physical, error)
            return
        log.error("timed message delivery postponed physical=%d reason=%s", physical, error)
        self.held[physical] = row


def _count(rows: Sequence[Row], start: int) -> int:
    """Return how many rows from ``start`` on are read together."""
    room, count = GATHER_BYTES, 0
    for row in rows[start : start + GATHER_COUNT]:
        room -= abs(row[3])
        if room < 0:
            break
        count += 1
    return max(count, 1)


class Rolling:
    """Rolls waiting messages out of log files that the store wants to delete.

    ``free_to`` is the log offset before which nothing waits, as far as known. ``rolled`` counts
    messages since the start. While ``floor`` is not -1, messages whose copies are stored from that
    log offset on may still count as waiting.
    """

    def __init__(
        self,
        store: MessageStore,
        pending: Pending,
        redelivery: DueDelivery,
        clock: Clock,
        read_bucket: Callable[[int], Awaitable[bytes]],
        load_due: Callable[[], Awaitable[None]],
    ) -> None:
        self._store = store
        self._pending = pending
        self._redelivery = redelivery
        self._clock = clock
        self._read_bucket = read_bucket
        self._load_due = load_due
        self._wanted = 0
        self._is_forced = False
        self.free_to = 0
        self.floor = -1
        self.rolled = 0

    def release(self, end: int, forced: bool) -> int:
        """Return the log offset up to which the store, which wants to delete up to ``end``, may
        delete.

        ``forced`` says that the disk is full. If ``end`` is not free yet, the next :meth:`roll`
        frees it.
        """
        if not self._pending.count and not self._pending.files.buckets():
            return end
        if end > self.free_to:
            self._wanted, self._is_forced = end, forced
        return self.free_to

    @property
    def is_wanted(self) -> bool:
        """True if the store waits for a range of the log to become free."""
        return self._wanted > self.free_to

    async def roll(self) -> None:
        """Free the wanted range of the log as far as possible now. Raise StoreError if the store
        refuses the copies."""
        end, start = self._wanted, self._store.log.segments.start
        self._wanted = 0
        slices = Slices(self._clock)
        buckets = self._pending.files.buckets()
        if self._is_forced:
            waiting_bytes = 0
            for bucket in buckets:
                for row in ROW.iter_unpack(await self._rows_below(bucket, end, slices)):
                    waiting_bytes += abs(row[3])
            if waiting_bytes > (end - start) // 2:
                log.warning(
                    "log_files_kept from=%d to=%d waiting_bytes=%d reason='they are full of "
                    "timed messages: rolling them would use as much space as it frees'",
                    start, end, waiting_bytes,
                )  # fmt: skip
                return
        near_ms = self._clock.wall_ms() + NEAR_MS
        free_to, before = end, self.rolled
        for bucket in buckets:
            rows = await self._rows_below(bucket, end, slices)
            if bucket <= bucket_of(near_ms):
                near = (row[2] for row in ROW.iter_unpack(rows) if row[0] <= near_ms)
                free_to = min(free_to, min(near, default=end))
            at = 0
            while at < len(rows):
                at = await self._roll_some(rows, at, near_ms)
            await self._load_due()
        self.free_to = free_to
        log.info("timers_rolled count=%d free_to=%d of=%d", self.rolled - before, free_to, end)

    async def _rows_below(self, bucket: int, end: int, slices: Slices) -> bytes:
        """Return the rows of a bucket that wait for records before ``end``."""
        rows = await self._read_bucket(bucket)
        done = await done_in(rows, slices)
        found = bytearray()
        through = self._pending.through
        for number, (due, _, physical, size) in enumerate(ROW.iter_unpack(rows)):
            if not number % _ROWS_A_PAUSE:
                await slices.pause()
            if size and physical < end and tick_of(due) > through and physical not in done:
                found += rows[number * ROW_BYTES : (number + 1) * ROW_BYTES]
        return bytes(found)

    async def _roll_some(self, rows: bytes, start: int, near_ms: int) -> int:
        """Roll rows that are not due soon, one batch; return the position of the next batch."""
        part = [*ROW.iter_unpack(rows[start : start + GATHER_COUNT * ROW_BYTES])]
        part = part[: _count(part, 0)]
        far = [row for row in part if row[0] > near_ms]
        found = await self._store.reads.gather([(at, abs(size)) for _, _, at, size in far])
        at = 0
        while at < len(far):
            self.floor = self._store.written_offset
            count = self._append(far[at:], found[at:])
            try:
                await self._redelivery.turn_outcome()
            except StoreError:
                self.floor = -1
                raise
            # A cancellation skips this: the copies may be stored then, and ``floor`` stays set.
            for due, _, physical, _ in far[at : at + count]:
                self._pending.done(physical, due, due)
            self.floor = -1
            self._pending.count -= count
            self.rolled += count
            at += count
        return start + len(part) * ROW_BYTES

    def _append(self, part: list[Row], found: list[Found]) -> int:
        """Append as many copies as one turn takes; return the number of rows handled."""
        redelivery = self._redelivery
        redelivery.begin()
        for number, ((_, _, physical, _), view) in enumerate(zip(part, found, strict=True)):
            record = record_or_none(view, physical)
            if record is not None:
                properties = rolled(props.decode(record.properties))
                raw = props.encode(properties)
                if len(raw) > props.MAX_SIZE_BYTES:
                    raw = record.properties
                place = TIMER_TOPIC, 0
                mark = end_mark(physical)
                redelivery.append(record, place, properties, raw, prepared_offset=mark)
            if redelivery.is_over:
                return number + 1
        return len(part)
