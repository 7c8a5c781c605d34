"""What is repaired a while after it broke, and whatever else an adversary has under way."""

from __future__ import annotations

from contextvars import Context
from typing import TYPE_CHECKING, Any, Final

from cometmq.testing.sim.clock import SimClock

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine
    from random import Random

    from cometmq.testing.sim.loop import SimLoop

_DOWNTIMES_MS: Final = (10, 500, 1_500, 4_000)


class Repairs:
    """The repairs of one run. Once it ``rests`` none is made any more."""

    def __init__(self, loop: SimLoop, chance: Random) -> None:
        self.rests = False
        self.clock = SimClock(loop)
        self._loop = loop
        self._chance = chance
        self._tasks: list[asyncio.Task[None]] = []

    def soon(self, repair: Callable[[], None], pauses_ms: tuple[int, ...] = _DOWNTIMES_MS) -> None:
        """Do something after one of some pauses."""

        async def wait() -> None:
            await self.clock.sleep_ms(self._chance.choice(pauses_ms))
            if not self.rests:
                repair()

        self.spawn(wait())

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Have work done that ends with the run."""
        # Not in the context of who calls: with its process this work would end too.
        self._tasks.append(self._loop.create_task(work, context=Context()))
