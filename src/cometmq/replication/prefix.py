"""Comparison of two logs up to the end of the shorter one, without I/O.

The protocol has no handshake that could detect different logs. If a master lost its last second in
a power cut and went on, a slave would continue from its own offset, and the two logs would differ
for ever. So a slave requests the last part of its own log again and compares. If too little of it
matches, it requests more, until it finds where the logs diverge.
"""

from __future__ import annotations

from typing import Final

OVERLAP_BYTES: Final = 64 << 10
#: Different logs may match by chance for this many bytes, since bodies repeat.
SURE_BYTES: Final = 4 << 10
_GROWTH: Final = 16


class Overlap:
    """The end of a slave's log that it requests again; the log is ``start <= offset < end``.

    ``begin`` is the offset that the slave reports; :meth:`retry` moves it back if the logs diverge
    earlier. ``whole`` asks a Java master for the whole log if the slave's is empty.
    """

    __slots__ = ("_size_bytes", "_skips_one", "begin", "end", "start")

    def __init__(self, start: int, end: int, *, whole: bool = False) -> None:
        self.start = start
        self.end = end
        self._skips_one = whole and end == 0
        self._size_bytes = OVERLAP_BYTES
        self.begin = self._begin()

    def _begin(self) -> int:
        if self.end == 0:
            return 1 if self._skips_one else 0
        # Reporting 0 would say that the log is empty.
        return max(self.start, self.end - self._size_bytes, 1)

    def parted_before(self, offset: int) -> bool:
        """Return whether logs that differ at ``offset`` may differ before ``begin`` too."""
        return offset - self.begin < SURE_BYTES and self.goes_back

    @property
    def lacks_first_byte(self) -> bool:
        """True if an empty slave claims to have one byte.

        A Java master sends only its last file to a slave that reports 0. The claim is safe: the
        first byte of any log is the high byte of a size, zero.
        """
        return self.end == 0 and self._skips_one

    @property
    def goes_back(self) -> bool:
        """True if an earlier part of the log can be requested."""
        return self.begin > max(self.start, 1)

    def retry(self) -> bool:
        """Move ``begin`` back; return False if there is nothing earlier to request."""
        if self.lacks_first_byte:
            self._skips_one, self.begin = False, 0
            return True
        before = self.begin
        self._size_bytes *= _GROWTH
        self.begin = self._begin()
        return self.begin < before


def first_difference(ours: memoryview | bytes, theirs: memoryview | bytes) -> int:
    """Return the index of the first difference of two pieces of equal length; -1 if they match."""
    if ours == theirs:
        return -1
    # Bisect: comparing slices is much faster than comparing bytes in a loop.
    low, high = 0, len(ours)
    while high - low > 1:
        middle = (low + high) // 2
        if ours[low:middle] == theirs[low:middle]:
            low = middle
        else:
            high = middle
    return low
