"""What a turn hands to dispatch: rows of single messages, and write batches.

A segment is one of them; segments stand in the order of the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from cometmq.speedups import WriteBatch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence, Set

    from cometmq.store.consumequeue import ConsumeQueue
    from cometmq.store.dispatch import Dispatched


Segment: TypeAlias = "Sequence[Dispatched] | WriteBatch"


def end_of(segment: Segment) -> int:
    """The physical offset behind the last record."""
    if isinstance(segment, WriteBatch):
        return segment.end
    _, _, phys, size, _, _, _ = segment[-1]
    return phys + size


def parts_of(segment: Segment, rows_max: int) -> Iterator[Segment]:
    """The segment in parts of at most ``rows_max`` rows; a write batch is dispatched at once."""
    if isinstance(segment, WriteBatch) or len(segment) <= rows_max:
        yield segment
        return
    for first in range(0, len(segment), rows_max):
        yield segment[first : first + rows_max]


def without_queues(segment: Segment, gone: Set[ConsumeQueue]) -> Segment:
    """The segment without what belongs to queues that go away; it may be left empty."""
    if isinstance(segment, WriteBatch):
        segment.drop(gone)
        return segment
    return [row for row in segment if row[0] not in gone]


def take_back(segment: Segment) -> None:
    """Let queue offsets be given again: nothing was stored of this segment and later ones."""
    if isinstance(segment, WriteBatch):
        segment.take_back()
        return
    for queue, queue_offset, _, _, _, _, _ in reversed(segment):
        if queue_offset >= 0:
            queue.next_offset = queue_offset
