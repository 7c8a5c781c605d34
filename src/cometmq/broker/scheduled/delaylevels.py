"""Delayed messages: stored in SCHEDULE_TOPIC_XXXX until they are due (upstream:
ScheduleMessageService.java).

A message with a delay level goes into the queue of its level (queue id = level - 1). The properties
REAL_TOPIC and REAL_QID hold its real place, and its queue entry holds the wall-clock time at which
it is due instead of a tag code. The entries of a queue are due in order, so each level needs one
position only: config/delayOffset.json, ``{"offsetTable":{level:offset}}``.

A position advances after the messages before it are stored in their real topics; it is written
every 10 s. So a clean stop delivers nothing twice. A crash may deliver the last seconds again, but
loses nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from cometmq.broker.scheduled.duedelivery import (
    GATHER_BYTES,
    GATHER_COUNT,
    REST_MS,
    DueDelivery,
    real_place,
    record_in,
)
from cometmq.broker.tables import TableFile, pretty
from cometmq.core.errors import StoreError
from cometmq.message import properties as props
from cometmq.message.names import SCHEDULE_TOPIC
from cometmq.protocol.fastjson import parse_json
from cometmq.store.config import delay_levels_ms
from cometmq.store.layout import HOLE_SIZE, QUEUE_ENTRY

if TYPE_CHECKING:
    from cometmq.broker.context import BrokerContext
    from cometmq.store.read.coldreads import Found

log = logging.getLogger(__name__)

#: Interval of the search for due messages, and so their greatest delay.
TICK_MS: Final = 25
#: The same interval while no message waits.
IDLE_MS: Final = 250
#: Longest wait of a stop for the last deliveries.
CLOSE_TIMEOUT_S: Final = 2.0
#: Marks of :class:`Waits` that are closer than the delay divided by this are merged, which bounds
#: their number.
_WAIT_PARTS: Final = 64


class Waits:
    """Waiting entries of one delay level, timed by the monotonic clock.

    Used after the wall clock was set back. Store times in a log never decrease: until the clock has
    caught up, all records get the last store time. Due times computed from it may be hours too
    late. So each entry waits ``delay_ms`` from the time when it was first seen.
    """

    __slots__ = ("_delay_ms", "_marks", "over")

    def __init__(self, delay_ms: int) -> None:
        #: Every entry before this offset has waited its full delay.
        self.over = 0
        self._delay_ms = delay_ms
        #: Monotonic times at which the first and the last entry of a group were seen, and its end
        #: offset.
        self._marks: deque[tuple[int, int, int]] = deque()

    def look(self, end: int, now_ms: int) -> None:
        """Note that the queue ends at offset ``end`` at the monotonic time ``now_ms``."""
        marks, delay_ms = self._marks, self._delay_ms
        if end > (marks[-1][2] if marks else self.over):
            begun_ms = now_ms
            if marks and now_ms - marks[-1][0] < delay_ms // _WAIT_PARTS:
                begun_ms = marks.pop()[0]
            marks.append((begun_ms, now_ms, end))
        while marks and now_ms - marks[0][1] >= delay_ms:
            self.over = marks.popleft()[2]

    def forget(self) -> None:
        """Drop all marks, because due times by the wall clock are right again."""
        self._marks.clear()
        self.over = 0


class DelayLevels:
    """Delays of the levels; level 1 is the first delay of ``messageDelayLevel``."""

    __slots__ = ("_delays_ms",)

    def __init__(self, levels: str) -> None:
        self._delays_ms = delay_levels_ms(levels)

    def __len__(self) -> int:
        return len(self._delays_ms)

    def delay_ms(self, level: int) -> int:
        """Return the delay of a level."""
        return self._delays_ms[level - 1]

    @property
    def shortest_ms(self) -> int:
        """The shortest delay; 0 without levels."""
        return min(self._delays_ms, default=0)

    def level_of(self, properties: Mapping[str, str]) -> int:
        """Return the level that a message asks for, at most the last one; 0 if it asks for none."""
        text = properties.get(props.DELAY, "")
        if not (text.isascii() and text.isdigit()):
            return 0
        return min(int(text[:9]), len(self._delays_ms))

    def place_for(
        self, topic: str, queue_id: int, properties: Mapping[str, str], level: int
    ) -> tuple[str, int, dict[str, str]]:
        """Return the topic, queue id and properties under which a message for ``topic`` waits."""
        level = min(level, len(self._delays_ms))
        parked = {
            **properties,
            props.DELAY: str(level),
            props.REAL_TOPIC: topic,
            props.REAL_QID: str(queue_id),
        }
        return SCHEDULE_TOPIC, level - 1, parked

    def is_schedule(self, topic: str) -> bool:
        """Decide whether ``topic`` holds delayed messages."""
        return topic == SCHEDULE_TOPIC

    def due_ms(self, queue_id: int, store_ms: int) -> int:
        """Return the time at which a message stored at ``store_ms`` in a level's queue is due."""
        return store_ms + self._delays_ms[queue_id]


