"""Repairs of faults after a while, and other background work of an adversary."""

from __future__ import annotations

from contextvars import Context
from typing import TYPE_CHECKING, Any, Final

from tests.simulation.cluster.clock import SimClock

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine
    from random import Random

    from tests.simulation.cluster.loop import SimLoop

_DOWNTIMES_MS: Final = (10, 500, 1_500, 4_000)


class Repairs:
    """The repairs of one run. None is made while ``rests`` is true."""

    def __init__(self, loop: SimLoop, chance: Random) -> None:
        self.rests = False
        self.clock = SimClock(loop)
        self._loop = loop
        self._chance = chance
        self._tasks: list[asyncio.Task[None]] = []

    def soon(self, repair: Callable[[], None], pauses_ms: tuple[int, ...] = _DOWNTIMES_MS) -> None:
        """Call ``repair`` after one of some pauses."""

        async def wait() -> None:
            await self.clock.sleep_ms(self._chance.choice(pauses_ms))
            if not self.rests:
                repair()

        self.spawn(wait())

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work in a task of the simulation."""
        # Not in the caller's context: the work would end with the caller's process.
        self._tasks.append(self._loop.create_task(work, context=Context()))
