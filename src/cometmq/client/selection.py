"""Which queue a message goes to: in turn, by the hash of its order key, or as a function of the
user's says (upstream: TopicPublishInfo.selectOneMessageQueue, SelectMessageQueueByHash.java)."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from cometmq.speedups import java_hash

if TYPE_CHECKING:
    from cometmq.client.latency import FaultScores
    from cometmq.message.model import Message, MessageQueue

#: Picks one of a topic's queues for a message, or for the first one of a batch. Every attempt asks
#: it again.
QueueSelector = Callable[[Sequence["MessageQueue"], "Message"], "MessageQueue"]


def by_key(queues: Sequence[MessageQueue], order_key: str) -> MessageQueue:
    """The queue of ``order_key``: the one that a Java producer's hash selector would take."""
    remainder = abs(java_hash(order_key)) % len(queues)
    return queues[remainder]


class RoundRobin:
    """Queues of each topic in turn, starting at a random one."""

    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next: dict[str, int] = {}

    def turn_of(self, topic: str, count: int) -> int:
        """Which of the ``count`` queues of a topic is next."""
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
        """The next queue of a topic (``queues`` are its, and not empty).

        One on another broker than ``avoid_broker`` where there is one; with ``faults``, one on a
        broker that is not left alone, else on the one that is back first.
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
