"""Delay levels: how long a message waits at a broker that has no timers. Pure."""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

_MINUTE: Final = 60
_HOUR: Final = 3_600
#: Seconds of the levels that brokers have unless ``messageDelayLevel`` is set.
_LEVELS_S: Final = (
    *(1, 5, 10, 30),
    *(minutes * _MINUTE for minutes in (*range(1, 11), 20, 30)),
    *(_HOUR, 2 * _HOUR),
)


def level_within_ms(left_ms: int) -> int:
    """Return the longest level that ends within ``left_ms``; 0, which is none, under a second."""
    return bisect_right(_LEVELS_S, left_ms / 1_000)
