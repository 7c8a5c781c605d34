"""The consume queues in memory, by topic and number.

Two small tables instead of one with a pair for each queue: with very many queues it is memory that
is not at hand which a send waits for, and the queues of a topic share what stands for the topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cometmq.store.queue.consumequeue import ConsumeQueue


class QueueTable:
    """``by_topic`` is for reading alone. ``on_gone`` are called at once with each queue that is
    given up: whoever keeps it lets go of it."""

    __slots__ = ("_count", "by_topic", "on_gone")

    def __init__(self) -> None:
        self.by_topic: dict[str, dict[int, ConsumeQueue]] = {}
        self._count = 0
        self.on_gone: list[Callable[[ConsumeQueue], None]] = []

    def __len__(self) -> int:
        return self._count

    def values(self) -> Iterator[ConsumeQueue]:
        """All queues."""
        return chain.from_iterable(map(dict.values, self.by_topic.values()))

    def get(self, key: tuple[str, int]) -> ConsumeQueue | None:
        """The queue of a topic and a number."""
        queues = self.by_topic.get(key[0])
        return None if queues is None else queues.get(key[1])

    def like(self, topic: str) -> ConsumeQueue | None:
        """Any queue of a topic."""
        return next(iter(self.by_topic.get(topic, {}).values()), None)

    def add(self, queue: ConsumeQueue) -> None:
        """Take a queue that is not there yet."""
        self.by_topic.setdefault(queue.topic, {})[queue.queue_id] = queue
        self._count += 1

    def pop(self, key: tuple[str, int]) -> ConsumeQueue | None:
        """Give a queue up, if there is such a one."""
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
