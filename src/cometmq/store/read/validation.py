"""Validation of queue entries against their records, before anything is served.

A record contains its size, queue, queue offset, physical offset and topic. An entry that
contradicts its record is wrong: the queue file was damaged. It is rebuilt from the log, by a search
between the records of the neighbouring entries. Entries that were dispatched since the start and
are still in memory need no check.

The log counts as right here; recovery/damage.py and log/checksums.py detect its damage.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from cometmq.core.errors import StoreCorrupt
from cometmq.message.record import FIXED_BYTES
from cometmq.speedups import is_record
from cometmq.store.dispatch import row_of
from cometmq.store.layout import HOLE_SIZE, QUEUE_ENTRY
from cometmq.store.log.scan import Scan, log_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cometmq.message.record import Buffer
    from cometmq.store.log.commitlog import CommitLog
    from cometmq.store.log.segments import Segments
    from cometmq.store.queue.consumequeue import ConsumeQueue

logger = logging.getLogger(__name__)

#: More than the largest record that a broker accepts: a larger size is wrong.
MAX_RECORD_BYTES: Final = 64 * 1024 * 1024
#: Number of entries on either side that are used to bound the search for a record.
_NEIGHBOURS: Final = 64
#: Number of entries that are replaced together, which takes a few ms of the loop's time.
_REPAIRED_AT_ONCE: Final = 1_024
#: Entries of light queues point to records of other queues, which name them in a property.
_LIGHT_PREFIX: Final = "%LMQ%"


def proof_of(queue: ConsumeQueue) -> tuple[int, bytes] | None:
    """Return the fields that all records of a queue contain: the queue id, and the topic's bytes.

    Returns None for a light queue, whose records belong to other queues.
    """
    return None if queue.topic.startswith(_LIGHT_PREFIX) else (queue.queue_id, queue.topic_tail)


def count_proven(
    queue: ConsumeQueue,
    offsets: Sequence[int],
    places: Sequence[int],
    sizes: Sequence[int],
    chunks: Sequence[memoryview],
) -> int:
    """Return the number of records that match their entries, before the first mismatch.

    ``offsets``, ``places`` and ``sizes`` are those of the entries, in order; ``chunks`` hold the
    bytes of whole records, contiguous or not.
    """
    proof = proof_of(queue)
    if proof is None:
        return len(sizes)
    entries = zip(offsets, places, sizes, strict=False)  # only some of the sizes may be passed
    number = 0
    for chunk in chunks:
        at = 0
        while at < len(chunk):
            entry = next(entries, None)
            if entry is None or not is_record(chunk, at, entry, *proof):
                return number
            at += entry[2]
            number += 1
    return number


def _is_record(queue: ConsumeQueue, offset: int, place: int, size: int, data: Buffer) -> bool:
    return is_record(data, 0, (offset, place, size), queue.queue_id, queue.topic_tail)


class EntryRepairs:
    """Rebuilds wrong entries, one at a time."""

    def __init__(self, log: CommitLog, delays_ms: tuple[int, ...]) -> None:
        self._log = log
        self._delays_ms = delays_ms
        self._lock = asyncio.Lock()

    async def prove(
        self,
        queue: ConsumeQueue,
        first: int,
        entries: Sequence[tuple[int, int]],
        found: Sequence[memoryview | StoreCorrupt | None],
    ) -> bool:
        """Check entries (physical offset, size) from the queue offset ``first`` on.

        ``found`` has the bytes at their positions. Returns False if an entry was repaired, so that
        the caller reads the entries again. Holes and damage are skipped, and so are entries whose
        record the log does not have.
        """
        is_right = True
        for offset, ((place, size), data) in enumerate(zip(entries, found, strict=True), first):
            if size in (0, HOLE_SIZE) or isinstance(data, StoreCorrupt):
                continue
            if data is not None and _is_record(queue, offset, place, size, data):
                continue
            try:
                right = await self.repair(queue, offset)
            except StoreCorrupt:
                continue  # logged by repair; the caller sees that the record is not the wanted one
            if right is not None and right != (place, size):
                is_right = False
        return is_right

    async def repair(self, queue: ConsumeQueue, offset: int) -> tuple[int, int] | None:
        """Repair the entry at ``offset`` if it is wrong, and wrong ones that follow it.

        Returns the physical offset and size of its record; None if the record was removed with the
        beginning of the log. Raises StoreCorrupt if the log does not have the record between those
        of the neighbouring entries.
        """
        async with self._lock:
            if not queue.min_offset <= offset < queue.max_offset:
                return None
            loop = asyncio.get_running_loop()
            start = max(queue.min_offset, offset - _NEIGHBOURS)
            entries = _entries(queue, start, offset + 1 + _NEIGHBOURS)
            entries |= _far_entries(queue, offset)
            segments, end = self._log.segments, self._log.written
            wrong = entries.get(offset, (-1, -1, 0))
            found = await loop.run_in_executor(
                None, _find, segments, queue, offset, entries, end, self._delays_ms
            )
            right = found.pop(offset, None)
            if right is None and 0 <= wrong[0] < segments.start:
                return None
            if right is None:
                logger.error(
                    "queue_entry_lost topic=%s queue=%d offset=%d place=%d size=%d",
                    queue.topic, queue.queue_id, offset, wrong[0], wrong[1],
                )  # fmt: skip
                raise StoreCorrupt(
                    queue.directory,
                    -1,
                    f"entry {offset} of queue {queue.topic}/{queue.queue_id} points to offset "
                    f"{wrong[0]}, which has another record, and the log has no record for it",
                )
            place, size, _ = right
            if wrong[:2] != (place, size):
                queue.replace(offset, QUEUE_ENTRY.pack(*right))
                more = _replace_wrong(queue, found)
                logger.warning(
                    "queue_entry_repaired topic=%s queue=%d offset=%d place=%d was=%d size=%d "
                    "was_size=%d more=%d", queue.topic, queue.queue_id, offset, place, wrong[0],
                    size, wrong[1], more,
                )  # fmt: skip
            return place, size


def _replace_wrong(queue: ConsumeQueue, right: dict[int, tuple[int, int, int]]) -> int:
    """Replace the entries that differ from ``right``; return their number. Holes stay.

    Damage seldom hits one entry alone, and each search may have to read much of the log. Raises
    OSError.
    """
    known = _entries(queue, min(right, default=0), max(right, default=-1) + 1)
    wrong = [
        at
        for at, entry in right.items()
        if at in known and known[at][1] != HOLE_SIZE and known[at][:2] != entry[:2]
    ]
    for at in wrong:
        queue.replace(at, QUEUE_ENTRY.pack(*right[at]))
    return len(wrong)


def _entries(queue: ConsumeQueue, start: int, stop: int) -> dict[int, tuple[int, int, int]]:
    """Return entries by offset, except those that the files do not have."""
    found: dict[int, tuple[int, int, int]] = {}
    stop = min(stop, queue.max_offset)
    while start < stop:
        raw = queue.read(start, stop - start)
        if not raw:
            break
        rows = list(QUEUE_ENTRY.iter_unpack(raw))
        found.update(enumerate(rows, start))
        start += len(rows)
    return found


def _far_entries(queue: ConsumeQueue, offset: int) -> dict[int, tuple[int, int, int]]:
    """Return single entries at growing distances from an offset.

    All neighbours may be wrong: a page of a file has 204 entries.
    """
    found: dict[int, tuple[int, int, int]] = {}
    low, high, distance = queue.min_offset, queue.max_offset - 1, 2 * _NEIGHBOURS
    while distance < 2 * max(offset - low, high - offset):
        for at in (max(offset - distance, low), min(offset + distance, high)):
            if abs(at - offset) > _NEIGHBOURS:
                found |= _entries(queue, at, at + 1)
        distance *= 2
    return found


def _find(
    segments: Segments,
    queue: ConsumeQueue,
    offset: int,
    entries: dict[int, tuple[int, int, int]],
    end: int,
    delays_ms: tuple[int, ...],
) -> dict[int, tuple[int, int, int]]:
    """Find the records of a queue from ``offset`` on, between those of correct neighbour entries.

    Returns the correct entries by queue offset. If a deleted topic of the same name had a record of
    the same queue offset, the later record counts.
    """
    low, high, is_bounded = segments.start, end, False
    for near in sorted((at for at in entries if at <= offset), reverse=True):
        place, size, _ = entries[near]
        if _is_entry_right(segments, queue, near, place, size):
            low, is_bounded = place if near == offset else place + size, True
            break
    for near in sorted(at for at in entries if at > offset):
        place, size, _ = entries[near]
        if _is_entry_right(segments, queue, near, place, size):
            high = place
            break
    found: dict[int, tuple[int, int, int]] = {}
    stop = min(offset + _REPAIRED_AT_ONCE, queue.max_offset)
    for record in Scan(segments, low, high):
        if (record.topic, record.queue_id) == (queue.topic, queue.queue_id):
            _, at, place, size, code, _, _ = row_of(record, queue, delays_ms)
            if offset <= at < stop:
                found[at] = place, size, code
            # After a record of this topic, there are none of a deleted topic of the same name.
            if is_bounded and at >= stop - 1:
                break
    return found


def _is_entry_right(
    segments: Segments, queue: ConsumeQueue, offset: int, place: int, size: int
) -> bool:
    """Return whether the log has an entry's record, read from its file; for a thread."""
    if not (FIXED_BYTES <= size <= MAX_RECORD_BYTES and size != HOLE_SIZE and place >= 0):
        return False
    raw = log_bytes(segments, place, size)
    return raw is not None and _is_record(queue, offset, place, size, raw)
