"""Many records of the log at once, from places all over it: those in memory as they are, the others
with one visit of a thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cometmq.core.errors import StoreCorrupt
from cometmq.store.loading import damaged, load_ranges
from cometmq.store.resident import bytes_at_once

if TYPE_CHECKING:
    from cometmq.store.commitlog import CommitLog

#: Bytes, damage, or None for what the log no longer has.
Found = memoryview | StoreCorrupt | None


async def gather(log: CommitLog, ranges: Sequence[tuple[int, int]]) -> list[Found]:
    """The bytes of ranges (physical offset, size), in their order."""
    found: list[Found] = [None] * len(ranges)
    cold: list[tuple[int, int, int]] = []
    for number, (start, size) in enumerate(ranges):
        file = log.segments.find(start)
        if file is None or start + size > file.end:
            continue
        view = found[number] = bytes_at_once(log, file, start, start + size)
        if view is None:
            cold.append((start, size, number))
    while cold:
        # In the order of the log, so that neighbours are read together.
        cold.sort()
        pieces = await load_ranges(log, [(start, size) for start, size, _ in cold])
        for (_, _, number), piece in zip(cold, pieces, strict=False):
            found[number] = piece.view if piece.damage < 0 else damaged(piece)
        # One whose file went meanwhile ended the pieces.
        cold = cold[len(pieces) + 1 :]
    return found
