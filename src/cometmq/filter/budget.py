"""How much one read may look at by an expression: it runs on the event loop, and others wait.

A filter of a few comparisons looks at as many small messages as a read does anyway. The more parts
it has, and the longer the properties are, the fewer messages: then the read ends where it got to,
and whoever reads goes on there.
"""

from __future__ import annotations

from typing import Final

#: Parts of an expression times messages; in plain Python each takes up to half a microsecond.
MAX_COMPARISONS: Final = 20_000
#: Of properties.
MAX_BYTES: Final = 262_144
#: Parts of an expression times bytes of properties, in which each of them may search.
MAX_SEARCHED_BYTES: Final = 2 << 20


class Budget:
    """What is left for one read by an expression of so many parts: ``count`` messages with
    ``size_bytes`` of properties. One message may always be looked at."""

    __slots__ = ("count", "size_bytes")

    def __init__(self, weight: int) -> None:
        self.count = max(MAX_COMPARISONS // weight, 1)
        self.size_bytes = min(MAX_BYTES, MAX_SEARCHED_BYTES // weight)

    @property
    def is_spent(self) -> bool:
        """Whether nothing more is to be looked at."""
        return self.count <= 0 or self.size_bytes <= 0

    def take(self, count: int, size_bytes: int) -> None:
        """Count messages that were looked at, and the bytes of their properties."""
        self.count -= count
        self.size_bytes -= size_bytes
