"""How much one read may look at by an expression: it runs on the event loop, and others wait.

A filter of a few comparisons looks at as many small messages as a read does anyway. The more parts
it has, and the longer the properties are, the fewer messages: then the read ends where it got to,
and whoever reads goes on there.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Final

#: Parts of an expression times messages; each takes up to half a microsecond.
MAX_COMPARISONS: Final = 20_000
#: Of properties.
MAX_BYTES: Final = 131_072
#: Parts of an expression times bytes of properties, in which each of them may search.
MAX_SEARCHED_BYTES: Final = 2 << 20
#: Properties of messages that are no larger are not counted: a read looks at too few messages.
SMALL_MESSAGE_BYTES: Final = 512


class Budget:
    """What is left for one read by an expression of so many parts: ``count`` messages with
    ``size_bytes`` of properties."""

    __slots__ = ("_is_exact", "count", "size_bytes")

    def __init__(self, weight: int) -> None:
        self.count = max(MAX_COMPARISONS // weight, 1)
        self.size_bytes = min(MAX_BYTES, MAX_SEARCHED_BYTES // weight)
        self._is_exact = self.size_bytes < MAX_BYTES

    @property
    def is_spent(self) -> bool:
        """Whether nothing more is to be looked at."""
        return self.count <= 0 or self.size_bytes <= 0

    def take(self, texts: Sequence[str], record_bytes: int | None = None) -> int:
        """Count the first of these property texts, as many as are left and one at the least; gives
        how many. ``record_bytes`` is the size of their records, if that is known."""
        count = min(max(self.count, 1), len(texts))
        is_small = record_bytes is not None and record_bytes <= SMALL_MESSAGE_BYTES * len(texts)
        if self._is_exact or not is_small:
            count = self._fitting(texts[:count])
        self.count -= count
        return count

    def _fitting(self, texts: Sequence[str]) -> int:
        size_bytes = sum(map(len, texts))
        count = len(texts)
        if size_bytes > self.size_bytes:
            ends = [*accumulate(map(len, texts))]
            count = max(sum(end <= self.size_bytes for end in ends), 1)
            size_bytes = ends[count - 1] if count == len(texts) else self.size_bytes
        self.size_bytes -= size_bytes
        return count
