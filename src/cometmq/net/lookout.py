"""Looking out for the next request instead of sleeping, while requests follow each other closely.

A loop that has nothing to do sleeps, and on an idle processor its wake-up takes 40 us and more:
longer than most requests. A client with one request in flight pays for it with every request. So
after a request the loop looks for the next one for a while, and sleeps only then.

It pays only when the next request comes within that while. A weighted mean of the last pauses says
whether it will: an idle server never looks, and one whose pauses get longer stops after a few looks
that found nothing. Nor does it pay when others want the processor, which is awake anyway then: each
look offers it, and when it is taken there is no looking for a while that gets longer each time
(docs/decisions/0005-lookout.md has the numbers).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sized
from typing import TYPE_CHECKING, Final

from cometmq.net.runtime import yield_processor

if TYPE_CHECKING:
    from cometmq.core.clock import Clock

#: The newest pause weighs 1 in 2**3; one counts at most as twice the time of a look.
_WEIGHT_SHIFT: Final = 3
#: An offered processor that is back within this was wanted by nobody.
_TAKEN_NS: Final = 20_000
#: For how long nothing is looked for then: four times as long as the last time, half as long for
#: every request that was found.
_REST_MIN_NS: Final = 1_000_000
_REST_MAX_NS: Final = 500_000_000
_TAKEN_SHIFT: Final = 2
_FOUND_SHIFT: Final = 1


class Lookout:
    """One event loop's look for requests, ``look_us`` long.

    While ``waits`` is not empty the loop sleeps as ever, because somebody needs the interpreter who
    cannot have it from a loop that is awake: a thread. ``offer`` lets others have the processor.
    ``served`` says that requests came in during this turn.
    """

    __slots__ = (
        "_awake",
        "_clock",
        "_look_ns",
        "_loop",
        "_offer",
        "_pause_ns",
        "_quiet_since_ns",
        "_rest_ns",
        "_rests_until_ns",
        "served",
        "waits",
    )

    def __init__(
        self,
        look_us: int,
        clock: Clock,
        *,
        waits: Sized = (),
        offer: Callable[[], None] = yield_processor,
    ) -> None:
        self._look_ns = look_us * 1_000
        self._clock = clock
        self.waits = waits
        self._offer = offer
        self._loop = asyncio.get_running_loop()
        self._awake = False
        self.served = False
        self._quiet_since_ns = 0
        self._rest_ns = _REST_MIN_NS
        self._rests_until_ns = 0
        self._pause_ns = 2 * self._look_ns

    @property
    def is_awake(self) -> bool:
        """Whether the loop looks for a request instead of sleeping."""
        return self._awake

    def arrived(self, now_ns: int) -> None:
        """Requests came in and are about to be served."""
        if self.served:
            return
        self.served = True
        if self._quiet_since_ns:
            if self._awake:
                self._rest_ns = max(self._rest_ns >> _FOUND_SHIFT, _REST_MIN_NS)
            pause_ns = min(now_ns - self._quiet_since_ns, 2 * self._look_ns)
            self._pause_ns += (pause_ns - self._pause_ns) >> _WEIGHT_SHIFT
            self._quiet_since_ns = 0
        if not self._awake:
            self._awake = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        # Runs once a turn of the loop, which looks at its sockets before each.
        if self.served:
            # What these requests have to wait for, their commit, is queued behind this call.
            self.served = False
            self._loop.call_soon(self._look)
        elif not self.waits and self._pays() and self._has_processor():
            self._loop.call_soon(self._look)
        else:
            self._awake = False

    def _pays(self) -> bool:
        now_ns = self._clock.monotonic_ns()
        if not self._quiet_since_ns:
            self._quiet_since_ns = now_ns
            return self._pause_ns < self._look_ns and now_ns >= self._rests_until_ns
        # A clock that stands still (a test's) would keep the loop awake for ever.
        return 0 < now_ns - self._quiet_since_ns < self._look_ns

    def _has_processor(self) -> bool:
        """Offer the processor; false when somebody took it."""
        begin_ns = self._clock.monotonic_ns()
        self._offer()
        end_ns = self._clock.monotonic_ns()
        if end_ns - begin_ns < _TAKEN_NS:
            return True
        self._rest_ns = min(self._rest_ns << _TAKEN_SHIFT, _REST_MAX_NS)
        self._rests_until_ns = end_ns + self._rest_ns
        return False
