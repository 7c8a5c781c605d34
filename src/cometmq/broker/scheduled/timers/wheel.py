"""Waiting messages of the near future, by the tick in which they are delivered. No I/O.

A tick gathers what is due up to its end, so nothing is early, and late by a tick at most; within a
tick messages keep the order in which they came.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Final

from cometmq.store.timerfiles import ROW_BYTES

TICK_MS: Final = 25


def tick_of(due_ms: int) -> int:
    """The tick in which something due at ``due_ms`` is delivered."""
    return -(-due_ms // TICK_MS)


class Wheel:
    """Rows (store/timerfiles.py) by tick; ``count`` of them."""

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
        """The first tick that has rows."""
        return self._heap[0] if self._heap else None

    def take(self) -> bytes:
        """The rows of the first tick, which it has no longer."""
        rows = bytes(self._ticks.pop(heappop(self._heap)))
        self.count -= len(rows) // ROW_BYTES
        return rows
