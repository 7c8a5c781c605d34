"""Filters stored records without decoding them, and limits the work of that in one read, because it
blocks the event loop.

Only lengths are read to find the properties; matching records are returned as slices.

With a filter of a few comparisons, a read evaluates as many small messages as without limits. The
more parts the filter has, and the longer the properties are, the fewer messages a read evaluates.
It then ends early, and the reader continues at the next offset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, Final

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


#: Parts of an expression times messages; in plain Python each takes up to half a microsecond.
MAX_COMPARISONS: Final = 20_000
#: Total bytes of properties.
MAX_BYTES: Final = 262_144
#: Parts of an expression times bytes of properties, because each part may search all of them.
MAX_SEARCHED_BYTES: Final = 2 << 20


class Budget:
    """Remaining work of one read with an expression of ``weight`` parts.

    ``count`` messages with ``size_bytes`` of properties are left. At least one message may always
    be evaluated.
    """

    __slots__ = ("count", "size_bytes")

    def __init__(self, weight: int) -> None:
        self.count = max(MAX_COMPARISONS // weight, 1)
        self.size_bytes = min(MAX_BYTES, MAX_SEARCHED_BYTES // weight)

    @property
    def is_spent(self) -> bool:
        """True when no further message may be evaluated."""
        return self.count <= 0 or self.size_bytes <= 0

    def take(self, count: int, size_bytes: int) -> None:
        """Subtract evaluated messages and the bytes of their properties."""
        self.count -= count
        self.size_bytes -= size_bytes
