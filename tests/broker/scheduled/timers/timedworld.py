"""Timed messages over a broker's parts, on a clock that tests move."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from cometmq.broker.acknowledgement import Appender, PutResult
from cometmq.broker.scheduled.timers.rules import TimerRules
from cometmq.broker.scheduled.timers.service import Timers
from cometmq.broker.stats import TopicCounts
from cometmq.core.clock import VirtualClock
from cometmq.message import properties as props
from cometmq.message.names import TIMER_TOPIC
from cometmq.message.record import Record
from cometmq.store.config import StoreConfig
from cometmq.store.files import Files
from cometmq.store.messagestore import MessageStore
from tests.broker.world import SMALL_STORE, Parts, open_parts


@dataclass
class TimedWorld:
    """Parts of a broker with timers; ``clock`` begins at a whole second."""

    parts: Parts
    clock: VirtualClock
    rules: TimerRules
    timers: Timers

    @property
    def store(self) -> MessageStore:
        """The store of the parts."""
        return self.parts.store

    @property
    def appender(self) -> Appender:
        """The appender of the parts."""
        return self.parts.appender

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
        return await self.parts.put(topic, body, queue_id, **properties)

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
        return self.parts.read(topic, queue_id)

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
    async with open_parts(directory, None, clock, store_config=store_config, files=files) as parts:
        timers = Timers(
            store=parts.store, appender=parts.appender, clock=clock, delayed=TopicCounts()
        )
        await timers.recover()
        parts.store.maintenance.expiry.release_with(timers.release)
        try:
            yield TimedWorld(parts, clock, TimerRules(parts.config), timers)
        finally:
            if not crash:
                await timers.close()
