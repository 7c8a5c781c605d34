"""Which ids were stored lately, and where: 64-bit hashes to places in the log, in little memory.

A hash only says where to look. Two ids may share one, so whoever asks compares with what the log
holds there. Pure; times are milliseconds of the wall clock.

Ids are put into tables of a fixed size, and leave with their table: once the youngest of it is
older than the window, or earlier when there are too many. A cell has 8 bytes: 24 bits of the hash,
and the place, counted from where the table's log begins. A table is full when half of its cells
are: 16 bytes an id. Tables grow with the rate, so that a window has about five.
"""

from __future__ import annotations

import logging
from array import array
from collections import deque
from typing import Final

log = logging.getLogger(__name__)

#: The largest is made in 3 ms, in one go.
MIN_CELLS: Final = 1 << 12
MAX_CELLS: Final = 1 << 20
TABLES_A_WINDOW: Final = 4
_GROWTH: Final = 4
_PLACE_BITS: Final = 40
_PLACE_MASK: Final = (1 << _PLACE_BITS) - 1
#: Places may go back a little: those of a turn that failed are given again.
_BACK_BYTES: Final = 1 << 34


class IdTable:
    """Open addressing. Nothing is taken out, so an empty cell ends every search."""

    __slots__ = ("base", "cells", "count", "mask", "newest_ms", "opened_ms", "room")

    def __init__(self, cells: int, first_place: int, opened_ms: int) -> None:
        self.cells = array("Q", bytes(8 * cells))
        self.mask = cells - 1
        #: A cell holds its place less this, at least 1.
        self.base = max(first_place - _BACK_BYTES, 0) - 1
        self.room = cells // 2
        self.count = 0
        self.opened_ms = self.newest_ms = opened_ms

    def takes(self, place: int) -> bool:
        """Whether one more fits, with this place."""
        return self.count < self.room and 0 < place - self.base <= _PLACE_MASK

    def add(self, digest: int, place: int) -> None:
        """Remember one more, which fits."""
        cells, mask = self.cells, self.mask
        at = digest & mask
        while cells[at]:
            at = (at + 1) & mask
        cells[at] = (digest >> _PLACE_BITS) << _PLACE_BITS | place - self.base
        self.count += 1


class IdWindow:
    """The ids of the last ``window_ms``, at most ``ids_max`` of them. Hashes have 64 bits."""

    def __init__(self, window_ms: int, ids_max: int) -> None:
        self.window_ms = window_ms
        self.ids_max = ids_max
        self.left_early = 0
        self._cells_max = MIN_CELLS
        while self._cells_max < MAX_CELLS and self._cells_max * 4 <= ids_max:
            self._cells_max *= 2
        self._tables: deque[IdTable] = deque()

    def __len__(self) -> int:
        return sum(table.count for table in self._tables)

    @property
    def size_bytes(self) -> int:
        """Memory of the tables."""
        return sum(8 * len(table.cells) for table in self._tables)

    def find(self, digest: int) -> list[int]:
        """Places where the id with this hash may be stored, those of the youngest first."""
        found: list[int] = []
        mark = digest >> _PLACE_BITS
        for table in self._tables:
            cells, mask = table.cells, table.mask
            at = digest & mask
            while cell := cells[at]:
                if cell >> _PLACE_BITS == mark:
                    found.append((cell & _PLACE_MASK) + table.base)
                at = (at + 1) & mask
        return found

    def add(self, digest: int, place: int, now_ms: int) -> None:
        """Remember where an id was stored; the times of calls do not descend by much."""
        tables = self._tables
        if (
            not tables
            or not tables[0].takes(place)
            or now_ms - tables[0].opened_ms > self.window_ms // TABLES_A_WINDOW
        ):
            self._open(place, now_ms)
        table = tables[0]
        table.add(digest, place)
        if now_ms > table.newest_ms:
            table.newest_ms = now_ms

    def expire(self, now_ms: int) -> None:
        """Forget tables of which every id is older than the window."""
        tables = self._tables
        while tables and tables[-1].newest_ms < now_ms - self.window_ms:
            tables.pop()

    def clear(self) -> None:
        """Forget all."""
        self._tables.clear()

    def _open(self, first_place: int, now_ms: int) -> None:
        self.expire(now_ms)
        cells = MIN_CELLS
        if self._tables:
            last = self._tables[0]
            cells = len(last.cells)
            if now_ms - last.opened_ms <= self.window_ms // TABLES_A_WINDOW:
                cells *= _GROWTH  # it was full too soon
            elif last.count < last.room // _GROWTH:
                cells //= 2
        cells = min(max(cells, MIN_CELLS), self._cells_max)
        table = IdTable(cells, first_place, now_ms)
        while self._tables and len(self) + table.room > max(self.ids_max, table.room):
            oldest = self._tables.pop()
            self.left_early += oldest.count
            log.warning(
                "repeated_ids_left_early ids=%d age_ms=%d window_ms=%d ids_max=%d",
                oldest.count, now_ms - oldest.newest_ms, self.window_ms, self.ids_max,
            )  # fmt: skip
        self._tables.appendleft(table)
