"""Delay levels: the fixed delays that a broker without timers offers. Pure."""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

_MINUTE: Final = 60
_HOUR: Final = 3_600
#: Seconds of levels 1 to 18, unless ``messageDelayLevel`` is set at the broker.
_LEVELS_S: Final = (
    *(1, 5, 10, 30),
    *(minutes * _MINUTE for minutes in (*range(1, 11), 20, 30)),
    *(_HOUR, 2 * _HOUR),
)


def level_within_ms(left_ms: int) -> int:
    """Return the longest level whose delay is at most ``left_ms``; 0 (no delay) under a second."""
    return bisect_right(_LEVELS_S, left_ms / 1_000)
