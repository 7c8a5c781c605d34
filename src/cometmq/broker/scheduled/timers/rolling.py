"""Rolling: waiting messages in old log files are stored again at the end of the log, so that the
files can be deleted (upstream rolls all long waits, however old their file is).

Before the store deletes files (store/maintenance/retention.py), it asks :class:`Rolling` for the
offset before which nothing waits, and deletes no further. Messages below the wanted end that are
due later are then stored again, and TIMER_ROLL_TIMES counts how often. Those due within a minute
stay until they are delivered. The next round of the store deletes the files.

On a full disk, files stay if waiting messages fill more than half of them: copies would take the
room that they free, and waiting messages are never lost.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from cometmq.broker.scheduled.duedelivery import GATHER_BYTES, GATHER_COUNT, DueDelivery
from cometmq.broker.scheduled.timers.intake import end_mark, record_or_none
from cometmq.broker.scheduled.timers.pending import done_in
from cometmq.broker.scheduled.timers.rules import rolled
from cometmq.broker.scheduled.timers.wheel import tick_of
from cometmq.core.clock import Slices
from cometmq.core.errors import StoreError
from cometmq.message import properties as props
from cometmq.message.names import TIMER_TOPIC
from cometmq.store.timerfiles import ROW, ROW_BYTES, bucket_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from cometmq.broker.scheduled.timers.pending import Pending
    from cometmq.core.clock import Clock
    from cometmq.store.messagestore import MessageStore
    from cometmq.store.read.coldreads import Found

log = logging.getLogger(__name__)

#: Messages due within this time are not rolled.
NEAR_MS: Final = 60_000
_ROWS_A_PAUSE: Final = 256

Row = tuple[int, int, int, int]


class Rolling:
    """Rolls waiting messages out of log files that the store wants to delete.

    ``free_to`` is the log offset before which nothing waits, as far as known. ``rolled`` counts
    messages since the start. While ``floor`` is not -1, copies stored from that offset on may not
    be accounted for.
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
        """Return the log offset up to which the store may delete. It wants to delete up to ``end``.

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
        part = _part(rows, start)
        far = [row for row in part if row[0] > near_ms]
        found = await self._store.reads.gather([(at, abs(size)) for _, _, at, size in far])
        at = 0
        while at < len(far):
            self.floor = self._store.written_offset
            count = self._append(far[at:], found[at:])
            try:
                await self._redelivery.stored()
            except StoreError:
                self.floor = -1
                raise
            # Skipped if cancelled: the copies may be stored, and ``floor`` keeps marking them as
            # not accounted for.
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


def _part(rows: bytes, start: int) -> list[Row]:
    """Return the rows from ``start`` on that are read together."""
    room = GATHER_BYTES
    part: list[Row] = []
    for row in ROW.iter_unpack(rows[start : start + GATHER_COUNT * ROW_BYTES]):
        room -= abs(row[3])
        if part and room < 0:
            break
        part.append(row)
    return part
