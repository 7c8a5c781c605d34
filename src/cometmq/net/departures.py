"""What peers have to send leaves together, a round of the loop later.

A peer's bytes could leave with the turn that made them. But a round of the loop serves all that
came in, one peer after the other: where their bytes leave together afterwards, whoever reads them
on another processor is woken once, and what it asks next comes in one round too.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from cometmq.net.watchdog import SHORT_NS

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.net.watchdog import Watchdog

log = logging.getLogger(__name__)


class Departures:
    """Of all peers of a server."""

    __slots__ = ("_now_ns", "_waiting", "_watchdog")

    def __init__(self, watchdog: Watchdog) -> None:
        self._watchdog = watchdog
        self._now_ns = watchdog.clock.monotonic_ns
        self._waiting: list[Callable[[], None]] = []

    def add(self, flush: Callable[[], None]) -> None:
        """Have it called soon, once."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._let_go)
        self._waiting.append(flush)

    def _let_go(self) -> None:
        begin_ns = self._now_ns()
        waiting, self._waiting = self._waiting, []
        for flush in waiting:
            try:
                flush()
            except Exception:  # of one peer: the others' bytes leave all the same
                log.exception("flush failed")
        took_ns = self._now_ns() - begin_ns
        if took_ns > SHORT_NS:
            self._watchdog.turn("flush", took_ns)
