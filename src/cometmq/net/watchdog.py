"""Watches the event loop: logs and counts, by handler, every turn that blocks it for too long."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, ParamSpec

from cometmq.core.clock import SystemClock

if TYPE_CHECKING:
    from cometmq.core.clock import Clock

P = ParamSpec("P")

log = logging.getLogger(__name__)

#: A turn longer than this is a stall that affects other connections.
STALL_NS: Final = 20_000_000
#: A turn shorter than this need not be reported.
SHORT_NS: Final = 200_000
#: Handlers counted separately; the number is limited because task names may contain data.
HANDLERS_MAX: Final = 200


class Watchdog:
    """Counts turns of the loop over 20 ms by handler."""

    __slots__ = ("clock", "longest_ns", "stalls")

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or SystemClock()
        self.stalls: Counter[str] = Counter()
        self.longest_ns = 0

    def turn(self, handler: str, took_ns: int) -> None:
        """Report one turn of ``handler``; cheap when it was short."""
        if took_ns > self.longest_ns:
            self.longest_ns = took_ns
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
