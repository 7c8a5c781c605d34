"""Chooses the queue of a message: round-robin, by the hash of its order key, or by a user's
function; and lists brokers to avoid for a while because they were slow or failed.

Pure; times are monotonic milliseconds (upstream: TopicPublishInfo.selectOneMessageQueue,
SelectMessageQueueByHash.java, MQFaultStrategy.java, LatencyFaultToleranceImpl.java).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cometmq.core.errors import ClientError
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers import TopicQueue
from cometmq.speedups import java_hash

if TYPE_CHECKING:
    from cometmq.client.session import Session
    from cometmq.message.model import Message, MessageQueue

log = logging.getLogger(__name__)


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


class Prober:
    """Probes for one producer, as long as there are brokers to probe."""

    def __init__(self, session: Session, faults: FaultScores) -> None:
        self._session = session
        self._faults = faults
        self._running: asyncio.Task[None] | None = None

    def wake(self) -> None:
        """Start probing, because a broker could not be reached."""
        if self._running is None or self._running.done():
            self._running = self._session.tasks.spawn(self._run(), name="probe brokers")

    async def _run(self) -> None:
        clock = self._session.clock
        while self._faults.to_probe(clock.monotonic_ms()):
            await clock.sleep_ms(self._session.config.probe_interval_ms)
            queues = self._faults.to_probe(clock.monotonic_ms())
            await asyncio.gather(*map(self._probe, queues))

    async def _probe(self, queue: MessageQueue) -> None:
        address = self._session.master_address(queue.broker_name)
        if address is None:
            return  # no route names it, so no send goes there
        try:
            await self._session.remoting.request(
                address,
                RequestCode.GET_MAX_OFFSET,
                TopicQueue(topic=queue.topic, queue_id=queue.queue_id),
                timeout_ms=self._session.config.probe_timeout_ms,
            )
        except ClientError as error:
            log.info("broker_still_unreachable broker=%s error=%s", queue.broker_name, error)
        else:  # any response shows that it is up
            log.info("broker_reachable_again broker=%s", queue.broker_name)
            self._faults.is_back(queue.broker_name)


#: Picks one of a topic's queues for a message, or for the first one of a batch. It is called for
#: every attempt.
QueueSelector = Callable[[Sequence["MessageQueue"], "Message"], "MessageQueue"]


def by_key(queues: Sequence[MessageQueue], order_key: str) -> MessageQueue:
    """Return the queue of ``order_key``, the same that a Java producer's hash selector picks."""
    remainder = abs(java_hash(order_key)) % len(queues)
    return queues[remainder]


class RoundRobin:
    """Round-robin over the queues of each topic, starting at a random queue."""

    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next: dict[str, int] = {}

    def turn_of(self, topic: str, count: int) -> int:
        """Return the index of the next queue of a topic with ``count`` queues."""
        start = self._next.get(topic)
        if start is None:
            start = random.randrange(count)
        start %= count
        self._next[topic] = (start + 1) % count
        return start

    def pick(
        self,
        queues: Sequence[MessageQueue],
        *,
        avoid_broker: str | None = None,
        faults: FaultScores | None = None,
        now_ms: int = 0,
    ) -> MessageQueue:
        """Return the next queue of a topic; ``queues`` are its queues, at least one.

        A queue on another broker than ``avoid_broker`` is preferred. With ``faults``, a queue on an
        available broker is returned; if there is none, one on the broker that ``least_bad`` names.
        """
        topic = queues[0].topic
        count = len(queues)
        start = self.turn_of(topic, count)
        if avoid_broker is None and faults is None:
            return queues[start]
        for step in range(count):
            queue = queues[(start + step) % count]
            if queue.broker_name == avoid_broker:
                continue
            if faults is None or faults.is_available(queue.broker_name, now_ms):
                self._next[topic] = (start + step + 1) % count
                return queue
        if faults is None:
            return queues[start]
        name = faults.least_bad(sorted({queue.broker_name for queue in queues}), now_ms)
        own = [queue for queue in queues if queue.broker_name == name]
        return own[start % len(own)]
