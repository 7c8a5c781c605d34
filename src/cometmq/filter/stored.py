"""Filters stored records without decoding them.

Only lengths are read to find the properties; matching records are returned as slices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING

from cometmq.message.record import iter_sizes, properties_of

if TYPE_CHECKING:
    from cometmq.message.record import Buffer


@dataclass(frozen=True, slots=True)
class Matches:
    """Matching records; adjacent ones are joined into one chunk."""

    chunks: list[memoryview]
    count: int
    size_bytes: int
    #: Bytes of the properties of all records that were evaluated.
    looked_bytes: int = 0


def matching(
    chunks: Iterable[memoryview], matches: Callable[[Sequence[Buffer]], Sequence[bool]]
) -> Matches:
    """Return the matching records of ``chunks``, each of which holds whole records.

    ``matches`` receives the property bytes of all records and returns a result for each.
    """
    places = [(chunk, at, size) for chunk in chunks for at, size in iter_sizes(chunk)]
    properties = [properties_of(chunk, at, size) for chunk, at, size in places]
    verdicts = matches(properties)
    kept: list[memoryview] = []
    size_bytes = 0
    last: memoryview | None = None
    first = stop = 0
    # Join matches that are adjacent in a chunk, so that there are fewer slices to send.
    for chunk, at, size in compress(places, verdicts):
        size_bytes += size
        if chunk is not last or at != stop:
            if last is not None:
                kept.append(last[first:stop])
            last, first = chunk, at
        stop = at + size
    if last is not None:
        kept.append(last[first:stop])
    return Matches(kept, sum(verdicts), size_bytes, sum(map(len, properties)))
