"""Delivery of due timed messages, tick by tick.

A tick is complete once each message in it is stored in its real topic, recalled, or held back
because its record is damaged. While the store refuses messages, the tick is tried again.
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
from cometmq.broker.scheduled.timers.intake import end_mark
from cometmq.broker.scheduled.timers.pending import RECALL_MS
from cometmq.broker.scheduled.timers.rules import is_recalled
from cometmq.broker.scheduled.timers.wheel import tick_of
from cometmq.core.clock import Slices
from cometmq.core.errors import StoreCorrupt, StoreError
from cometmq.message import properties as props
from cometmq.message.names import TIMER_TOPIC
from cometmq.store.timerfiles import ROW, ROW_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

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
_PART_BYTES: Final = 1_024 * ROW_BYTES
_DEQUEUED: Final = props.TIMER_DEQUEUE_MS.encode()

#: Due time, queue offset, physical offset and size, as in store/timerfiles.py.
Row = tuple[int, int, int, int]


class TimerDelivery:
    """Delivers due rows.

    ``delivered`` and ``recalls`` count messages since the start. ``held`` has the rows with damaged
    records, by physical offset.
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
        self.recalls = 0

    async def deliver_tick(self, tick: int, rows: bytes) -> None:
        """Deliver all rows of a tick, after its recalls are read."""
        self._forget_recalls(tick)
        pending, slices = self._pending, Slices(self._clock)
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
            found = await self._store.reads.gather([(at, abs(size)) for _, _, at, size in part])
            await self._store_all(part, found)
            start += len(part)

    async def _store_all(self, rows: Sequence[Row], found: list[Found]) -> None:
        at = 0
        while at < len(rows):
            stop, error = self._append_some(rows, found, at)
            if stop > at:
                try:
                    await self._redelivery.stored()
                    at = stop
                except StoreError as failure:
                    error = failure
            if error is not None:
                log.error("timed delivery failed error=%s", error)
                await self._clock.sleep_ms(REST_MS)

    def _append_some(
        self, rows: Sequence[Row], found: list[Found], at: int
    ) -> tuple[int, StoreError | None]:
        """Append as many rows from ``at`` on as one turn takes.

        Return the index of the first row left, and the error if the store refused it.
        """
        redelivery = self._redelivery
        redelivery.begin()
        while at < len(rows):
            try:
                self._append(rows[at], found[at])
            except StoreCorrupt as error:
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

    def _hold(self, row: Row, error: StoreCorrupt) -> None:
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
