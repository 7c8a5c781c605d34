"""Token bucket: how much is allowed at once, and how much a second after that."""

from __future__ import annotations


class Allowance:
    """An initial amount, refilled by an amount a second. It reads no clock."""

    __slots__ = ("_at_once", "_left", "_per_second", "_since_ms")

    def __init__(self, at_once: float, per_second: float, now_ms: int) -> None:
        self._at_once = at_once
        self._per_second = per_second
        self._left = at_once
        self._since_ms = now_ms

    def take(self, amount: float, now_ms: int) -> bool:
        """Take ``amount`` if it is allowed at ``now_ms``; return whether it was."""
        self._left = self.left(now_ms)
        self._since_ms = now_ms
        if self._left < amount:
            return False
        self._left -= amount
        return True

    def left(self, now_ms: int) -> float:
        """Return how much is allowed at ``now_ms``."""
        passed_ms = max(0, now_ms - self._since_ms)
        return min(self._at_once, self._left + passed_ms * self._per_second / 1000)