class DelayDelivery:
    """Delivers due messages, and keeps the position of each level."""

    def __init__(self, context: BrokerContext, levels: DelayLevels) -> None:
        self._config = context.config
        self._levels = levels
        self._store = context.store
        self._redelivery = DueDelivery(
            context.store, context.appender, context.clock, context.stats.delayed
        )
        self._clock = context.clock
        self._stats = context.stats
        self._positions: dict[int, int] = {}
        self._rest_until_ms: dict[int, int] = {}
        self._waits = {level: Waits(levels.delay_ms(level)) for level in range(1, len(levels) + 1)}
        self._changed = False
        #: Outcome of the turn in which messages were appended last.
        self._pending: asyncio.Future[None] | None = None
        self._file = TableFile(context.directory, "delayOffset.json", self._encode)

    # ----------------------------------------------------------------------------- loading, saving

    def load(self) -> None:
        """Read the positions and clamp them to the bounds of their queues. Raise StoreCorrupt if
        the file cannot be read."""
        self._positions = self._file.read(_positions, required_key="offsetTable") or {}
        for level in range(1, len(self._levels) + 1):
            queue = self._store.queue(SCHEDULE_TOPIC, level - 1)
            position = self._positions.get(level, 0)
            clamped = min(max(position, queue.min_offset), queue.max_offset)
            if clamped != position:
                log.warning("delay offset clamped level=%d from=%d to=%d", level, position, clamped)
            self._positions[level] = clamped

    async def close(self) -> None:
        """Write the positions, after the last appended messages are stored (the appender is
        closed)."""
        if self._pending is not None:
            await asyncio.wait([self._pending], timeout=CLOSE_TIMEOUT_S)
            await self._clock.sleep_ms(0)  # one turn, in which the future's callback runs
        if self._changed or self._file.unsaved:
            await self._file.write()
        await self._file.close()

    def replace(self, text: bytes) -> None:
        """Replace the positions by the master's, from its answer to request 45
        (GET_ALL_DELAY_OFFSET).

        Raise BadRequest or ValueError if the answer is malformed.
        """
        before = self._used()
        self._positions = _positions(parse_json(text, dict[str, Any]))
        if self._used() != before:
            # On a slave no delivery writes the file from time to time.
            self._changed = True
            self._file.touch()

    def text(self) -> bytes:
        """Return the positions in one line, as the answer to request 45 carries them."""
        pairs = [b"%d:%d" % pair for pair in self._used().items()]
        return b'{"offsetTable":{' + b",".join(pairs) + b"}}"

    def progress(self) -> dict[int, tuple[int, int]]:
        """Return position and queue end of each level that ever held a message."""
        found: dict[int, tuple[int, int]] = {}
        for level in range(1, len(self._levels) + 1):
            end = self._store.queue(SCHEDULE_TOPIC, level - 1).max_offset
            if end:
                found[level] = self._positions.get(level, 0), end
        return found

    def _used(self) -> dict[int, int]:
        """Return the positions of levels that delivered something, as upstream keeps them."""
        return {level: at for level, at in sorted(self._positions.items()) if at}

    # ------------------------------------------------------------------------------------ delivery

    async def run_forever(self) -> None:
        """Deliver due messages, and write the positions at the configured interval."""
        written_ms = self._clock.monotonic_ms()
        idle_ms = max(TICK_MS, min(IDLE_MS, self._levels.shortest_ms // 4))
        while True:
            # The idle interval is short enough to see a new message long before it is due.
            await self._clock.sleep_ms(TICK_MS if self._holds_any() else idle_ms)
            await self.deliver_due()
            now_ms = self._clock.monotonic_ms()
            changed = self._changed or self._file.unsaved
            if changed and now_ms - written_ms >= self._config.flush_delay_offset_interval:
                written_ms = now_ms
                try:
                    await self._file.write()
                except StoreError:
                    continue  # logged by the writer; the next round tries again

    def _holds_any(self) -> bool:
        """Decide whether a message waits in any level."""
        for level in range(1, len(self._levels) + 1):
            queue = self._store.queue(SCHEDULE_TOPIC, level - 1)
            if self._positions.get(level, 0) < queue.max_offset:
                return True
        return False

    async def deliver_due(self) -> int:
        """Deliver everything that is due; return the number of messages.

        Levels take turns, so that a long one does not delay the others.
        """
        delivered = 0
        busy = list(range(1, len(self._levels) + 1))
        while busy:
            counts = [(level, await self._deliver_some(level)) for level in busy]
            delivered += sum(count for _, count in counts)
            busy = [level for level, count in counts if count]
        return delivered

    async def _deliver_some(self, level: int) -> int:
        """Deliver one batch of a level's due messages; return by how many entries the level's
        position advanced.

        A level whose messages cannot be read rests; the other levels go on.
        """
        try:
            return await self._deliver_batch(level)
        except (StoreError, OSError) as error:
            self._rest(level, error)
            return 0

    async def _deliver_batch(self, level: int) -> int:
        due = self._due(level)
        if not due:
            return 0
        begin = self._positions[level]
        found = await self._store.reads.gather(due)
        queue = self._store.queue(SCHEDULE_TOPIC, level - 1)
        if not await self._store.repairs.prove(queue, begin, due, found):
            return 0  # the entries were repaired; a later round reads them again
        at = 0
        while at < len(due):
            stop = self._append_some(level, begin, due, found, at)
            if stop == at:
                break
            self._pending = self._redelivery.turn_outcome()
            sizes = [size for _, size in due[at:stop] if size]
            passed = partial(self._passed, level, begin + stop, sizes)
            self._pending.add_done_callback(passed)
            # Shielded: these are stored even during a stop, and close() waits for the callback.
            try:
                await asyncio.shield(self._pending)
            except StoreError as error:
                self._rest(level, error)
                break
            at = stop
            if self._is_resting(level):
                break
        return self._positions[level] - begin

    def _due(self, level: int) -> list[tuple[int, int]]:
        """Return physical offset and size of the level's first due records; a hole has size 0."""
        queue = self._store.queue(SCHEDULE_TOPIC, level - 1)
        position = max(self._positions.get(level, 0), queue.min_offset)
        self._positions[level] = position
        if position >= queue.max_offset or self._is_resting(level):
            return []
        now_ms = self._clock.wall_ms()
        # An entry that is due later than the level's whole delay was stored before the wall clock
        # was set back, or before it caught up again.
        horizon_ms, waited = now_ms + self._levels.delay_ms(level), self._waits[level]
        if self._store.state.last_ms > now_ms:
            waited.look(queue.max_offset, self._clock.monotonic_ms())
        else:
            waited.forget()
        due: list[tuple[int, int]] = []
        room = GATHER_BYTES
        entries = queue.read(position, GATHER_COUNT)
        for offset, (physical, size, due_ms) in enumerate(
            QUEUE_ENTRY.iter_unpack(entries), position
        ):
            is_due = due_ms <= now_ms or (due_ms > horizon_ms and offset < waited.over)
            if not is_due or room <= 0:
                break
            is_hole = size == HOLE_SIZE
            due.append((physical, 0 if is_hole else size))
            room -= 0 if is_hole else size
        return due

    def _append_some(
        self, level: int, begin: int, due: list[tuple[int, int]], found: list[Found], at: int
    ) -> int:
        """Append as many records from ``at`` on as one turn takes; return the index of the first
        record that is left."""
        redelivery = self._redelivery
        redelivery.begin()
        while at < len(due):
            try:
                if due[at][1]:
                    self._append(level, begin + at, due[at][0], found[at])
            except StoreError as error:
                # Stop at damage: to skip it would lose the message, which an operator may still
                # restore.
                self._rest(level, error)
                return at
            at += 1
            if not redelivery.goes_on():
                break
        return at

    def _append(self, level: int, offset: int, physical: int, found: Found) -> None:
        record = record_in(found, SCHEDULE_TOPIC)
        if record is None:
            log.error(
                "delayed message lost level=%d offset=%d physical=%d reason=not in the log",
                level, offset, physical,
            )  # fmt: skip
            return
        properties = props.decode(record.properties)
        place = real_place(properties)
        if place is not None:
            self._redelivery.append(record, place, properties, record.properties)

    def _passed(
        self, level: int, position: int, sizes: list[int], done: asyncio.Future[None]
    ) -> None:
        """Move a level to ``position`` once the messages before it are stored in their topics."""
        if not done.cancelled() and done.exception() is None:
            self._positions[level] = position
            self._stats.on_delayed_delivery(level - 1, len(sizes), sum(sizes))
            self._changed = True

    def _is_resting(self, level: int) -> bool:
        return self._rest_until_ms.get(level, 0) > self._clock.monotonic_ms()

    def _rest(self, level: int, reason: BaseException) -> None:
        """Suspend a level for REST_MS after a failure."""
        log.error("delayed delivery failed level=%d reason=%r", level, reason)
        self._rest_until_ms[level] = self._clock.monotonic_ms() + REST_MS

    def _encode(self) -> Iterator[bytes]:
        self._changed = False
        yield pretty({"offsetTable": self._used()})


def _positions(found: dict[str, Any]) -> dict[int, int]:
    try:
        return msgspec.convert(found["offsetTable"] or {}, dict[int, int], strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(f"offsetTable: {error}") from None
