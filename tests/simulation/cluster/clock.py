"""The clock of one simulated machine: the loop's time, and a wall clock of its own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from cometmq.core.clock import VirtualClock

if TYPE_CHECKING:
    from tests.simulation.cluster.loop import SimLoop

_WALL_AT_ZERO_MS: Final = 1_700_000_000_000


class SimClock(VirtualClock):
    """Clock that follows the loop.

    Sleeps end at multiples of ``grain_ms``, as on a machine that coalesces timers. Otherwise tasks
    that poll every few milliseconds would take most of a simulation's time.
    """

    __slots__ = ("_ahead_ms", "_grain_us", "_loop")

    def __init__(self, loop: SimLoop, *, grain_ms: int = 1) -> None:
        self._loop = loop
        self._grain_us = grain_ms * 1_000
        self._ahead_ms = 0

    def wall_ms(self) -> int:
        return _WALL_AT_ZERO_MS + self._ahead_ms + self._loop.now_us // 1_000

    def monotonic_ms(self) -> int:
        return self._loop.now_us // 1_000

    def monotonic_ns(self) -> int:
        return self._loop.now_us * 1_000

    async def sleep_ms(self, duration_ms: float) -> None:
        if duration_ms <= 0:
            await asyncio.sleep(0)  # noqa: TID251 - a yield, not a wait
            return
        loop = self._loop
        when_us = loop.now_us + round(duration_ms * 1_000)
        when_us += -when_us % self._grain_us
        await loop.moment(when_us)

    def advance(self, duration_ms: int) -> None:
        """Do nothing: a slow disk delays its thread (threads.py), not the clock."""

    def jump_wall(self, offset_ms: int) -> None:
        """Move the wall clock alone."""
        self._ahead_ms += offset_ms
