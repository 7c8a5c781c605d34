"""Queues of checked topics: one look-up replaces the checks of a send.

A send needs its topic's configuration, the topic's table of queues, and one of these queues. With
100 000 queues each of these look-ups causes several cache misses of the processor. So the queues
of a topic are kept in one list, by queue id, once they were found and checked. Those that plain
sends may be appended to are in a table of the core too, which finds many of them at once. A change
of any topic clears all of this; a queue that is deleted clears the list of its topic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.speedups import KnownQueues

if TYPE_CHECKING:
    from cometmq.broker.topics.table import TopicTable
    from cometmq.protocol.bodies import TopicConfig
    from cometmq.store.queue.consumequeue import ConsumeQueue
    from cometmq.store.queue.table import QueueTable


class Destinations:
    """Queues that need no further check, by topic.

    ``get(topic)`` returns a topic's queues by queue id, with None for queues without a checked send
    yet; it returns None for an unknown topic. ``plain`` has those of the queues whose plain sends
    may be taken as a batch.
    """

    def __init__(self, topics: TopicTable, queues: QueueTable) -> None:
        self._by_topic: dict[str, list[ConsumeQueue | None]] = {}
        self.plain = KnownQueues()
        self.get = self._by_topic.get
        topics.on_change.append(self._clear)
        queues.on_gone.append(self._forget)

    def learn(self, config: TopicConfig, queue: ConsumeQueue, *, plain: bool) -> None:
        """Remember a queue after a send to it passed all checks.

        Ordered topics are not remembered: their check depends on the broker's permission too. Set
        ``plain`` if a plain send to the topic needs no check beyond the topic's own.
        """
        if config.order:
            return
        count = max(config.read_queue_nums, config.write_queue_nums)
        known = self._by_topic.get(queue.topic)
        if known is None:
            known = self._by_topic[queue.topic] = [None] * count
        known[queue.queue_id] = queue
        if plain:
            self.plain.add(queue)

    def _clear(self) -> None:
        self._by_topic.clear()
        self.plain.clear()

    def _forget(self, queue: ConsumeQueue) -> None:
        self._by_topic.pop(queue.topic, None)
        self.plain.forget(queue)
