"""Token bucket: limits an amount at once, and the rate per second after that."""

from __future__ import annotations


class Allowance:
    """Token bucket of ``at_once`` tokens, refilled by ``per_second``. It starts full.

    It reads no clock: callers pass monotonic time.
    """

    __slots__ = ("_at_once", "_left", "_per_second", "_since_ms")

    def __init__(self, at_once: float, per_second: float, now_ms: int) -> None:
        self._at_once = at_once
        self._per_second = per_second
        self._left = at_once
        self._since_ms = now_ms

    def take(self, amount: float, now_ms: int) -> bool:
        """Take ``amount`` if that much is left at ``now_ms``; return whether it was taken."""
        self._left = self.left(now_ms)
        self._since_ms = now_ms
        if self._left < amount:
            return False
        self._left -= amount
        return True

    def left(self, now_ms: int) -> float:
        """Return the amount that is left at ``now_ms``."""
        passed_ms = max(0, now_ms - self._since_ms)
        return min(self._at_once, self._left + passed_ms * self._per_second / 1000)
