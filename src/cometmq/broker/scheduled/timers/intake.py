"""Intake of records of the timer topic, and of records that end a wait, into the pending messages.

A record ends the wait of another one if it delivers that one or replaces it. Such a record has
TIMER_OUT_MS, and the other record's physical offset as its prepared offset. So the log alone shows
what has been delivered, and a crash between a delivery and its note changes nothing.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from cometmq.broker.scheduled.duedelivery import record_in
from cometmq.broker.scheduled.timers.pending import Waiting
from cometmq.broker.scheduled.timers.rules import SECOND_MS, due_ms, out_ms
from cometmq.core.errors import StoreCorrupt
from cometmq.message import properties as props
from cometmq.message.names import TIMER_TOPIC
from cometmq.store.layout import HOLE_SIZE, QUEUE_ENTRY

if TYPE_CHECKING:
    from cometmq.broker.scheduled.timers.pending import Pending
    from cometmq.core.clock import Slices
    from cometmq.message.record import Record
    from cometmq.store.messagestore import MessageStore

log = logging.getLogger(__name__)

#: Limit of buffered rows before they are written to the files.
BUFFER_BYTES: Final = 1 << 20
_ENTRIES: Final = 256
_GATHER_BYTES: Final = 1 << 20
_OUT_MARK: Final = props.TIMER_OUT_MS.encode()


def waiting_of(record: Record) -> Waiting | None:
    """Return due time and place of a record of the timer topic; None if it has no due time."""
    properties = props.decode(record.properties)
    due = due_ms(properties, record.store_ms)
    if due is None:
        return None
    is_recall = props.TIMER_DEL_UNIQKEY in properties
    size = -record.size_bytes if is_recall else record.size_bytes
    return Waiting(due, record.queue_offset, record.physical_offset, size)


def end_mark(physical_offset: int) -> int:
    """Return the prepared offset of a record that ends the wait of the one at ``physical_offset``.

    It is that offset, except that 0 becomes -1, because a prepared offset of 0 means "none".
    """
    return physical_offset or -1


def ended_by(record: Record) -> tuple[int, int] | None:
    """Return physical offset and second of the message whose wait a record ends; None if it ends
    none."""
    if not record.prepared_offset or _OUT_MARK not in record.properties:
        return None
    slot_ms = out_ms(props.decode(record.properties))
    return None if slot_ms is None else (max(record.prepared_offset, 0), slot_ms)


def end_wait(pending: Pending, ended: tuple[int, int]) -> None:
    """End the wait of a message. Its second is enough; the exact due time does not matter."""
    physical_offset, slot_ms = ended
    pending.done(physical_offset, slot_ms, slot_ms + SECOND_MS)


class Intake:
    """Takes in records of the timer topic while the broker runs."""

    def __init__(self, store: MessageStore, pending: Pending) -> None:
        self._store = store
        self._pending = pending

    @property
    def is_used(self) -> bool:
        """True if there ever was a timed message."""
        return self._store.find_queue(TIMER_TOPIC, 0) is not None

    def log_offset(self) -> int:
        """Return the log offset before which all records of the timer topic were taken in."""
        queue = self._store.find_queue(TIMER_TOPIC, 0)
        position = self._pending.position
        if queue is None or position >= queue.max_offset:
            return self._store.dispatched_offset
        return int(QUEUE_ENTRY.unpack(queue.read(position, 1))[0])

    async def follow(self, slices: Slices) -> None:
        """Take in all records of the timer topic that are there now."""
        queue = self._store.find_queue(TIMER_TOPIC, 0)
        if queue is None:
            return
        pending, end = self._pending, queue.max_offset
        pending.position = max(pending.position, queue.min_offset)
        while pending.position < end:
            entries = [*QUEUE_ENTRY.iter_unpack(queue.read(pending.position, _ENTRIES))]
            entries = _bounded(entries)
            places = [(at, size) for at, size, _ in entries]
            found = await self._store.reads.gather(places)
            if not await self._store.repairs.prove(queue, pending.position, places, found):
                continue
            for (physical, size, _), view in zip(entries, found, strict=True):
                if size != HOLE_SIZE:
                    self._take(physical, record_or_none(view, physical))
                pending.position += 1
                await slices.pause()
            if pending.files.buffered_bytes > BUFFER_BYTES:
                try:
                    await pending.files.write(slices)
                except OSError as error:
                    # Rows can stay in memory and in the log for now; due messages must not be
                    # delayed.
                    log.error("timers not written error=%s", error)
                    return

    def _take(self, physical: int, record: Record | None) -> None:
        waiting = None if record is None else waiting_of(record)
        if waiting is None:
            log.error(
                "timed message lost offset=%d physical=%d reason=%s",
                self._pending.position, physical,
                "not in the log" if record is None else "it has no delivery time",
            )  # fmt: skip
            return
        self._pending.put(waiting)


def _bounded(entries: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Return as many entries as may be read together, at least one."""
    room = _GATHER_BYTES
    for number, (_, size, _) in enumerate(entries):
        room -= 0 if size == HOLE_SIZE else size
        if room < 0:
            return entries[: max(number, 1)]
    return entries


def record_or_none(found: memoryview | StoreCorrupt | None, physical: int) -> Record | None:
    """Return a record of the timer topic; None, after logging it, if it is damaged or missing."""
    try:
        return record_in(found, TIMER_TOPIC)
    except StoreCorrupt as error:
        log.error("timed message damaged physical=%d reason=%s", physical, error)
        return None
