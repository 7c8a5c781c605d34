"""Questions that several handlers ask the store: where a queue begins and ends, what lies at an
offset, when it was stored. Nothing here creates a queue that was only asked about."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from cometmq.message.record import (
    HEAD,
    SYS_FLAG_POSITION,
    BadRecord,
    decode_one,
    head_of,
)
from cometmq.store.layout import HOLE_SIZE, QUEUE_ENTRY, QUEUE_ENTRY_BYTES

if TYPE_CHECKING:
    from cometmq.message.record import Record
    from cometmq.store.engine import MessageStore

log = logging.getLogger(__name__)

_STORE_MS: Final = 10
"""Position of the store timestamp among the fields of a record's head."""


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


def find_record(store: MessageStore, physical_offset: int) -> Record | None:
    """The record at a physical offset, which anybody may have made up; None when none is there."""
    view = store.message_at(physical_offset)
    if view is None:
        return None
    try:
        return decode_one(view)
    except BadRecord as error:
        log.error("record cannot be read offset=%d reason=%s", physical_offset, error)
        return None


def stored_ms(store: MessageStore, topic: str, queue_id: int, offset: int) -> int | None:
    """When the message at a queue offset was stored; None when there is none."""
    entry = find_entry(store, topic, queue_id, offset)
    if entry is None:
        return None
    view = store.message_at(entry[0])
    if view is None or len(view) < HEAD.size:
        return None
    sys_flag = int.from_bytes(view[SYS_FLAG_POSITION : SYS_FLAG_POSITION + 4], "big", signed=True)
    moment: int = head_of(sys_flag).unpack_from(view)[_STORE_MS]
    return moment


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
