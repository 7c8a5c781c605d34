"""Chooses the queue of a message: round-robin, by the hash of its order key, or by a user's
function (upstream: TopicPublishInfo.selectOneMessageQueue, SelectMessageQueueByHash.java).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from cometmq.speedups import java_hash

if TYPE_CHECKING:
    from cometmq.client.latency import FaultScores
    from cometmq.message.model import Message, MessageQueue

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
