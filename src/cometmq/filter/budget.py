"""Limits the work of an expression in one read, because it blocks the event loop.

With a filter of a few comparisons, a read evaluates as many small messages as without limits. The
more parts the filter has, and the longer the properties are, the fewer messages a read evaluates.
It then ends early, and the reader continues at the next offset.
"""

from __future__ import annotations

from typing import Final

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
