"""The timed messages of one broker: intake, delivery and snapshots while it runs.

Its background work, and the modules that do it:

    intake     reads records from the timer topic and files them by due time (pending.py)
    load       brings buckets into the wheel before they begin
    delivery   delivers tick by tick (delivery.py)
    save       writes snapshots for the next start (snapshot.py)
    rolling    moves waiting messages out of old log files (delivery.py)
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from cometmq.broker.scheduled.duedelivery import DueDelivery
from cometmq.broker.scheduled.timers.delivery import Rolling, TimerDelivery
from cometmq.broker.scheduled.timers.pending import TICK_MS, Intake, Pending
from cometmq.broker.scheduled.timers.snapshot import Saver, rebuild, recover
from cometmq.core.clock import Slices
from cometmq.core.errors import StoreCorrupt, StoreError
from cometmq.store.timerfiles import BUCKET_MS, TimerFiles

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cometmq.broker.acknowledgement import Appender
    from cometmq.broker.stats import TopicCounts
    from cometmq.core.clock import Clock
    from cometmq.net.tasks import Tasks
    from cometmq.store.messagestore import MessageStore

log = logging.getLogger(__name__)

#: A bucket is loaded into the wheel this long before it begins.
LEAD_MS: Final = 60_000
#: While more rows than this wait in the wheel, no further bucket is loaded.
MAX_WHEEL_ROWS: Final = 1_000_000
LOAD_INTERVAL_MS: Final = 1_000
#: Interval at which a broker without any timed message yet looks for the first.
IDLE_MS: Final = 100
#: A round that lasts longer than this takes in new messages between two ticks.
LONG_ROUND_MS: Final = 100
#: Shortest interval between two log lines about messages that cannot be taken in.
QUIET_MS: Final = 60_000


class Timers:
    """Owns the timed messages of a store. Call :meth:`recover` before the first append, and
    :meth:`close` after the last.

    ``delayed`` counts the messages that are delivered to topics. ``intake`` and ``delivery`` have
    counters for metrics.
    """

    def __init__(
        self, *, store: MessageStore, appender: Appender, clock: Clock, delayed: TopicCounts
    ) -> None:
        self._store = store
        self._clock = clock
        files = TimerFiles(store.files, store.config.store_path_root_dir)
        self.pending = Pending(files)
        self.intake = Intake(store, self.pending)
        redelivery = DueDelivery(store, appender, clock, delayed)
        self.delivery = TimerDelivery(store, self.pending, redelivery, clock)
        self.rolling = Rolling(
            store, self.pending, redelivery, clock, self._read_bucket, self._load_due
        )
        self.saver = Saver(store, self.pending, self.delivery, self.intake, self.rolling, clock)
        #: Held during a round, and during a rebuild of all files.
        self._rounds = asyncio.Lock()
        #: False while a tick may be delivered in part.
        self._is_whole = True
        self._quiet_until_ms = 0

    async def recover(self) -> None:
        """Recover the waiting messages at a start. Raise OSError if their files cannot be read."""
        held = await recover(self._store, self.pending, self._clock)
        self.delivery.held = {row[2]: row for row in held}
        self.saver.know()
        if self.pending.count:
            log.info("timers_recovered count=%d", self.pending.count)

    def start(self, tasks: Tasks) -> None:
        """Begin the background work; ``tasks`` ends it before :meth:`close`."""
        keep = partial(tasks.keep, clock=self._clock)
        keep(self._deliver_forever, name="deliver timed messages")
        keep(self._load_forever, name="load timed messages")
        keep(self.saver.save_forever, name="save timed messages")

    async def close(self) -> None:
        """Save a snapshot for the next start."""
        if self._is_whole:
            await self._take_in(Slices(self._clock))
            self.saver.know()
        self._store.flusher.sync_now()
        await self.saver.save()

    def release(self, end: int, forced: bool) -> int:
        """Return the log offset up to which the store, which wants to delete up to ``end``, may
        delete. ``forced`` says that the disk is full."""
        return min(self.rolling.release(end, forced), self.intake.log_offset())

    def facts(self) -> Mapping[str, str]:
        """Return entries for the broker's runtime information."""
        return {
            "timerWaiting": str(max(self.pending.count, 0)),
            "timerDelivered": str(self.delivery.delivered),
            "timerRecalled": str(self.delivery.recalls),
            "timerHeldBack": str(len(self.delivery.held)),
            "timerRolled": str(self.rolling.rolled),
        }

    def behind_ms(self) -> int:
        """Return the ms by which delivery is behind the time, usually less than IDLE_MS."""
        return max(self._clock.wall_ms() - self.pending.through * TICK_MS, 0)

    # ------------------------------------------------------------------------------------ delivery

    async def _deliver_forever(self) -> None:
        while True:
            await self._clock.sleep_ms(TICK_MS if self.intake.is_used else IDLE_MS)
            await self.round()

    async def round(self) -> None:
        """Take in new messages, and deliver due ones."""
        async with self._rounds:
            # If this is cancelled in the middle of a tick, the snapshot of the last whole state
            # stays.
            self._is_whole = False
            await self._round()
            self._is_whole = True
            self.saver.know_sometimes()

    async def _round(self) -> None:
        pending, slices = self.pending, Slices(self._clock)
        await self._take_in(slices)
        began_ms = self._clock.monotonic_ms()
        while True:
            now = self._clock.wall_ms() // TICK_MS
            # A tick that spans the end of a bucket also has rows of the next bucket.
            last = min(now, pending.loaded * BUCKET_MS // TICK_MS - 1)
            tick = pending.wheel.next_tick()
            if tick is None or tick > last:
                break
            await self.delivery.deliver_tick(tick, pending.wheel.take())
            pending.through = max(pending.through, tick)
            if self._clock.monotonic_ms() - began_ms > LONG_ROUND_MS:
                await self._take_in(slices)
                began_ms = self._clock.monotonic_ms()
        pending.through = max(pending.through, last)
        await self.delivery.retry_held()

    async def _take_in(self, slices: Slices) -> None:
        """Take in new messages. If one cannot be read, it and those after it are tried again in the
        next round; messages that are due do not wait for that."""
        try:
            await self.intake.follow(slices)
        except (StoreError, OSError) as error:
            now_ms = self._clock.monotonic_ms()
            if now_ms >= self._quiet_until_ms:
                self._quiet_until_ms = now_ms + QUIET_MS
                log.error("timed messages not taken in error=%r", error)

    # -------------------------------------------------------------------------------------- loading

    async def _load_forever(self) -> None:
        while True:
            await self._load_due()
            if self.rolling.is_wanted:
                try:
                    await self.rolling.roll()
                except StoreCorrupt as error:
                    await self._rebuild(error)
                except (StoreError, OSError) as error:
                    log.error("timers not rolled error=%s", error)
            await self._clock.sleep_ms(LOAD_INTERVAL_MS)

    async def _load_due(self) -> None:
        while await self.load_next():
            pass

    async def load_next(self) -> bool:
        """Load the next bucket that is wanted; return False if there is none."""
        pending = self.pending
        if pending.wheel.count > MAX_WHEEL_ROWS:
            return False
        bucket = pending.next_bucket(self._clock.wall_ms() + LEAD_MS)
        if bucket is None:
            return False
        read = pending.begin_load(bucket)
        while True:
            try:
                rows = await self._fetch(read)
                break
            except StoreCorrupt as error:
                await self._rebuild(error)
                return True
            except OSError as error:
                # Only the read is repeated: new rows of the bucket go into the wheel since
                # begin_load, and a later begin would add them twice.
                log.error("timed messages not loaded error=%s", error)
            await self._clock.sleep_ms(LOAD_INTERVAL_MS)
        await pending.end_load(bucket, rows, Slices(self._clock))
        return True

    async def _read_bucket(self, bucket: int) -> bytes:
        return await self._fetch(self.pending.files.begin_read(bucket))

    async def _fetch(self, read: tuple[int, int, int]) -> bytes:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._store.executor, self.pending.files.fetch, *read)

    async def _rebuild(self, error: StoreCorrupt) -> None:
        """Rebuild all timer files from the log, after one proved corrupt."""
        log.error("timer_file_bad error=%s", error)
        async with self._rounds:
            await rebuild(self._store, self.pending, self._clock)
