"""The event loop of a process: its choice, turns that block it, and busy polling.

A :class:`Watchdog` logs and counts, by handler, every turn that blocks the loop for too long.

Busy polling: a loop without work sleeps, and on an idle processor it takes 40 us or more to wake
up, longer than most requests take. A client with one request in flight pays this for every request.
So after a request the loop polls its sockets for a short time before it sleeps.

Polling pays only if the next request comes within that time. A weighted mean of the last pauses
between requests predicts this: an idle server never polls, and one whose pauses get longer stops
after a few polls without a result. Polling does not pay either if other threads or processes want
the processor. So each poll yields the processor. If another thread or process took it, polling
stops for a time that grows with each such case (docs/decisions/0005-lookout.md has the numbers).
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Callable, Coroutine, Sized
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from cometmq.core.clock import SystemClock
from cometmq.core.histogram import Histogram

if TYPE_CHECKING:
    from cometmq.core.clock import Clock

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger(__name__)

#: A turn longer than this is a stall, because other connections wait that long.
STALL_NS: Final = 20_000_000
#: A turn shorter than this need not be reported.
SHORT_NS: Final = 200_000
#: Upper bounds of the histogram of turns longer than SHORT_NS.
TURN_BOUNDS_S: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
#: Handlers counted separately; the number is limited because task names may contain data.
HANDLERS_MAX: Final = 200

#: In the mean, the newest pause has a weight of 1/2**3. A pause counts as at most twice the polling
#: time.
_WEIGHT_SHIFT: Final = 3
#: If yielding the processor takes at least this long, another thread or process used it.
_TAKEN_NS: Final = 20_000
#: Time without polling after the processor was taken: four times the last such time. Every request
#: that polling finds halves it.
_REST_MIN_NS: Final = 1_000_000
_REST_MAX_NS: Final = 500_000_000
_TAKEN_SHIFT: Final = 2
_FOUND_SHIFT: Final = 1


def _keep_processor() -> None:
    """Do nothing, on systems without sched_yield."""


#: Yields the processor to a waiting thread or process; returns at once if none waits.
yield_processor: Final[Callable[[], None]] = getattr(os, "sched_yield", _keep_processor)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Return a constructor of the fastest event loop available."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run ``main`` to its end on a new loop, as asyncio.run does."""
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(main)


def direct_handle(transport: asyncio.BaseTransport) -> int:
    """Return the file descriptor of a transport that may be bypassed while its buffer is empty.

    Returns -1 for any other transport: for TLS, because its bytes must be encrypted, and for loops
    other than uvloop, because they send at once anyway.
    """
    kind = type(transport)
    if (kind.__module__, kind.__name__) != ("uvloop.loop", "TCPTransport"):
        return -1
    handle: int = transport.get_extra_info("socket").fileno()
    return handle


class Watchdog:
    """Counts turns of the loop over 20 ms by handler, and those over 200 us in ``long_turns``."""

    __slots__ = ("clock", "long_turns", "longest_ns", "stalls")

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or SystemClock()
        self.stalls: Counter[str] = Counter()
        self.long_turns = Histogram(TURN_BOUNDS_S)
        self.longest_ns = 0

    def turn(self, handler: str, took_ns: int) -> None:
        """Report one turn of ``handler``; cheap when it was short."""
        if took_ns > self.longest_ns:
            self.longest_ns = took_ns
        if took_ns > SHORT_NS:
            self.long_turns.add(took_ns / 1e9)
        if took_ns > STALL_NS:
            known = handler in self.stalls or len(self.stalls) < HANDLERS_MAX
            self.stalls[handler if known else "others"] += 1
            log.warning("loop stalled handler=%s took_ms=%d", handler, took_ns // 1_000_000)

    def watched(self, handler: str, callback: Callable[P, None]) -> Callable[P, None]:
        """Return ``callback`` wrapped so that each call is reported as a turn of ``handler``."""
        now_ns, turn = self.clock.monotonic_ns, self.turn

        def run(*args: P.args, **kwargs: P.kwargs) -> None:
            begin_ns = now_ns()
            try:
                callback(*args, **kwargs)
            finally:
                turn(handler, now_ns() - begin_ns)

        return run


class BusyPoll:
    """Busy polling of one event loop, for ``look_us`` after the last request.

    ``waits`` holds the work of a thread. While it is not empty the loop sleeps as usual, because a
    polling loop would keep the interpreter lock from that thread. ``offer`` yields the processor.
    ``served`` is True if requests came in during this turn.
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
        """True while the loop polls for a request instead of sleeping."""
        return self._awake

    def arrived(self, now_ns: int) -> None:
        """Note that requests came in; start to poll after them."""
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
        # Runs once per turn of the loop, which polls its sockets before each turn.
        if self.served:
            # The commit that these requests wait for is queued after this call: poll after it.
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
        # ``0 <``: with a clock that stands still, as in tests, the loop would poll for ever.
        return 0 < now_ns - self._quiet_since_ns < self._look_ns

    def _has_processor(self) -> bool:
        """Yield the processor; return False if another thread or process used it."""
        begin_ns = self._clock.monotonic_ns()
        self._offer()
        end_ns = self._clock.monotonic_ns()
        if end_ns - begin_ns < _TAKEN_NS:
            return True
        self._rest_ns = min(self._rest_ns << _TAKEN_SHIFT, _REST_MAX_NS)
        self._rests_until_ns = end_ns + self._rest_ns
        return False
