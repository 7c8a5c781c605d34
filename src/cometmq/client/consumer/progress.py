"""How far a consumer that polls is done with its queues. Pure.

What a poll gave is in work until the next poll begins: it is done only then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cometmq.client.consumer.inflight import InFlight
    from cometmq.message.model import MessageQueue, StoredMessage


class Progress:
    """Of all queues of one consumer."""

    def __init__(self) -> None:
        #: The first message of each queue that is in work.
        self._open: dict[InFlight, int] = {}

    def begin(self, inflight: InFlight, message: StoredMessage) -> None:
        """A message was given."""
        self._open.setdefault(inflight, message.queue_offset)

    def finish(self) -> None:
        """All that was given is done."""
        self._open.clear()

    def forget(self, inflight: InFlight) -> None:
        """The queue went elsewhere, or is read elsewhere."""
        self._open.pop(inflight, None)

    def done(self, inflight: InFlight) -> int:
        """Everything before this offset is done."""
        return self._open.get(inflight, inflight.committable)

    def undone(self) -> dict[MessageQueue, int]:
        """Where the queues began of which something is in work."""
        return {
            inflight.queue: offset
            for inflight, offset in self._open.items()
            if not inflight.dropped
        }

    def positions(self, inflights: Iterable[InFlight]) -> dict[MessageQueue, int]:
        """Where the next poll reads in these queues."""
        return {inflight.queue: inflight.committable for inflight in inflights}
