"""Watching the loop: every turn that holds it too long is logged and counted under its handler."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Final

log = logging.getLogger(__name__)

#: A turn over this is a stall that other connections feel.
STALL_NS: Final = 20_000_000


class Watchdog:
    """Counts loop turns over 20 ms by the handler that took them."""

    __slots__ = ("longest_ns", "stalls")

    def __init__(self) -> None:
        self.stalls: Counter[str] = Counter()
        self.longest_ns = 0

    def turn(self, handler: str, took_ns: int) -> None:
        """Report one turn of ``handler``; cheap when it was short."""
        if took_ns > self.longest_ns:
            self.longest_ns = took_ns
        if took_ns > STALL_NS:
            self.stalls[handler] += 1
            log.warning("loop stalled handler=%s took_ms=%d", handler, took_ns // 1_000_000)
