"""Waiting messages of the near future, by the tick in which they are delivered. No I/O.

A tick collects all messages due up to its end, so none is early, and none is late by more than a
tick. Within a tick messages keep the order in which they were added.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Final

from cometmq.store.timerfiles import ROW_BYTES

TICK_MS: Final = 25


def tick_of(due_ms: int) -> int:
    """Return the tick in which a message due at ``due_ms`` is delivered."""
    return -(-due_ms // TICK_MS)


class Wheel:
    """Rows (store/timerfiles.py) by tick; ``count`` is their number."""

    __slots__ = ("_heap", "_ticks", "count")

    def __init__(self) -> None:
        self._ticks: dict[int, bytearray] = {}
        self._heap: list[int] = []
        self.count = 0

    def put(self, tick: int, row: bytes) -> None:
        """Add a row to a tick."""
        rows = self._ticks.get(tick)
        if rows is None:
            rows = self._ticks[tick] = bytearray()
            heappush(self._heap, tick)
        rows += row
        self.count += 1

    def next_tick(self) -> int | None:
        """Return the first tick that has rows, or None."""
        return self._heap[0] if self._heap else None

    def take(self) -> bytes:
        """Remove the first tick, and return its rows."""
        rows = bytes(self._ticks.pop(heappop(self._heap)))
        self.count -= len(rows) // ROW_BYTES
        return rows
