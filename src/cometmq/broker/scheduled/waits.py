"""Waiting times of delayed messages by the monotonic clock, for when the wall clock was set back.
No I/O.

Store times in a log never decrease. After the wall clock was set back, all records get the last
store time until the clock has caught up. Their due times are computed from that: delivery would be
hours late by them, and immediate without them. Meanwhile the monotonic clock decides.
"""

from __future__ import annotations

from collections import deque

#: A delay is measured to one part in this many, which bounds the number of marks.
_PARTS = 64


class Waits:
    """Entries of one delay level; each waits ``delay_ms`` from when it was first seen."""

    __slots__ = ("_delay_ms", "_marks", "over")

    def __init__(self, delay_ms: int) -> None:
        #: Every entry before this offset has waited its full delay.
        self.over = 0
        self._delay_ms = delay_ms
        #: Monotonic times at which the first and the last entry of a group were seen, and its end
        #: offset.
        self._marks: deque[tuple[int, int, int]] = deque()

    def look(self, end: int, now_ms: int) -> None:
        """Note that the queue ends at offset ``end`` at the monotonic time ``now_ms``."""
        marks, delay_ms = self._marks, self._delay_ms
        if end > (marks[-1][2] if marks else self.over):
            begun_ms = now_ms
            if marks and now_ms - marks[-1][0] < delay_ms // _PARTS:
                begun_ms = marks.pop()[0]
            marks.append((begun_ms, now_ms, end))
        while marks and now_ms - marks[0][1] >= delay_ms:
            self.over = marks.popleft()[2]

    def forget(self) -> None:
        """Drop all marks, because the wall clock can decide again."""
        self._marks.clear()
        self.over = 0
