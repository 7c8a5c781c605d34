"""Brokers to avoid for a while because they were slow or failed.

Pure (upstream: MQFaultStrategy.java, LatencyFaultToleranceImpl.java). Times are monotonic
milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cometmq.message.model import MessageQueue

#: Latency that a failed send counts as.
FAILURE_LATENCY_MS: Final = 30_000

#: Least latency and the penalty for it: the time for which the broker is avoided.
_PENALTIES_MS: Final = (
    (15_000, 600_000),
    (3_000, 180_000),
    (2_000, 120_000),
    (1_000, 60_000),
    (550, 30_000),
)


def penalty_ms(latency_ms: float) -> int:
    """Return the time for which a broker with this latency is avoided; 0 for a fast one."""
    return next((penalty for least, penalty in _PENALTIES_MS if latency_ms >= least), 0)


@dataclass(frozen=True, slots=True)
class _Score:
    """End of a broker's penalty, and the queue through which the broker could not be reached."""

    until_ms: int
    unreachable: MessageQueue | None = None


class FaultScores:
    """Penalties of brokers by name."""

    __slots__ = ("_scores",)

    def __init__(self) -> None:
        self._scores: dict[str, _Score] = {}

    def answered(self, broker_name: str, latency_ms: float, now_ms: int) -> None:
        """Record that a broker took ``latency_ms`` to serve a send."""
        penalty = penalty_ms(latency_ms)
        if penalty:
            self._scores[broker_name] = _Score(now_ms + penalty)
        else:
            self._scores.pop(broker_name, None)

    def refused(self, broker_name: str, now_ms: int) -> None:
        """Record that a broker responded that it cannot accept messages at the moment."""
        self._scores[broker_name] = _Score(now_ms + penalty_ms(FAILURE_LATENCY_MS))

    def unreachable(self, queue: MessageQueue, now_ms: int) -> None:
        """Record that the broker of a queue did not respond, or could not be connected."""
        self._scores[queue.broker_name] = _Score(now_ms + penalty_ms(FAILURE_LATENCY_MS), queue)

    def to_probe(self, now_ms: int) -> list[MessageQueue]:
        """Return one queue of each broker that is avoided because it could not be reached."""
        return [
            score.unreachable
            for score in self._scores.values()
            if score.unreachable is not None and score.until_ms > now_ms
        ]

    def is_back(self, broker_name: str) -> None:
        """Record that a broker that could not be reached responds again."""
        self._scores.pop(broker_name, None)

    def is_available(self, broker_name: str, now_ms: int) -> bool:
        """Return whether the broker may be chosen."""
        score = self._scores.get(broker_name)
        return score is None or score.until_ms <= now_ms

    def least_bad(self, broker_names: list[str], now_ms: int) -> str:
        """Return the broker to use when all of ``broker_names`` are avoided.

        Reachable brokers come first; among equals, the one whose penalty ends first.
        """
        nothing = _Score(now_ms)
        scores = {name: self._scores.get(name, nothing) for name in broker_names}
        return min(
            scores,
            key=lambda name: (scores[name].unreachable is not None, scores[name].until_ms),
        )
