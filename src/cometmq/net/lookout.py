"""Looking out for the next request instead of sleeping, while requests follow each other closely.

A loop that has nothing to do sleeps, and on an idle processor its wake-up takes 40 us and more:
longer than most requests. A client with one request in flight pays for it with every request. So
after a request the loop looks for the next one for a while, and sleeps only then. Each look offers
the processor to whoever else wants it.

It pays only when the next request comes within that while. A weighted mean of the last pauses says
whether it will: an idle server never looks, and one whose pauses get longer stops after a few looks
that found nothing (docs/decisions/0005-lookout.md has the numbers).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from cometmq.net.runtime import yield_processor

if TYPE_CHECKING:
    from cometmq.core.clock import Clock

#: The newest pause weighs 1 in 2**3; one counts at most as twice the time of a look.
_WEIGHT_SHIFT: Final = 3


class Lookout:
    """One event loop's look for requests, ``look_us`` long.

    ``must_sleep`` is asked before every look; while it is true the loop sleeps as ever, because
    somebody needs the interpreter who cannot have it from a loop that is awake: a thread.
    """

    __slots__ = (
        "_awake",
        "_clock",
        "_look_ns",
        "_loop",
        "_pause_ns",
        "_quiet_since_ns",
        "_served",
        "must_sleep",
    )

    def __init__(
        self, look_us: int, clock: Clock, *, must_sleep: Callable[[], bool] = lambda: False
    ) -> None:
        self._look_ns = look_us * 1_000
        self._clock = clock
        self.must_sleep = must_sleep
        self._loop = asyncio.get_running_loop()
        self._awake = False
        self._served = False
        self._quiet_since_ns = 0
        self._pause_ns = 2 * self._look_ns

    @property
    def is_awake(self) -> bool:
        """Whether the loop looks for a request instead of sleeping."""
        return self._awake

    def arrived(self, now_ns: int) -> None:
        """Requests came in and are about to be served."""
        if self._served:
            return
        self._served = True
        if self._quiet_since_ns:
            pause_ns = min(now_ns - self._quiet_since_ns, 2 * self._look_ns)
            self._pause_ns += (pause_ns - self._pause_ns) >> _WEIGHT_SHIFT
            self._quiet_since_ns = 0
        if not self._awake:
            self._awake = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        # Runs once a turn of the loop, which looks at its sockets before each.
        if self._served:
            # What these requests have to wait for, their commit, is queued behind this call.
            self._served = False
            self._loop.call_soon(self._look)
        elif self._is_worth_it():
            yield_processor()
            self._loop.call_soon(self._look)
        else:
            self._awake = False

    def _is_worth_it(self) -> bool:
        if self.must_sleep():
            return False
        now_ns = self._clock.monotonic_ns()
        if not self._quiet_since_ns:
            self._quiet_since_ns = now_ns
            return self._pause_ns < self._look_ns
        # A clock that stands still (a test's) would keep the loop awake for ever.
        return 0 < now_ns - self._quiet_since_ns < self._look_ns
