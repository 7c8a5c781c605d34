"""Delayed messages: parked in SCHEDULE_TOPIC_XXXX until they are due (upstream:
ScheduleMessageService.java).

A message with a delay level goes into the queue of its level (queue id = level - 1); its real place
stands in the properties REAL_TOPIC and REAL_QID, its queue entry holds the wall-clock time at which
it is due instead of a tag code. A queue's entries are due in their order, so a level needs one
position only: config/delayOffset.json, ``{"offsetTable":{level:offset}}``.

A position moves on after what it passed is stored in its real topic, and is written every 10 s. So
a stop delivers nothing twice, and a crash may deliver the last seconds again, but loses nothing.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from cometmq.broker.durability import OutgoingRecord
from cometmq.broker.lookup import find_record
from cometmq.broker.prettyjson import pretty
from cometmq.broker.tables import TableFile
from cometmq.core.errors import MessageIllegal, StoreCorrupt, StoreError
from cometmq.message import properties as props
from cometmq.message.names import HALF_TOPIC, SCHEDULE_TOPIC
from cometmq.store.config import delay_levels_ms
from cometmq.store.layout import HOLE_SIZE, QUEUE_ENTRY

if TYPE_CHECKING:
    from cometmq.broker.config import BrokerConfig
    from cometmq.broker.durability import Appender, PutResult
    from cometmq.core.clock import Clock
    from cometmq.message.record import Record
    from cometmq.net.tasks import Tasks
    from cometmq.store.engine import MessageStore
    from cometmq.store.files import Files

log = logging.getLogger(__name__)

#: How often due messages are looked for; they arrive at most this much late.
TICK_MS: Final = 50
#: Messages of a level that are delivered together, in one commit.
BATCH: Final = 64
#: How long a stop waits for the last deliveries.
CLOSE_TIMEOUT_S: Final = 2.0
#: After a refused delivery the level rests for this long.
REST_MS: Final = 1_000


class DelayLevels:
    """What the levels mean: level 1 is the first delay of ``messageDelayLevel``."""

    __slots__ = ("_delays_ms",)

    def __init__(self, levels: str) -> None:
        self._delays_ms = delay_levels_ms(levels)

    def __len__(self) -> int:
        return len(self._delays_ms)

    def delay_ms(self, level: int) -> int:
        """The delay of a level."""
        return self._delays_ms[level - 1]

    def level_of(self, properties: Mapping[str, str]) -> int:
        """The level a message asks for, 0 for none; beyond the last level it is the last."""
        text = properties.get(props.DELAY, "")
        if not (text.isascii() and text.isdigit()):
            return 0
        return min(int(text[:9]), len(self._delays_ms))

    def park(
        self, topic: str, queue_id: int, properties: Mapping[str, str], level: int
    ) -> tuple[str, int, dict[str, str]]:
        """Where a message for ``topic`` waits, and with which properties."""
        level = min(level, len(self._delays_ms))
        parked = {
            **properties,
            props.DELAY: str(level),
            props.REAL_TOPIC: topic,
            props.REAL_QID: str(queue_id),
        }
        return SCHEDULE_TOPIC, level - 1, parked

    def is_schedule(self, topic: str) -> bool:
        """Whether messages in ``topic`` wait to be due."""
        return topic == SCHEDULE_TOPIC

    def due_ms(self, queue_id: int, store_ms: int) -> int:
        """When a message stored at ``store_ms`` in a level's queue is due."""
        return store_ms + self._delays_ms[queue_id]


