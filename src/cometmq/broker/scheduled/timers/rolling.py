"""Old log files go, waiting messages stay: what waits in them is stored again, where the log ends
(upstream rolls what waits for long, whether its file is old or not).

Before the store drops files (store/maintenance/expiry.py) it says up to where the log is to go, and
learns up to where nothing waits: at first, not that far. What lies below and is due later is then
stored again, TIMER_ROLL_TIMES counts how often; what is due within a minute is waited for. The next
round of the store drops the files. Half of a range waiting would make room for too little: while
the disk is full such files stay, because what waits is never lost.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from cometmq.broker.scheduled.redelivery import GATHER_BYTES, GATHER_COUNT, Redelivery
from cometmq.broker.scheduled.timers.intake import end_mark, record_or_none
from cometmq.broker.scheduled.timers.pending import done_in
from cometmq.broker.scheduled.timers.rules import rolled
from cometmq.broker.scheduled.timers.wheel import tick_of
from cometmq.core.errors import StoreError
from cometmq.core.slices import Slices
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

#: What is due so soon is not rolled.
NEAR_MS: Final = 60_000
_ROWS_A_PAUSE: Final = 256

Row = tuple[int, int, int, int]


class Rolling:
    """Rolls what a store wants to drop. ``free_to`` is the offset of the log before which nothing
    waits, as far as that was looked at; ``rolled`` counts messages since the start.

    While ``floor`` is not -1, what was stored from there on is not all accounted for yet.
    """

    def __init__(
        self,
        store: MessageStore,
        pending: Pending,
        redelivery: Redelivery,
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
        """The store wants to drop what is before ``end``, ``forced`` by a full disk; gives up to
        where it may."""
        if not self._pending.count and not self._pending.files.buckets():
            return end
        if end > self.free_to:
            self._wanted, self._is_forced = end, forced
        return self.free_to

    @property
    def is_wanted(self) -> bool:
        """Whether the store waits for a range of the log."""
        return self._wanted > self.free_to

    async def roll(self) -> None:
        """Free the wanted range of the log, as far as that can be done now. Raises StoreError."""
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
                    "log_files_kept from=%d to=%d waiting_bytes=%d reason='timed messages fill "
                    "them, copies would take the room that they free'", start, end, waiting_bytes,
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
        """The rows of a bucket that wait for records before ``end``."""
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
        """Roll some of the rows that are not near; gives where the others begin."""
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
            # Not when this is cancelled: the copies may be stored then, and are not accounted for.
            for due, _, physical, _ in far[at : at + count]:
                self._pending.done(physical, due, due)
            self.floor = -1
            self._pending.count -= count
            self.rolled += count
            at += count
        return start + len(part) * ROW_BYTES

    def _append(self, part: list[Row], found: list[Found]) -> int:
        """Append the copies that one turn takes; gives how many rows that is."""
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
    """The rows from ``start`` on that are read together."""
    room = GATHER_BYTES
    part: list[Row] = []
    for row in ROW.iter_unpack(rows[start : start + GATHER_COUNT * ROW_BYTES]):
        room -= abs(row[3])
        if part and room < 0:
            break
        part.append(row)
    return part
