"""Filtering records as they are stored, without decoding them.

Only lengths are read until the properties are reached; what matches is given as slices.
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
    """The records that match, joined where they touch."""

    chunks: list[memoryview]
    count: int
    size_bytes: int
    #: Of the properties of all records that were looked at.
    looked_bytes: int = 0


def matching(
    chunks: Iterable[memoryview], matches: Callable[[Sequence[Buffer]], Sequence[bool]]
) -> Matches:
    """Keep the records of ``chunks`` (each of whole records) that match: ``matches`` gets the
    property bytes of all of them and says it of each."""
    places = [(chunk, at, size) for chunk in chunks for at, size in iter_sizes(chunk)]
    properties = [properties_of(chunk, at, size) for chunk, at, size in places]
    verdicts = matches(properties)
    kept: list[memoryview] = []
    size_bytes = 0
    last: memoryview | None = None
    first = stop = 0
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
