"""Files of one consume queue in a store directory: its bounds, its entries, and a search for
offsets."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from cometmq.spark.store.directory import opened, read_at
from cometmq.store.layout import (
    HOLE_SIZE,
    QUEUE_ENTRY,
    QUEUE_ENTRY_BYTES,
    QUEUE_ENTRY_COLUMNS,
    file_offset,
)

if TYPE_CHECKING:
    from io import FileIO

ENTRY: Final = np.dtype(QUEUE_ENTRY_COLUMNS)
"""A queue entry as a numpy type, see store/layout.py."""

Entries = npt.NDArray[np.void]


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a queue."""

    physical: int
    size_bytes: int
    tag_code: int

    @property
    def is_record(self) -> bool:
        """True if the entry refers to a record."""
        return 0 < self.size_bytes < HOLE_SIZE


class QueueFiles:
    """The files of a queue, as listed at creation. A queue without files is empty."""

    def __init__(self, root: str, topic: str, queue_id: int) -> None:
        self._folder = os.path.join(root, "consumequeue", topic, str(queue_id))
        self._files: list[tuple[int, str, int]] = []
        try:
            names = sorted(os.listdir(self._folder))
        except (FileNotFoundError, NotADirectoryError):
            names = []
        for name in names:
            base = file_offset(name)
            if base is not None:
                path = os.path.join(self._folder, name)
                try:
                    count = os.stat(path).st_size // QUEUE_ENTRY_BYTES
                except FileNotFoundError:
                    continue
                self._files.append((base // QUEUE_ENTRY_BYTES, path, count))

    @property
    def exists(self) -> bool:
        """True if the queue has any file."""
        return bool(self._files)

    def stop(self) -> int:
        """Return the offset after the last entry."""
        for first, path, count in reversed(self._files):
            with opened(path) as handle:
                low, high = 0, count
                while low < high:
                    middle = (low + high) // 2
                    if _entry(handle, middle).size_bytes > 0:
                        low = middle + 1
                    else:
                        high = middle
            if low:
                return first + low
        return self._files[0][0] if self._files else 0

    def start(self, physical_min: int, stop: int) -> int:
        """Return the first offset whose record is at ``physical_min`` or later; ``stop`` if there
        is none."""
        low = min(self._files[0][0], stop) if self._files else stop
        high = stop
        while low < high:
            middle = (low + high) // 2
            found = self.entry(middle)
            if found.is_record and found.physical >= physical_min:
                high = middle
            else:
                low = middle + 1
        return low

    def entry(self, offset: int) -> Entry:
        """Return one entry, or an empty one if there is none. Raises OSError."""
        for first, path, count in self._files:
            if first <= offset < first + count:
                with opened(path) as handle:
                    return _entry(handle, offset - first)
        return Entry(0, 0, 0)

    def entries(self, start: int, stop: int) -> Entries:
        """Return the entries of a range, with zeros for missing ones. Raises OSError."""
        found: Entries = np.zeros(stop - start, ENTRY)
        for first, path, count in self._files:
            low, high = max(start, first), min(stop, first + count)
            if low < high:
                with opened(path) as handle:
                    size = (high - low) * QUEUE_ENTRY_BYTES
                    raw = read_at(handle, size, (low - first) * QUEUE_ENTRY_BYTES)
                whole = np.frombuffer(raw, ENTRY, len(raw) // QUEUE_ENTRY_BYTES)
                found[low - start : low - start + len(whole)] = whole
        return found


def _entry(handle: FileIO, number: int) -> Entry:
    raw = read_at(handle, QUEUE_ENTRY_BYTES, number * QUEUE_ENTRY_BYTES)
    return Entry(*QUEUE_ENTRY.unpack(raw.ljust(QUEUE_ENTRY_BYTES, b"\0")))
