"""Filtered reads: a queue for a consumer that selects messages by an expression.

A plain read (reader.py) examines as many messages as it returns. This one examines many that are in
memory near the end of the log, and gathers those that match. It leaves all other data to a plain
read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from cometmq.filter.sql92 import Budget
from cometmq.speedups import match_records, take_records
from cometmq.store.layout import QUEUE_ENTRY_BYTES
from cometmq.store.read.reader import MAX_SCANNED_ENTRIES, ReadResult, ReadStatus, empty
from cometmq.store.read.validation import proof_of

if TYPE_CHECKING:
    from cometmq.speedups import Program
    from cometmq.store.queue.consumequeue import ConsumeQueue
    from cometmq.store.read.coldreads import ColdReads
    from cometmq.store.read.reader import Query, ReadLimits

#: Number of queue entries read in one step; it is enough for most responses.
_STEP_ENTRIES: Final = 256
_NO_BOUND: Final = 1 << 62


class Matcher(Protocol):
    """The filter of a consumer."""

    @property
    def weight(self) -> int:
        """Number of its parts that are evaluated for each message (filter/sql92.py)."""
        ...

    @property
    def program(self) -> Program:
        """The compiled filter, which runs on the properties of messages."""
        ...


class _Step(NamedTuple):
    """Number of examined messages, size of their properties, and the matching records."""

    looked_at: int
    properties_bytes: int
    matches: int
    size_bytes: int
    records: memoryview


def read_matching_at_once(
    query: Query, reads: ColdReads, limits: ReadLimits, wanted: Matcher
) -> ReadResult | None:
    """Return matching messages from ``offset`` on: at most ``max_count`` and ``max_bytes``.

    At least one is returned if one is found. At most MAX_SCANNED_ENTRIES are examined, fewer if
    they are costly (filter/sql92.py). Returns None if the first message is not in memory or its
    entry is wrong; then call :func:`reader.read`.
    """
    queue, start = query.queue, query.offset
    low, high = queue.min_offset, queue.max_offset
    if not low <= start < high:
        return None
    max_count = min(query.max_count, limits.hot_max_count)
    max_bytes = min(query.max_bytes, limits.hot_max_bytes)
    budget = Budget(wanted.weight)
    at, stop = start, min(high, start + MAX_SCANNED_ENTRIES)
    chunks: list[memoryview] = []
    count = size_bytes = 0
    while at < stop and count < max_count and not budget.is_spent:
        most = max_count - count, max_bytes - size_bytes
        found = _look(queue, at, min(stop - at, _STEP_ENTRIES), reads, wanted, most, budget)
        # The first match is always returned, whatever its size; a later one may exceed the limit.
        if found is None or (count and size_bytes + found.size_bytes > max_bytes):
            break
        at += found.looked_at
        budget.take(found.looked_at, found.properties_bytes)
        if found.matches:
            chunks.append(found.records)
            count += found.matches
            size_bytes += found.size_bytes
    if at == start:
        return None
    if not count:
        return empty(ReadStatus.NO_MATCHED_MESSAGE, at, low, high)
    return ReadResult(ReadStatus.FOUND, at, low, high, chunks, count, size_bytes, False, [])


def _look(
    queue: ConsumeQueue,
    offset: int,
    entry_count: int,
    reads: ColdReads,
    wanted: Matcher,
    most: tuple[int, int],
    budget: Budget,
) -> _Step | None:
    """Examine messages of one log file; None if the first is not in memory."""
    entries = queue.read_at_once(offset, entry_count)
    if not entries:
        return None
    first = int.from_bytes(entries[:8], "big")
    file = reads.log.segments.find(first)
    if file is None or reads.is_far(first):
        return None
    view, base, end = file.view, file.base, min(file.end, reads.log.written)
    looked_at, properties_bytes, chosen = match_records(
        wanted.program,
        entries,
        offset,
        most,
        (budget.count, budget.size_bytes),
        (view, base, base, end, reads.recent_from),
        None if offset >= queue.tail_offset else proof_of(queue),
        lambda start, stop: reads.mapped(file, start, stop) is not None,
    )
    if not looked_at:
        return None
    every = len(chosen) // QUEUE_ENTRY_BYTES, _NO_BOUND
    # These bytes are in memory and checked: the filter has read them.
    taken = take_records(
        chosen, offset, None, every, (view, base, base, end, base), None, lambda _, __: True
    )
    if taken is None:
        return None
    _, count, size_bytes, records = taken
    return _Step(looked_at, properties_bytes, count, size_bytes, records)
