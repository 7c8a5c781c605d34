"""Collecting garbage between requests: often when the loop is idle, within bounds when it is not.

Hardly anything in a server dies in a cycle, but the collector looks at every object to find that
out: with 100 000 queues for 30 ms and more, at a moment of its own choice. So what has been looked
at and lives is frozen, which means that no collection looks at it again, and a collection that
looks at all the rest never finds more than OBJECTS_BOUND new objects. What is frozen dies with its
last reference as ever; only cycles among frozen objects stay, so what lives as long as a connection
must not be one (tests/broker/test_connection_life.py).
"""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cometmq.core.clock import Clock
    from cometmq.net.tasks import Tasks
    from cometmq.net.watchdog import Watchdog

#: New objects after which the interpreter looks at them by itself, wherever it is: 1 to 3 ms.
YOUNG_OBJECTS: Final = 10_000
#: New objects that are looked at once more at the latest, at the next turn of the loop.
OBJECTS_BOUND: Final = 50_000
#: Objects that lived through a collection and are so many that the next would take 1 ms.
FREEZE_OBJECTS: Final = 5_000
#: How often an idle loop collects, and how seldom a busy one does.
IDLE_INTERVAL_MS: Final = 1_000
BUSY_INTERVAL_MS: Final = 10_000
#: A turn of the loop that took less had nothing to do.
IDLE_TURN_NS: Final = 500_000
_NEVER: Final = 1 << 30
_OLDEST: Final = 2


class Collector:
    """The garbage collection of this process, from :meth:`start` to :meth:`stop`."""

    def __init__(self, clock: Clock, watchdog: Watchdog) -> None:
        self._clock = clock
        self._watchdog = watchdog
        self._loop = asyncio.get_running_loop()
        self._new_objects = 0
        self._due = False
        self._begin_ns = 0
        self._last_ms = clock.monotonic_ms()
        self._before = (gc.isenabled(), gc.get_threshold())

    def start(self, tasks: Tasks) -> None:
        """Freeze what was loaded, and take over; ``tasks`` owns what runs in the background."""
        self._before = (gc.isenabled(), gc.get_threshold())
        gc.freeze()
        gc.set_threshold(YOUNG_OBJECTS, _NEVER, _NEVER)
        gc.enable()
        gc.callbacks.append(self._observe)
        tasks.keep(self._collect_forever, name="collect garbage", clock=self._clock)

    def stop(self) -> None:
        """Leave the collection to the interpreter again, as it was; what is frozen stays so."""
        if self._observe in gc.callbacks:
            gc.callbacks.remove(self._observe)
            enabled, threshold = self._before
            gc.set_threshold(*threshold)
            if not enabled:
                gc.disable()

    def collect(self) -> None:
        """Look at everything that is not frozen."""
        self._due = False
        self._last_ms = self._clock.monotonic_ms()
        gc.collect(_OLDEST)
        if self._new_objects >= FREEZE_OBJECTS:
            gc.freeze()
            self._new_objects = 0

    async def _collect_forever(self) -> None:
        while True:
            await self._clock.sleep_ms(IDLE_INTERVAL_MS)
            age_ms = self._clock.monotonic_ms() - self._last_ms
            if age_ms >= BUSY_INTERVAL_MS or await self._is_idle():
                self.collect()

    async def _is_idle(self) -> bool:
        begin_ns = self._clock.monotonic_ns()
        await self._clock.sleep_ms(0)
        return self._clock.monotonic_ns() - begin_ns < IDLE_TURN_NS

    def _observe(self, phase: str, info: dict[str, int]) -> None:
        # The interpreter calls this round every collection, its own ones included.
        if phase == "start":
            self._begin_ns = self._clock.monotonic_ns()
            self._new_objects += gc.get_count()[0]
            return
        self._new_objects = max(0, self._new_objects - info["collected"])
        self._watchdog.turn("garbage collection", self._clock.monotonic_ns() - self._begin_ns)
        if self._new_objects >= OBJECTS_BOUND and not self._due:
            self._due = True
            # Not call_soon: a thread may be the one that made the last object.
            self._loop.call_soon_threadsafe(self.collect)
