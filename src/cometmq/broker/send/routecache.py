"""Where sends go that need no further check: a topic's queues, at one look.

A send needs its topic's configuration, the topic's table of queues, and one of them. With 100 000
queues each of these look-ups waits several times for memory that no cache has, so what was found
and checked once is kept together: the queues of a topic by their numbers. A change of any topic
voids all of it, a queue that goes away what is known of its topic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cometmq.broker.topics.table import TopicTable
    from cometmq.protocol.bodies import TopicConfig
    from cometmq.store.queue.consumequeue import ConsumeQueue
    from cometmq.store.queue.table import QueueTable


class Destinations:
    """``get`` is the hot look-up: the queues of a topic by number, None for one that nobody sent to
    yet; None for a topic of which nothing is known. ``plain`` has, by names as they stand in a
    request, the topics whose plain sends may be taken many at a time."""

    def __init__(self, topics: TopicTable, queues: QueueTable) -> None:
        self._by_topic: dict[str, list[ConsumeQueue | None]] = {}
        self.plain: dict[bytes, list[ConsumeQueue | None]] = {}
        self.get = self._by_topic.get
        topics.on_change.append(self._clear)
        queues.on_gone.append(self._forget)

    def learn(self, config: TopicConfig, queue: ConsumeQueue, *, plain: bool) -> None:
        """A send to this queue passed all checks. Where some of them look at more than the topic,
        the next one has to pass them again. ``plain`` says that nothing but the topic decides what
        becomes of a plain send."""
        if config.order:
            return
        count = max(config.read_queue_nums, config.write_queue_nums)
        known = self._by_topic.get(queue.topic)
        if known is None:
            known = self._by_topic[queue.topic] = [None] * count
        known[queue.queue_id] = queue
        if plain:
            self.plain[queue.topic.encode()] = known

    def _clear(self) -> None:
        self._by_topic.clear()
        self.plain.clear()

    def _forget(self, queue: ConsumeQueue) -> None:
        self._by_topic.pop(queue.topic, None)
        self.plain.pop(queue.topic.encode(), None)
