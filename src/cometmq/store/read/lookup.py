"""Lookups off the hot path: by time, by key, by physical offset.

Bytes of the log that are in memory are read at once; a thread reads the others (upstream:
DefaultMessageStore.queryMessage, getOffsetInQueueByTime).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cometmq.message.record import (
    FIXED_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    STORE_MS_BYTES,
    head_part,
    store_ms_of,
)
from cometmq.store.layout import HOLE_SIZE, QUEUE_ENTRY
from cometmq.store.read.coldreads import in_thread

if TYPE_CHECKING:
    from cometmq.store.index import Index
    from cometmq.store.queue.consumequeue import ConsumeQueue
    from cometmq.store.read.coldreads import ColdReads

_PLACE = head_part("size_bytes", "magic", "physical_offset")


class IndexQuery(NamedTuple):
    """Records found by key, oldest first, and the last indexed store time and offset."""

    records: list[memoryview]
    last_update_ms: int
    last_update_phys: int


async def record_at(reads: ColdReads, offset: int, end: int) -> memoryview | None:
    """Return the record that begins at ``offset`` and ends by ``end``; None if there is none.

    Only the magic number and the stated offset are checked, not the rest of the record.
    """
    if not reads.log.segments.start <= offset <= end - FIXED_BYTES:
        return None
    head = await reads.bytes_at(offset, FIXED_BYTES)
    size = record_size(head, offset)
    if not size or offset + size > end:
        return None
    return await reads.bytes_at(offset, size)


def record_size(head: memoryview | None, offset: int) -> int:
    """Return the size of the record that begins with ``head``.

    Returns 0 if ``head`` is None or does not state the physical offset ``offset``.
    """
    if head is None:
        return 0
    size, magic, physical_offset = _PLACE.unpack_from(head)
    return int(size) if magic in (MAGIC_V1, MAGIC_V2) and physical_offset == offset else 0


async def store_time_at(reads: ColdReads, queue: ConsumeQueue, offset: int) -> int:
    """Return the store time of the message at a queue offset, ms; -1 if there is none."""
    if not queue.min_offset <= offset < queue.max_offset:
        return -1
    phys, size, _ = QUEUE_ENTRY.unpack(queue.read(offset, 1))
    if size == HOLE_SIZE:
        return -1
    head = await reads.bytes_at(phys, STORE_MS_BYTES)
    return -1 if head is None or not record_size(head, phys) else store_ms_of(head)


async def offset_by_time(
    reads: ColdReads, queue: ConsumeQueue, store_ms: int, *, upper: bool
) -> int:
    """Return the queue offset of the first message stored at or after a time.

    With ``upper``, return that of the last message stored at or before the time. Returns
    ``max_offset`` if all are older; with ``upper``, ``min_offset`` if all are newer.
    """
    low, high = queue.min_offset, queue.max_offset
    first = low
    bound_ms = store_ms + 1 if upper else store_ms
    while low < high:
        middle = (low + high) // 2
        if await store_time_at(reads, queue, middle) < bound_ms:
            low = middle + 1
        else:
            high = middle
    return max(low - 1, first) if upper else low


async def query_index(
    index: Index,
    reads: ColdReads,
    end: int,
    key: tuple[str, str],
    max_count: int,
    times_ms: tuple[int, int],
) -> IndexQuery:
    """Return records with the hash of a (topic, key), stored in a range of times.

    ``end`` is the end of the log that may be read.
    """
    places, rest = index.lookup(*key, max_count, *times_ms)
    if len(places) < max_count and rest.chains:
        places += await in_thread(rest.files, rest.run)
    records: list[memoryview] = []
    for place in sorted(set(places)):
        record = await record_at(reads, place, end)
        if record is not None:
            records.append(record)
    return IndexQuery(records, index.end_ms, index.end_phys)
