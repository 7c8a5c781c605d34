"""Converts queues to and from the keys of protocol bodies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from cometmq.core.errors import CometError
from cometmq.message.model import MessageQueue
from cometmq.protocol.bodies import QueueKey, queue_table

T = TypeVar("T")


def key_of(queue: MessageQueue) -> QueueKey:
    """Return a queue as the key that bodies carry."""
    return QueueKey(queue.topic, queue.broker_name, queue.queue_id)


def queue_of(key: QueueKey) -> MessageQueue:
    """Return the queue that a key of a body names."""
    return MessageQueue(key.topic, key.broker_name, key.queue_id)


def by_queue(table: Mapping[str, T]) -> dict[MessageQueue, T]:
    """Return a table whose JSON keys are queues as a table by queue.

    Raises CometError for other keys.
    """
    found: dict[MessageQueue, T] = {}
    for key, value in queue_table(table).items():
        if key.queue_id < 0:
            raise CometError(f"queue id {key.queue_id} in an offset table")
        found[queue_of(key)] = value
    return found
