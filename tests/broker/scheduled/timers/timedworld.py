"""A store, an appender and timed messages over it, on a clock that tests move."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

from cometmq.broker.acknowledgement import Appender, OutgoingRecord, PutResult
from cometmq.broker.config import BrokerConfig
from cometmq.broker.scheduled.timers.rules import TimerRules
from cometmq.broker.scheduled.timers.service import Timers
from cometmq.core.clock import VirtualClock
from cometmq.message import properties as props
from cometmq.message.names import TIMER_TOPIC
from cometmq.message.record import Record, iter_decode
from cometmq.net.eventloop import Watchdog
from cometmq.store.config import StoreConfig
from cometmq.store.files import Files
from cometmq.store.messagestore import MessageStore
from cometmq.store.read.reader import ReadStatus
from cometmq.store.recovery.opening import open_store
from tests.broker.world import SMALL_STORE, STORE_HOST


@dataclass
class TimedWorld:
    """What runs; ``clock`` begins at a whole second."""

    clock: VirtualClock
    store: MessageStore
    appender: Appender
    rules: TimerRules
    timers: Timers

    async def send(
        self, body: bytes = b"x", delay_ms: int = 5_000, topic: str = "t", **more: str
    ) -> PutResult:
        """Store a message that waits, as a send does."""
        now_ms = self.clock.wall_ms()
        wish = {props.TIMER_DELIVER_MS: str(now_ms + delay_ms), **more}
        parked = self.rules.place_for(topic, 3, wish, now_ms)
        assert parked is not None
        place, queue_id, properties = parked
        return await self.put(place, body, queue_id, properties)

    async def put(
        self, topic: str, body: bytes, queue_id: int, properties: dict[str, str]
    ) -> PutResult:
        """Store a message."""
        record = OutgoingRecord(topic, queue_id, body, properties, self.clock.wall_ms(), STORE_HOST)
        return await self.appender.put(record)

    async def recall(self, sent_ms: int, delay_ms: int, key: str, topic: str = "t") -> None:
        """Recall what was sent with ``send(delay_ms=...)`` at ``sent_ms``."""
        slot_ms = (sent_ms + delay_ms - 1) // 1_000 * 1_000
        wish = {
            props.TIMER_DELIVER_MS: str(slot_ms + 1),
            props.TIMER_DEL_UNIQKEY: f"{topic}+{key}",
        }
        parked = self.rules.place_for(topic, 0, wish, self.clock.wall_ms())
        assert parked is not None
        place, queue_id, properties = parked
        await self.put(place, b"0", queue_id, properties)

    async def settle(self) -> None:
        """Load what has to be loaded, and deliver what is due."""
        while await self.timers.load_next():
            pass
        await self.timers.round()

    async def advance(self, duration_ms: int) -> None:
        """Let time pass, then :meth:`settle`."""
        self.clock.advance(duration_ms)
        await self.settle()

    def read(self, topic: str = "t", queue_id: int = 3) -> list[Record]:
        """Every visible message of a queue."""
        found: list[Record] = []
        offset = self.store.queue(topic, queue_id).min_offset
        while True:
            result = self.store.read(topic, queue_id, offset, 32)
            if result.status is not ReadStatus.FOUND:
                return found
            for chunk in result.chunks:
                found += iter_decode(chunk)
            offset = result.next_offset

    def bodies(self, topic: str = "t") -> list[bytes]:
        """What was delivered."""
        return [record.body for record in self.read(topic)]

    @property
    def waiting(self) -> int:
        """How many messages the timer topic ever had."""
        return self.store.queue(TIMER_TOPIC, 0).max_offset


@contextlib.asynccontextmanager
async def timed_world(
    directory: Path,
    clock: VirtualClock | None = None,
    *,
    store_config: StoreConfig = SMALL_STORE,
    files: Files | None = None,
    crash: bool = False,
) -> AsyncIterator[TimedWorld]:
    """Run on the store in ``directory``; with ``crash`` nothing is noted at the end."""
    clock = clock or VirtualClock()
    config = BrokerConfig()
    store = open_store(replace(store_config, store_path_root_dir=str(directory)), clock, files)
    store.store_host = STORE_HOST
    appender = Appender(store, clock=clock, store_host=STORE_HOST, watchdog=Watchdog(clock))
    timers = Timers(store=store, appender=appender, clock=clock)
    await timers.recover()
    store.maintenance.expiry.release_with(timers.release)
    try:
        yield TimedWorld(clock, store, appender, TimerRules(config), timers)
    finally:
        appender.close()
        if not crash:
            await timers.close()
        store.close()
