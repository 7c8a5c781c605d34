"""Writes the responses of all peers together, one turn of the loop after they were made.

A peer's bytes could be written by the turn that made them. But one round of the loop serves all
peers that sent requests. If their responses are written together afterwards, a client process that
reads several of them on another processor wakes up once, and its next requests arrive together too.
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


class WriteCoalescer:
    """Flushes of the peers of one server that wait for the next turn."""

    __slots__ = ("_now_ns", "_waiting", "_watchdog")

    def __init__(self, watchdog: Watchdog) -> None:
        self._watchdog = watchdog
        self._now_ns = watchdog.clock.monotonic_ns
        self._waiting: list[Callable[[], None]] = []

    def add(self, flush: Callable[[], None]) -> None:
        """Call ``flush`` once in the next turn of the loop."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._let_go)
        self._waiting.append(flush)

    def _let_go(self) -> None:
        begin_ns = self._now_ns()
        waiting, self._waiting = self._waiting, []
        for flush in waiting:
            try:
                flush()
            except Exception:  # a failure of one peer must not keep the others' bytes
                log.exception("flush failed")
        took_ns = self._now_ns() - begin_ns
        if took_ns > SHORT_NS:
            self._watchdog.turn("flush", took_ns)
