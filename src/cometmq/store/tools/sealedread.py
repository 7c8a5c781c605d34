"""Fast check of a sealed log file: every block against its seal, without decoding records.

Digests of index entries leave out only their times, which count from the first record of the index
file. So the store time of each indexed record is read from the bytes and compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from cometmq.message.flags import BORN_HOST_V6
from cometmq.message.record import (
    HOST_BITS_POSITION,
    LONGER_HOST_BYTES,
    STORE_MS_BYTES,
    STORE_MS_POSITION,
)
from cometmq.message.walk import Ints, numbers, window
from cometmq.store.log.checksums import BLOCK_BYTES, Seal, sums_of
from cometmq.store.tools.indexes import PIECE_ENTRIES, IndexFact, IndexRun, read_index

if TYPE_CHECKING:
    from cometmq.store.files import ReadOnlyFiles
    from cometmq.store.tools.directory import FileFact

_PIECE_BYTES = 64 * BLOCK_BYTES
_PART_BYTES = 8 * BLOCK_BYTES
#: Bytes of a piece that are kept for the next one.
_HEAD_BYTES = STORE_MS_BYTES
_SECONDS_MAX = 0x7FFF_FFFF
_NONE = np.empty(0, np.int64)


class KeyTimes:
    """The index entries of one log file, in order: the records' offsets and the recorded seconds.

    They are read in small batches.
    """

    def __init__(self, files: ReadOnlyFiles, facts: list[IndexFact], runs: list[IndexRun]) -> None:
        self._blocks = self._read(files, facts, runs)
        self._phys, self._seconds, self._begin_ms = self._next()
        self._last = -1
        self.is_ordered = True

    def _read(
        self, files: ReadOnlyFiles, facts: list[IndexFact], runs: list[IndexRun]
    ) -> Iterator[tuple[Ints, Ints, int]]:
        for run in runs:
            fact = facts[run.number]
            for at in range(0, run.length, PIECE_ENTRIES):
                length = min(PIECE_ENTRIES, run.length - at)
                found = read_index(files, fact, run.first + at, length)
                yield found.phys, found.seconds, fact.begin_ms

    def _next(self) -> tuple[Ints, Ints, int]:
        return next(self._blocks, (_NONE, _NONE, 0))

    def below(self, stop: int) -> Iterator[tuple[Ints, Ints, int]]:
        """Yield the remaining entries for records below a physical offset.

        Each item has the offsets, the seconds, and the time that the seconds count from.
        ``is_ordered`` becomes false if offsets decrease.
        """
        while len(self._phys):
            count = int(np.searchsorted(self._phys, stop))
            if not count:
                return
            phys = self._phys[:count]
            if phys[0] < self._last or (phys[1:] < phys[:-1]).any():
                self.is_ordered = False
                return
            self._last = int(phys[-1])
            yield phys, self._seconds[:count], self._begin_ms
            self._phys, self._seconds = self._phys[count:], self._seconds[count:]
            if not len(self._phys):
                self._phys, self._seconds, self._begin_ms = self._next()


class SealedRead:
    """Reads one sealed file and compares it with its seal."""

    def __init__(self, files: ReadOnlyFiles, file: FileFact, seal: Seal, times: KeyTimes) -> None:
        self._files = files
        self._file = file
        self._seal = seal
        self._times = times
        self._compared = 0

    def is_right(self, progress: Callable[[int], None]) -> bool:
        """Return whether every block matches its seal and every index entry its record's time.

        ``progress`` is called with the bytes read once that is certain. Raises OSError.
        """
        size = self._file.size_bytes
        buffer = bytearray(_HEAD_BYTES + _PIECE_BYTES)
        view = memoryview(buffer)
        handle = self._files.open(self._file.path)
        try:
            for offset in range(0, size, _PIECE_BYTES):
                count = min(_PIECE_BYTES, size - offset)
                if not self._is_sealed(handle, view[_HEAD_BYTES : _HEAD_BYTES + count], offset):
                    return False
                start = self._file.base + offset - _HEAD_BYTES
                if not self._fits(buffer, start, start + count):
                    return False
                view[:_HEAD_BYTES] = view[count : count + _HEAD_BYTES]
        finally:
            self._files.close(handle)
        progress(size)
        return True

    def _is_sealed(self, handle: int, piece: memoryview, offset: int) -> bool:
        # In small parts, so that the checksum finds the bytes in the processor's cache.
        for at in range(0, len(piece), _PART_BYTES):
            part = piece[at : at + _PART_BYTES]
            if self._files.read_into(handle, part, offset + at) < len(part):
                return False
            first = (offset + at) // BLOCK_BYTES * 4
            if not self._seal.sums.startswith(sums_of(part), first):
                return False
        return True

    def _fits(self, buffer: bytearray, start: int, stop: int) -> bool:
        """Return whether entries for records from ``start`` up to ``stop`` have the right times.

        Both are physical offsets; the buffer begins at ``start``.
        """
        raw = np.frombuffer(buffer, np.uint8)
        eight = window(raw, ">i8")
        for phys, seconds, begin_ms in self._times.below(stop):
            at = phys - start
            if at[0] < 0:
                return False
            longer = raw[at + HOST_BITS_POSITION] & BORN_HOST_V6
            where = at + STORE_MS_POSITION
            if longer.any():
                where += LONGER_HOST_BYTES * (longer != 0)
            behind = numbers(eight[where]) - begin_ms
            rest = behind - 1000 * seconds
            # Rare cases: the clock went back, or decades passed; those seconds are clipped.
            odd = (rest < 0) | (rest >= 1000)
            if odd.any() and (np.clip(behind[odd] // 1000, 0, _SECONDS_MAX) != seconds[odd]).any():
                return False
        return self._times.is_ordered