class DelayDelivery:
    """Delivers what is due and remembers how far each level has got."""

    def __init__(
        self,
        config_directory: str,
        *,
        config: BrokerConfig,
        levels: DelayLevels,
        store: MessageStore,
        appender: Appender,
        clock: Clock,
        tasks: Tasks,
        files: Files | None = None,
    ) -> None:
        self._config = config
        self._levels = levels
        self._store = store
        self._appender = appender
        self._clock = clock
        self._positions: dict[int, int] = {}
        self._rest_until_ms: dict[int, int] = {}
        self._changed = False
        self._pending: asyncio.Future[list[PutResult | BaseException]] | None = None
        self._file = TableFile(
            os.path.join(config_directory, "delayOffset.json"),
            self._encode,
            clock=clock,
            tasks=tasks,
            files=files,
        )

    # ----------------------------------------------------------------------------- loading, saving

    def load(self) -> None:
        """Read the positions and bring them into their queues' bounds. Raises StoreCorrupt."""
        self._positions = self._file.read(_positions, required_key="offsetTable") or {}
        for level in range(1, len(self._levels) + 1):
            queue = self._store.queue(SCHEDULE_TOPIC, level - 1)
            position = self._positions.get(level, 0)
            clamped = min(max(position, queue.min_offset), queue.max_offset)
            if clamped != position:
                log.warning("delay offset clamped level=%d from=%d to=%d", level, position, clamped)
            self._positions[level] = clamped

    async def close(self) -> None:
        """Write the positions, after what was appended last is stored (the appender is closed)."""
        if self._pending is not None:
            await asyncio.wait([self._pending], timeout=CLOSE_TIMEOUT_S)
            await self._clock.sleep_ms(0)  # one turn, in which its callback runs
        if self._changed or self._file.unsaved:
            await self._file.write()
        await self._file.close()

    def text(self) -> bytes:
        """The positions in one line, as answer 45 carries them."""
        pairs = [b"%d:%d" % pair for pair in self._used().items()]
        return b'{"offsetTable":{' + b",".join(pairs) + b"}}"

    def progress(self) -> dict[int, tuple[int, int]]:
        """For each level that ever held a message: its position and its queue's end."""
        found: dict[int, tuple[int, int]] = {}
        for level in range(1, len(self._levels) + 1):
            end = self._store.queue(SCHEDULE_TOPIC, level - 1).max_offset
            if end:
                found[level] = self._positions.get(level, 0), end
        return found

    def _used(self) -> dict[int, int]:
        """The positions of levels that delivered something, as upstream keeps them."""
        return {level: at for level, at in sorted(self._positions.items()) if at}

    # ------------------------------------------------------------------------------------ delivery

    async def run_forever(self) -> None:
        """Deliver what is due, and write the positions in the configured interval."""
        written_ms = self._clock.monotonic_ms()
        while True:
            await self._clock.sleep_ms(TICK_MS)
            await self.deliver_due()
            now_ms = self._clock.monotonic_ms()
            changed = self._changed or self._file.unsaved
            if changed and now_ms - written_ms >= self._config.flush_delay_offset_interval:
                written_ms = now_ms
                try:
                    await self._file.write()
                except StoreError:
                    continue  # logged by the writer; the next round tries again

    async def deliver_due(self) -> int:
        """Deliver everything that is due now; gives the number of messages."""
        delivered = 0
        for level in range(1, len(self._levels) + 1):
            while True:
                count = await self._deliver_some(level)
                delivered += count
                if count < BATCH:
                    break
        return delivered

    async def _deliver_some(self, level: int) -> int:
        """Deliver at most one batch of a level; gives how many entries it passed."""
        queue = self._store.queue(SCHEDULE_TOPIC, level - 1)
        position = self._positions.get(level, 0)
        if position >= queue.max_offset:
            return 0
        if self._rest_until_ms.get(level, 0) > self._clock.monotonic_ms():
            return 0
        position = max(position, queue.min_offset)
        now_ms = self._clock.wall_ms()
        # Entries beyond the level's whole delay come from before the wall clock was set back.
        horizon_ms = now_ms + self._levels.delay_ms(level)
        records: list[OutgoingRecord | None] = []
        for physical, size, due_ms in QUEUE_ENTRY.iter_unpack(queue.read(position, BATCH)):
            if now_ms < due_ms <= horizon_ms:
                break
            if size == HOLE_SIZE:
                records.append(None)
                continue
            try:
                records.append(await self._restore(physical, level, position + len(records)))
            except StoreCorrupt as error:
                # Passed over it would be lost: an operator may still bring it back.
                self._rest(level, error)
                break
        if not records:
            return 0
        puts = [self._appender.put(record) for record in records if record is not None]
        self._pending = asyncio.gather(*puts, return_exceptions=True)
        self._pending.add_done_callback(
            lambda done: self._passed(level, position, self._count(records, done.result(), level))
        )
        # Shielded: at a stop these records are stored all the same, and passed before close() ends.
        await asyncio.shield(self._pending)
        return self._positions[level] - position

    def _passed(self, level: int, position: int, count: int) -> None:
        self._positions[level] = position + count
        self._changed = self._changed or count > 0

    def _count(
        self,
        records: list[OutgoingRecord | None],
        results: list[PutResult | BaseException],
        level: int,
    ) -> int:
        """How many records, from the first on, are done with."""
        outcomes = iter(results)
        for passed, record in enumerate(records):
            outcome = None if record is None else next(outcomes)
            if isinstance(outcome, MessageIllegal):
                log.error("delayed message dropped level=%d reason=%s", level, outcome)
            elif isinstance(outcome, BaseException):
                self._rest(level, outcome)
                return passed
        return len(records)

    def _rest(self, level: int, reason: BaseException) -> None:
        """Leave a level alone for a while."""
        log.error("delayed delivery failed level=%d reason=%r", level, reason)
        self._rest_until_ms[level] = self._clock.monotonic_ms() + REST_MS

    async def _restore(self, physical: int, level: int, offset: int) -> OutgoingRecord | None:
        """The message as it goes to its real topic; None when there is nothing to deliver."""
        record = await find_record(self._store, physical)
        if record is None:
            log.error(
                "delayed message lost level=%d offset=%d physical=%d reason=not in the log",
                level, offset, physical,
            )  # fmt: skip
            return None
        return restored(record)

    def _encode(self) -> Iterator[bytes]:
        self._changed = False
        yield pretty({"offsetTable": self._used()})


def _positions(found: dict[str, Any]) -> dict[int, int]:
    try:
        return msgspec.convert(found["offsetTable"] or {}, dict[int, int], strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(f"offsetTable: {error}") from None


def restored(record: Record) -> OutgoingRecord | None:
    """A parked record for its real place; None when it names none that may get it.

    The stored properties stay as they are, as upstream leaves them.
    """
    properties = props.decode(record.properties)
    topic = properties.get(props.REAL_TOPIC, "")
    queue_text = properties.get(props.REAL_QID, "0")
    is_queue = queue_text.isascii() and queue_text.isdigit() and len(queue_text) < 10
    if not topic or topic in (HALF_TOPIC, SCHEDULE_TOPIC) or not is_queue:
        log.error("delayed message dropped reason=real topic %r queue %r", topic, queue_text)
        return None
    return OutgoingRecord(
        topic,
        int(queue_text),
        record.body,
        properties,
        record.born_ms,
        record.born_host,
        flag=record.flag,
        sys_flag=record.sys_flag,
        reconsume_times=record.reconsume_times,
    )
