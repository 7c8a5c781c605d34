"""What peers have to send leaves together, a round of the loop later.

A peer's bytes could leave with the turn that made them. But a round of the loop serves all that
came in, one peer after the other: where their bytes leave together afterwards, whoever reads them
on another processor is woken once, and what it asks next comes in one round too.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.net.watchdog import Watchdog

log = logging.getLogger(__name__)


class Departures:
    """Of all peers of a server."""

    __slots__ = ("_leave", "_waiting")

    def __init__(self, watchdog: Watchdog) -> None:
        self._leave = watchdog.watched("flush", self._let_go)
        self._waiting: list[Callable[[], None]] = []

    def add(self, flush: Callable[[], None]) -> None:
        """Have it called soon, once."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._leave)
        self._waiting.append(flush)

    def _let_go(self) -> None:
        waiting, self._waiting = self._waiting, []
        for flush in waiting:
            try:
                flush()
            except Exception:  # of one peer: the others' bytes leave all the same
                log.exception("flush failed")
