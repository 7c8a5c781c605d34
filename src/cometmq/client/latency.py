"""Which brokers to leave alone for a while because they were slow or failed.

Pure (upstream: MQFaultStrategy.java, LatencyFaultToleranceImpl.java). Times are monotonic
milliseconds.
"""

from __future__ import annotations

from typing import Final

#: A failed send counts as one that took so long.
FAILURE_LATENCY_MS: Final = 30_000

#: Latency from which on a broker is left alone, and for how long.
_PENALTIES_MS: Final = (
    (15_000, 600_000),
    (3_000, 180_000),
    (2_000, 120_000),
    (1_000, 60_000),
    (550, 30_000),
)


def penalty_ms(latency_ms: float) -> int:
    """How long a broker that needed ``latency_ms`` is left alone."""
    return next((penalty for least, penalty in _PENALTIES_MS if latency_ms >= least), 0)


class FaultScores:
    """Brokers by name, with the moment until which each is left alone."""

    __slots__ = ("_scores",)

    def __init__(self) -> None:
        self._scores: dict[str, tuple[int, float]] = {}

    def report(self, broker_name: str, latency_ms: float, now_ms: int) -> None:
        """A send to the broker took ``latency_ms`` (FAILURE_LATENCY_MS when it failed)."""
        self._scores[broker_name] = (now_ms + penalty_ms(latency_ms), latency_ms)

    def is_available(self, broker_name: str, now_ms: int) -> bool:
        """Whether the broker may be chosen."""
        score = self._scores.get(broker_name)
        return score is None or score[0] <= now_ms

    def least_bad(self, broker_names: list[str], now_ms: int) -> str:
        """The broker to use when all of ``broker_names`` are left alone: the first to be back."""
        return min(broker_names, key=lambda name: self._scores.get(name, (now_ms, 0.0)))
