"""Whether two logs are the same up to where the shorter one ends. Pure.

The protocol has no handshake that could tell: a master that lost its last second in a power cut,
and went on, would be copied from the offset that its slave has, and the two logs would differ for
ever. So a slave asks for a little of what it already has and compares. When too little of it is the
same, it asks for more, until it finds where the logs part.
"""

from __future__ import annotations

from typing import Final

OVERLAP_BYTES: Final = 64 << 10
#: Pieces of two logs that are not the same may look alike for as long: bodies do.
SURE_BYTES: Final = 4 << 10
_GROWTH: Final = 16


class Overlap:
    """What a slave, whose log is ``start <= offset < end``, asks its master for once more.

    ``begin`` is what it reports to have; :meth:`retry` moves it back when the logs part before.
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
        # 0 would say that there is nothing here.
        return max(self.start, self.end - self._size_bytes, 1)

    def parted_before(self, offset: int) -> bool:
        """Whether logs that differ at ``offset`` may do so before what was asked for."""
        return offset - self.begin < SURE_BYTES and self.goes_back

    @property
    def lacks_first_byte(self) -> bool:
        """Whether a slave that has nothing claims to have one byte: a Java master gives one that
        says 0 the last file alone. The first byte of any log is the high one of a size: zero."""
        return self.end == 0 and self._skips_one

    @property
    def goes_back(self) -> bool:
        """Whether there is more that could be asked for."""
        return self.begin > max(self.start, 1)

    def retry(self) -> bool:
        """Ask for more; False when all there is was asked for already."""
        if self.lacks_first_byte:
            self._skips_one, self.begin = False, 0
            return True
        before = self.begin
        self._size_bytes *= _GROWTH
        self.begin = self._begin()
        return self.begin < before


def first_difference(ours: memoryview | bytes, theirs: memoryview | bytes) -> int:
    """Where two pieces of equal length begin to differ; -1 when they are the same."""
    if ours == theirs:
        return -1
    low, high = 0, len(ours)
    while high - low > 1:
        middle = (low + high) // 2
        if ours[low:middle] == theirs[low:middle]:
            low = middle
        else:
            high = middle
    return low
