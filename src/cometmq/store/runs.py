"""What a turn hands to dispatch: rows of single messages, batches by the column, write batches.

A segment is one of them; segments stand in the order of the log.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice, repeat
from typing import TYPE_CHECKING, TypeAlias

from cometmq.speedups import WriteBatch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence, Set

    from cometmq.store.batching import Batch
    from cometmq.store.consumequeue import ConsumeQueue
    from cometmq.store.dispatch import Dispatched


@dataclass(frozen=True, slots=True)
class Run:
    """Records with consecutive offsets in one queue, the first at ``first_offset``.

    ``places`` are physical offsets, in order. ``keys`` are what the records are found by,
    ``key_counts`` how many keys each has; with None each has one.
    """

    queue: ConsumeQueue
    first_offset: int
    places: list[int]
    sizes: Sequence[int]
    codes: Sequence[int]
    store_ms: int
    keys: Sequence[str]
    key_counts: Sequence[int] | None

    def __len__(self) -> int:
        return len(self.places)

    def rows(self) -> Iterator[Dispatched]:
        """The records one by one."""
        first, rest = self.first_offset, iter(self.keys)
        counts = self.key_counts or repeat(1, len(self))
        return zip(
            repeat(self.queue), range(first, first + len(self)), self.places, self.sizes,
            self.codes, repeat(self.store_ms), [tuple(islice(rest, count)) for count in counts],
            strict=False,
        )  # fmt: skip


Segment: TypeAlias = "Sequence[Dispatched] | Run | WriteBatch"


def run_of(
    queue: ConsumeQueue, first_offset: int, places: list[int], batch: Batch, now_ms: int
) -> Run:
    """The run that a packed batch is."""
    codes: Sequence[int] = batch.codes
    if queue.delay_ms:
        codes = [now_ms + queue.delay_ms] * len(codes)
    return Run(
        queue, first_offset, places, batch.sizes, codes, now_ms, batch.keys, batch.key_counts
    )


def end_of(segment: Segment) -> int:
    """The physical offset behind the last record."""
    if isinstance(segment, WriteBatch):
        return segment.end
    if isinstance(segment, Run):
        return segment.places[-1] + segment.sizes[-1]
    _, _, phys, size, _, _, _ = segment[-1]
    return phys + size


def parts_of(segment: Segment, rows_max: int) -> Iterator[Segment]:
    """The segment in parts of at most ``rows_max`` rows; a run is as long as whoever made it, and
    a write batch is dispatched at once."""
    if isinstance(segment, Run | WriteBatch) or len(segment) <= rows_max:
        yield segment
        return
    for first in range(0, len(segment), rows_max):
        yield segment[first : first + rows_max]


def without_queues(segment: Segment, gone: Set[ConsumeQueue]) -> Segment:
    """The segment without what belongs to queues that go away; it may be left empty."""
    if isinstance(segment, WriteBatch):
        segment.drop(gone)
        return segment
    if isinstance(segment, Run):
        return [] if segment.queue in gone else segment
    return [row for row in segment if row[0] not in gone]


def take_back(segment: Segment) -> None:
    """Let queue offsets be given again: nothing was stored of this segment and later ones."""
    if isinstance(segment, WriteBatch):
        segment.take_back()
        return
    if isinstance(segment, Run):
        segment.queue.next_offset = segment.first_offset
        return
    for queue, queue_offset, _, _, _, _, _ in reversed(segment):
        if queue_offset >= 0:
            queue.next_offset = queue_offset
