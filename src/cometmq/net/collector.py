"""Garbage collection between requests: often when the loop is idle, rarely when it is busy.

Few objects in a server die in reference cycles, but a collection traverses every object to find
them. With 100 000 queues that takes 30 ms or more, at an arbitrary moment. Therefore objects that
survive a collection are frozen, and later collections do not traverse them. A full collection
starts after OBJECTS_BOUND new objects at the latest.

A frozen object is still freed with its last reference. Cycles of frozen objects are never freed, so
objects with the lifetime of a connection must not form cycles
(tests/broker/test_connection_life.py).
"""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cometmq.core.clock import Clock
    from cometmq.net.eventloop import Watchdog
    from cometmq.net.tasks import Tasks

#: New objects after which the interpreter starts a young collection, at any point; it takes 1 to
#: 3 ms.
YOUNG_OBJECTS: Final = 10_000
#: New objects after which a full collection runs in the next turn of the loop.
OBJECTS_BOUND: Final = 50_000
#: Surviving objects after which they are frozen. To traverse that number takes 1 ms.
FREEZE_OBJECTS: Final = 5_000
#: Intervals of collections in an idle and in a busy loop.
IDLE_INTERVAL_MS: Final = 1_000
BUSY_INTERVAL_MS: Final = 10_000
#: A turn of the loop that took less than this had no work.
IDLE_TURN_NS: Final = 500_000
_NEVER: Final = 1 << 30
_OLDEST: Final = 2


class Collector:
    """Control of this process's garbage collection, from :meth:`start` to :meth:`stop`."""

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
        """Freeze all existing objects and take control; ``tasks`` owns the background task."""
        self._before = (gc.isenabled(), gc.get_threshold())
        gc.freeze()
        gc.set_threshold(YOUNG_OBJECTS, _NEVER, _NEVER)
        gc.enable()
        gc.callbacks.append(self._observe)
        tasks.keep(self._collect_forever, name="collect garbage", clock=self._clock)

    def stop(self) -> None:
        """Restore the interpreter's former settings; frozen objects stay frozen."""
        if self._observe in gc.callbacks:
            gc.callbacks.remove(self._observe)
            enabled, threshold = self._before
            gc.set_threshold(*threshold)
            if not enabled:
                gc.disable()

    def collect(self) -> None:
        """Collect all objects that are not frozen."""
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
        # Called before and after every collection, also those that the interpreter starts.
        if phase == "start":
            self._begin_ns = self._clock.monotonic_ns()
            self._new_objects += gc.get_count()[0]
            return
        self._new_objects = max(0, self._new_objects - info["collected"])
        self._watchdog.turn("garbage collection", self._clock.monotonic_ns() - self._begin_ns)
        if self._new_objects >= OBJECTS_BOUND and not self._due:
            self._due = True
            # Not call_soon: a collection may be triggered in another thread.
            self._loop.call_soon_threadsafe(self.collect)
