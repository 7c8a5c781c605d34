"""Questions that several handlers ask the store: where a queue begins and ends, what lies at an
offset. Nothing here creates a queue that was only asked about."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cometmq.core.errors import StoreCorrupt
from cometmq.message.record import BadRecord, decode_one
from cometmq.store.layout import HOLE_SIZE, QUEUE_ENTRY, QUEUE_ENTRY_BYTES

if TYPE_CHECKING:
    from cometmq.message.record import Record
    from cometmq.store.messagestore import MessageStore

log = logging.getLogger(__name__)


def bounds(store: MessageStore, topic: str, queue_id: int) -> tuple[int, int]:
    """The first queue offset that can be read, and the one that the next message gets."""
    queue = store.find_queue(topic, queue_id)
    return (0, 0) if queue is None else (queue.min_offset, queue.max_offset)


def find_entry(
    store: MessageStore, topic: str, queue_id: int, offset: int
) -> tuple[int, int, int] | None:
    """Physical offset, size and tag code of a queue entry; None when it holds no record."""
    queue = store.find_queue(topic, queue_id)
    if queue is None or not queue.min_offset <= offset < queue.max_offset:
        return None
    raw = queue.read(offset, 1)
    if len(raw) < QUEUE_ENTRY_BYTES:
        return None
    physical, size, code = QUEUE_ENTRY.unpack(raw)
    return None if size == HOLE_SIZE else (physical, size, code)


async def find_record(store: MessageStore, physical_offset: int) -> Record | None:
    """The record at a physical offset, which anybody may have made up; None when none is there."""
    view = await store.fetch_at(physical_offset)
    if view is None:
        return None
    try:
        return decode_one(view)
    except BadRecord as error:
        log.error("record cannot be read offset=%d reason=%s", physical_offset, error)
        return None


async def record_of_queue(
    store: MessageStore, topic: str, queue_id: int, offset: int
) -> Record | None:
    """The record of a queue offset; None when there is none any more. A wrong entry is made right
    first."""
    for is_last in (False, True):
        entry = find_entry(store, topic, queue_id, offset)
        if entry is None:
            return None
        record = await find_record(store, entry[0])
        place = (topic, queue_id, offset)
        if record and (record.topic, record.queue_id, record.queue_offset) == place:
            return record
        if is_last:
            break
        try:
            await store.repairs.repair(store.queue(topic, queue_id), offset)
        except StoreCorrupt:
            break  # logged there
    return None


async def find_bytes(store: MessageStore, physical_offset: int) -> bytes | None:
    """The stored bytes of the record at a physical offset, which anybody may have made up."""
    record = await find_record(store, physical_offset)
    view = None if record is None else await store.fetch_at(physical_offset)
    return None if view is None else bytes(view)


def first_stored_ms(store: MessageStore, topic: str, queue_id: int) -> int:
    """When a queue's first message was stored; 0 when it has none, or one so old that it is surely
    not in memory."""
    low, _ = bounds(store, topic, queue_id)
    entry = find_entry(store, topic, queue_id, low)
    view = None if entry is None else store.message_at(entry[0])
    return 0 if view is None else decode_one(view, check_crc=False).store_ms


def is_young(store: MessageStore, topic: str, queue_id: int) -> bool:
    """Whether a queue still has its first message, and that lies where reading it is cheap; true
    of a queue that never had one (upstream: ConsumerManageProcessor.queryConsumerOffset)."""
    low, _ = bounds(store, topic, queue_id)
    if low > 0:
        return False
    entry = find_entry(store, topic, queue_id, 0)
    if entry is None:
        return True
    ratio = store.config.access_message_in_memory_max_ratio
    return store.written_offset - entry[0] <= store.files.memory_bytes() * ratio // 100
