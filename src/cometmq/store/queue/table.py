"""The table of consume queues in memory, by topic and queue id.

A nested table takes less memory than one with a (topic, queue id) key per queue: with very many
queues, cache misses slow down each send. The queues of a topic also share the data of the topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cometmq.store.queue.consumequeue import ConsumeQueue


class QueueTable:
    """The consume queues in memory.

    ``by_topic`` is read-only for others. The calls in ``on_gone`` get each removed queue at once,
    so that its users release it.
    """

    __slots__ = ("_count", "by_topic", "on_gone")

    def __init__(self) -> None:
        self.by_topic: dict[str, dict[int, ConsumeQueue]] = {}
        self._count = 0
        self.on_gone: list[Callable[[ConsumeQueue], None]] = []

    def __len__(self) -> int:
        return self._count

    def values(self) -> Iterator[ConsumeQueue]:
        """Return all queues."""
        return chain.from_iterable(map(dict.values, self.by_topic.values()))

    def get(self, key: tuple[str, int]) -> ConsumeQueue | None:
        """Return the queue of a topic and a queue id."""
        queues = self.by_topic.get(key[0])
        return None if queues is None else queues.get(key[1])

    def like(self, topic: str) -> ConsumeQueue | None:
        """Return any queue of a topic."""
        return next(iter(self.by_topic.get(topic, {}).values()), None)

    def add(self, queue: ConsumeQueue) -> None:
        """Add a queue that is not in the table."""
        self.by_topic.setdefault(queue.topic, {})[queue.queue_id] = queue
        self._count += 1

    def pop(self, key: tuple[str, int]) -> ConsumeQueue | None:
        """Remove a queue, if it exists, and return it."""
        topic, queue_id = key
        queues = self.by_topic.get(topic, {})
        queue = queues.pop(queue_id, None)
        if queue is not None:
            self._count -= 1
            if not queues:
                del self.by_topic[topic]
            for call in self.on_gone:
                call(queue)
        return queue
