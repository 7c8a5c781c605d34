"""Recently stored ids and their places: 64-bit hashes to log offsets, in little memory. No I/O;
times are wall-clock milliseconds.

A hash is only a hint: two ids may share one, so callers compare with the record in the log.

Ids are put into tables of a fixed size, and are removed with their table: once the table's youngest
id is older than the window, or earlier if there are too many ids. A cell has 8 bytes: 24 bits of
the hash, and the offset relative to the table's base. A table is full when half of its cells are
used, so an id takes 16 bytes. Tables grow with the send rate, so that a window has about five.
"""

from __future__ import annotations

import logging
from array import array
from collections import deque
from typing import Final

log = logging.getLogger(__name__)

#: Cells of a table; the largest is allocated in 3 ms, in one piece.
MIN_CELLS: Final = 1 << 12
MAX_CELLS: Final = 1 << 20
TABLES_A_WINDOW: Final = 4
_GROWTH: Final = 4
_PLACE_BITS: Final = 40
_PLACE_MASK: Final = (1 << _PLACE_BITS) - 1
#: Distance by which places may decrease: the offsets of a failed turn are assigned again.
_BACK_BYTES: Final = 1 << 34


class IdTable:
    """Hash table with open addressing. Cells are never removed, so an empty cell ends every
    search."""

    __slots__ = ("base", "cells", "count", "mask", "newest_ms", "opened_ms", "room")

    def __init__(self, cells: int, first_place: int, opened_ms: int) -> None:
        self.cells = array("Q", bytes(8 * cells))
        self.mask = cells - 1
        #: Subtracted from the place in a cell; the difference is at least 1.
        self.base = max(first_place - _BACK_BYTES, 0) - 1
        self.room = cells // 2
        self.count = 0
        self.opened_ms = self.newest_ms = opened_ms

    def takes(self, place: int) -> bool:
        """Decide whether one more id with this place fits."""
        return self.count < self.room and 0 < place - self.base <= _PLACE_MASK

    def add(self, digest: int, place: int) -> None:
        """Add an id that fits."""
        cells, mask = self.cells, self.mask
        at = digest & mask
        while cells[at]:
            at = (at + 1) & mask
        # The upper 24 bits of the hash and the place share a cell, so that it is one machine word.
        cells[at] = (digest >> _PLACE_BITS) << _PLACE_BITS | place - self.base
        self.count += 1


class IdWindow:
    """Ids of the last ``window_ms``, at most ``ids_max`` of them. Hashes have 64 bits."""

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
        """Memory of the tables, in bytes."""
        return sum(8 * len(table.cells) for table in self._tables)

    def find(self, digest: int) -> list[int]:
        """Return the places where the id with this hash may be stored, youngest table first."""
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
        """Add the place of an id; the times of calls may decrease only a little."""
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
        """Remove tables whose ids are all older than the window."""
        tables = self._tables
        while tables and tables[-1].newest_ms < now_ms - self.window_ms:
            tables.pop()

    def clear(self) -> None:
        """Remove all ids."""
        self._tables.clear()

    def _open(self, first_place: int, now_ms: int) -> None:
        self.expire(now_ms)
        cells = MIN_CELLS
        if self._tables:
            last = self._tables[0]
            cells = len(last.cells)
            if now_ms - last.opened_ms <= self.window_ms // TABLES_A_WINDOW:
                cells *= _GROWTH  # it became full too early
            elif last.count < last.room // _GROWTH:
                cells //= 2
        cells = min(max(cells, MIN_CELLS), self._cells_max)
        table = IdTable(cells, first_place, now_ms)
        while self._tables and len(self) + table.room > max(self.ids_max, table.room):
            oldest = self._tables.pop()
            self.left_early += oldest.count
            log.warning(
                "repeated_ids_evicted_early ids=%d age_ms=%d window_ms=%d ids_max=%d",
                oldest.count, now_ms - oldest.newest_ms, self.window_ms, self.ids_max,
            )  # fmt: skip
        self._tables.appendleft(table)
