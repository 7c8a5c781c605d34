"""Queue entries against the records that they point to: what is served is proven.

A record names its size, its queue, its offset there, its place in the log and its topic. An entry
that says anything else is wrong: a bit of the queue file has changed. It is made again from the
log, between the records of the entries beside it. Entries that were dispatched since the start and
are still in memory need no proof.

The log is right, or damage.py and seals.py say so: nothing here judges it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from cometmq.core.errors import StoreCorrupt
from cometmq.message.record import FIXED_BYTES
from cometmq.speedups import is_record
from cometmq.store.layout import HOLE_SIZE, QUEUE_ENTRY
from cometmq.store.log.scan import Scan, log_bytes
from cometmq.store.write.dispatch import row_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cometmq.message.record import Buffer, Record
    from cometmq.store.log.commitlog import CommitLog
    from cometmq.store.log.segments import Segments
    from cometmq.store.queue.consumequeue import ConsumeQueue

logger = logging.getLogger(__name__)

#: Larger than any record that a broker takes: a size over it is wrong.
MAX_RECORD_BYTES: Final = 64 * 1024 * 1024
#: How many entries on either side are asked where a record must lie between.
_NEIGHBOURS: Final = 64
#: Light queues point to records of other queues, which name them in a property.
_LIGHT_PREFIX: Final = "%LMQ%"


def proof_of(queue: ConsumeQueue) -> tuple[int, bytes] | None:
    """What the records of a queue say of it: its id, and what follows their bodies. None for a
    light queue, whose records are of others."""
    return None if queue.topic.startswith(_LIGHT_PREFIX) else (queue.queue_id, queue.topic_tail)


def count_proven(
    queue: ConsumeQueue,
    offsets: Sequence[int],
    places: Sequence[int],
    sizes: Sequence[int],
    chunks: Sequence[memoryview],
) -> int:
    """How many records are what their entries say, before the first that is not.

    ``offsets``, ``places`` and ``sizes`` are those of the entries, in order; ``chunks`` hold the
    bytes of whole records, side by side or not.
    """
    proof = proof_of(queue)
    if proof is None:
        return len(sizes)
    entries = zip(offsets, places, sizes, strict=False)  # a part of the sizes ends it
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
    """Makes wrong entries again, one at a time."""

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
        """Whether entries (place, size) from the offset ``first`` on are right, by what was
        ``found`` at their places. If not, they are made right as far as the log has their records,
        and are to be read again. Holes and damage are passed over."""
        is_right = True
        for offset, ((place, size), data) in enumerate(zip(entries, found, strict=True), first):
            if size in (0, HOLE_SIZE) or isinstance(data, StoreCorrupt):
                continue
            if data is not None and _is_record(queue, offset, place, size, data):
                continue
            try:
                right = await self.repair(queue, offset)
            except StoreCorrupt:
                continue  # logged there; the caller finds that its record is not what it wants
            if right is not None and right != (place, size):
                is_right = False
        return is_right

    async def repair(self, queue: ConsumeQueue, offset: int) -> tuple[int, int] | None:
        """Make the entry at ``offset`` right, unless it is by now. Gives the place and the size of
        its record; None when that was removed with the beginning of the log.

        Raises StoreCorrupt when the log between the records beside it does not hold its record.
        """
        async with self._lock:
            if not queue.min_offset <= offset < queue.max_offset:
                return None
            loop = asyncio.get_running_loop()
            start = max(queue.min_offset, offset - _NEIGHBOURS)
            entries = _entries(queue, start, offset + 1 + _NEIGHBOURS)
            segments, end = self._log.segments, self._log.written
            wrong = entries.get(offset, (-1, -1, 0))
            found = await loop.run_in_executor(None, _find, segments, queue, offset, entries, end)
            if found is None and 0 <= wrong[0] < segments.start:
                return None
            if found is None:
                logger.error(
                    "queue_entry_lost topic=%s queue=%d offset=%d place=%d size=%d",
                    queue.topic, queue.queue_id, offset, wrong[0], wrong[1],
                )  # fmt: skip
                raise StoreCorrupt(
                    queue.directory,
                    -1,
                    f"entry {offset} of queue {queue.topic}/{queue.queue_id} points to place "
                    f"{wrong[0]}, where its record is not, and the log has no other for it",
                )
            _, _, place, size, code, _, _ = row_of(found, queue, self._delays_ms)
            if wrong[:2] == (place, size):
                return place, size
            queue.replace(offset, QUEUE_ENTRY.pack(place, size, code))
            logger.warning(
                "queue_entry_repaired topic=%s queue=%d offset=%d place=%d was=%d size=%d "
                "was_size=%d", queue.topic, queue.queue_id, offset, place, wrong[0], size, wrong[1],
            )  # fmt: skip
            return place, size


def _entries(queue: ConsumeQueue, start: int, stop: int) -> dict[int, tuple[int, int, int]]:
    """Entries by offset; those of a file without such an entry are left out."""
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


def _find(
    segments: Segments,
    queue: ConsumeQueue,
    offset: int,
    entries: dict[int, tuple[int, int, int]],
    end: int,
) -> Record | None:
    """The record of a queue offset, looked for between those of the entries beside it."""
    low, high = segments.start, end
    for near in range(offset, min(entries, default=offset) - 1, -1):
        place, size, _ = entries.get(near, (-1, -1, 0))
        if _is_entry_right(segments, queue, near, place, size):
            low = place if near == offset else place + size
            break
    for near in range(offset + 1, max(entries, default=offset) + 1):
        place, size, _ = entries.get(near, (-1, -1, 0))
        if _is_entry_right(segments, queue, near, place, size):
            high = place
            break
    wanted = (queue.topic, queue.queue_id, offset)
    for record in Scan(segments, low, high):
        if (record.topic, record.queue_id, record.queue_offset) == wanted:
            return record
    return None


def _is_entry_right(
    segments: Segments, queue: ConsumeQueue, offset: int, place: int, size: int
) -> bool:
    """Whether the log has the record that an entry says, read from its file; for a thread."""
    if not (FIXED_BYTES <= size <= MAX_RECORD_BYTES and size != HOLE_SIZE and place >= 0):
        return False
    raw = log_bytes(segments, place, size)
    return raw is not None and _is_record(queue, offset, place, size, raw)
