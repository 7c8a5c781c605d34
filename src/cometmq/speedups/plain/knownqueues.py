"""The table of queues that plain sends may be appended to.

This is the definition; compiled/knownqueues.pyx does the same, but may leave out a queue for which
its table has no room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cometmq.speedups.plain.writebatch import QueueState


class KnownQueues:
    """Queues by topic and queue id."""

    def __init__(self) -> None:
        self._queues: dict[tuple[bytes, int], QueueState] = {}

    def __len__(self) -> int:
        return len(self._queues)

    def add(self, queue: QueueState) -> None:
        """Add a queue; it replaces one of the same topic and queue id.

        Raises ValueError if its ``topic_tail`` is empty.
        """
        if not queue.topic_tail:
            raise ValueError("a queue without a topic")
        self._queues[queue.topic_tail[1:], queue.queue_id] = queue

    def forget(self, queue: QueueState) -> None:
        """Remove a queue, if it is there."""
        key = queue.topic_tail[1:], queue.queue_id
        if self._queues.get(key) is queue:
            del self._queues[key]

    def clear(self) -> None:
        """Remove all queues."""
        self._queues.clear()

    def get(self, topic: bytes, queue_id: int) -> QueueState | None:
        """Return the queue of a topic and a queue id, or None."""
        return self._queues.get((topic, queue_id))
