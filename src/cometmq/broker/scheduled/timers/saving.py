"""Snapshots of the waiting messages on disk, while the broker runs and when it stops.

    know    capture a snapshot in memory, between two ticks and within one turn of the event loop
    save    write and sync the files, wait until the log is durable too, then write the snapshot

So a snapshot never claims more than survives a power cut.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from cometmq.broker.scheduled.timers.pending import first_bucket
from cometmq.broker.scheduled.timers.snapshot import Snapshot, write_snapshot
from cometmq.core.slices import Slices
from cometmq.message.names import TIMER_TOPIC

if TYPE_CHECKING:
    from cometmq.broker.scheduled.timers.delivery import TimerDelivery
    from cometmq.broker.scheduled.timers.intake import Intake
    from cometmq.broker.scheduled.timers.pending import Pending
    from cometmq.broker.scheduled.timers.rolling import Rolling
    from cometmq.core.clock import Clock
    from cometmq.store.messagestore import MessageStore

log = logging.getLogger(__name__)

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
        store = self._store
        deadline_ms = self._clock.monotonic_ms() + _DURABLE_LIMIT_MS
        while store.durable_offset < offset:
            if store.log.failure is not None or self._clock.monotonic_ms() > deadline_ms:
                return False
            store.flusher.sync_in_thread()
            await self._clock.sleep_ms(_DURABLE_STEP_MS)
        return True
