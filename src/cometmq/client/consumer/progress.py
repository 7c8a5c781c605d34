"""Offsets up to which a polling consumer has processed its queues. Pure.

The messages of a poll are in progress until the next poll begins; only then they count as
processed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cometmq.client.consumer.inflight import InFlight
    from cometmq.message.model import MessageQueue, StoredMessage


class Progress:
    """Progress in all queues of one consumer."""

    def __init__(self) -> None:
        #: Offset of the first message of each queue that is in progress.
        self._open: dict[InFlight, int] = {}

    def begin(self, inflight: InFlight, message: StoredMessage) -> None:
        """Record that a message was returned by a poll."""
        self._open.setdefault(inflight, message.queue_offset)

    def finish(self) -> None:
        """Record that all messages returned so far are processed."""
        self._open.clear()

    def forget(self, inflight: InFlight) -> None:
        """Drop the state of a queue that was given up or moved to another offset."""
        self._open.pop(inflight, None)

    def done(self, inflight: InFlight) -> int:
        """Return the offset before which all messages of the queue are processed."""
        return self._open.get(inflight, inflight.committable)

    def undone(self) -> dict[MessageQueue, int]:
        """Return the first offset in progress of each queue that has messages in progress."""
        return {
            inflight.queue: offset
            for inflight, offset in self._open.items()
            if not inflight.dropped
        }

    def positions(self, inflights: Iterable[InFlight]) -> dict[MessageQueue, int]:
        """Return the next offset that a poll returns of each of these queues."""
        return {inflight.queue: inflight.committable for inflight in inflights}
