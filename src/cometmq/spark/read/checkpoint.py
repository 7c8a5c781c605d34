"""Offsets of queues in the form of Spark's checkpoint.

    {"v": 1, "q": {"broker-a|TopicX|0": 123, ...}}                     the end of a batch
    {"v": 1, "q": {...}, "first": true}                                the start of a new query
    {"v": 1, "q": {...}, "from": {"broker-a|TopicX|0": 100, ...}}      an end with part of its start
    {"v": 1, "q": {...}, "to": {"broker-a|TopicX|0": 999, ...}}        an end with later messages

An offset is that of the next message to read. Keys are sorted, because Spark compares offsets as
text. A topic may contain a ``|``; a broker name and a queue id do not.

Spark stores only the ends of batches; a batch starts at the end of the previous one. ``from`` adds
the starts that the previous end lacks. In the first batch these are the starts of all queues: after
a restart, "latest" would resolve to a later point. In a later batch they are the oldest offsets of
newly found queues.

``to`` has the end of each queue in which a limit left messages for later. From it, the lag of a
broker that goes away stays known, also after a restart. Earlier releases ignore ``to``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from cometmq.message.model import MessageQueue

VERSION: Final = 1

Offsets = Mapping[MessageQueue, int]
"""The next offset to read of each queue."""


class BadOffset(ValueError):
    """Raised if this release cannot read an offset in a checkpoint."""


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The end of a micro-batch, or the start of a new query if ``is_first``.

    ``queues`` has the next offset to read of each queue. ``origin`` ("from" in JSON) is the start
    of the batch for queues that the previous end lacks. ``reached`` ("to") is the end of each queue
    that had more messages.
    """

    queues: Offsets
    is_first: bool = False
    origin: Offsets | None = field(default=None)
    reached: Offsets | None = field(default=None)

    def to_json(self) -> dict[str, object]:
        """Return the JSON object that Spark writes into its checkpoint."""
        found: dict[str, object] = {"v": VERSION, "q": _to_keys(self.queues)}
        if self.is_first:
            found["first"] = True
        if self.origin is not None:
            found["from"] = _to_keys(self.origin)
        if self.reached is not None:
            found["to"] = _to_keys(self.reached)
        return found


def from_json(found: Mapping[str, object]) -> StreamOffset:
    """Parse the result of :meth:`StreamOffset.to_json`. Raises BadOffset."""
    version = found.get("v")
    if version != VERSION:
        raise BadOffset(f"offset version {version!r} in the checkpoint; this release reads 1")
    origin, reached = found.get("from"), found.get("to")
    return StreamOffset(
        _from_keys(found.get("q")),
        found.get("first") is True,
        None if origin is None else _from_keys(origin),
        None if reached is None else _from_keys(reached),
    )


def key_of(queue: MessageQueue) -> str:
    """Return the key of a queue: ``BROKER|TOPIC|QUEUE``."""
    return f"{queue.broker_name}|{queue.topic}|{queue.queue_id}"


def queue_of(key: str) -> MessageQueue:
    """Parse the key of a queue. Raises BadOffset."""
    broker_name, _, rest = key.partition("|")
    topic, _, queue_id = rest.rpartition("|")
    if not (topic and queue_id.isascii() and queue_id.isdigit()):
        raise BadOffset(f"{key!r} in the checkpoint is not BROKER|TOPIC|QUEUE")
    return MessageQueue(topic, broker_name, int(queue_id))


def _to_keys(offsets: Offsets) -> dict[str, int]:
    return dict(sorted((key_of(queue), offset) for queue, offset in offsets.items()))


def _from_keys(found: object) -> dict[MessageQueue, int]:
    if not isinstance(found, dict):
        raise BadOffset(f"offsets in the checkpoint are {found!r}, not an object")
    for key, offset in found.items():
        if not isinstance(offset, int) or isinstance(offset, bool) or offset < 0:
            raise BadOffset(f"offset of {key} in the checkpoint is {offset!r}")
    return {queue_of(key): offset for key, offset in found.items()}
