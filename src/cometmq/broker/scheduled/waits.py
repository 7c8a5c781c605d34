"""How long delayed messages have waited, where the wall clock cannot tell. Pure.

The store times of a log never go back. After the wall clock was set back, all that is stored until
it has caught up carries the last time before, and so do the times at which it is due: hours too
late, or, against the clock, at once. Meanwhile the monotonic clock counts.
"""

from __future__ import annotations

from collections import deque

#: A delay is kept to one part in so many, which bounds what is remembered.
_PARTS = 64


class Waits:
    """The entries of one level, each of which waits ``delay_ms`` from when it was first seen."""

    __slots__ = ("_delay_ms", "_marks", "over")

    def __init__(self, delay_ms: int) -> None:
        #: Every entry before this offset has waited for as long as it had to.
        self.over = 0
        self._delay_ms = delay_ms
        #: When entries were first seen, the last of them, and the offset behind the last one.
        self._marks: deque[tuple[int, int, int]] = deque()

    def look(self, end: int, now_ms: int) -> None:
        """The queue ends at an offset; ``now_ms`` is monotonic."""
        marks, delay_ms = self._marks, self._delay_ms
        if end > (marks[-1][2] if marks else self.over):
            begun_ms = now_ms
            if marks and now_ms - marks[-1][0] < delay_ms // _PARTS:
                begun_ms = marks.pop()[0]
            marks.append((begun_ms, now_ms, end))
        while marks and now_ms - marks[0][1] >= delay_ms:
            self.over = marks.popleft()[2]

    def forget(self) -> None:
        """The wall clock can tell again."""
        self._marks.clear()
        self.over = 0
