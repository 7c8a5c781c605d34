"""Offsets of queues as Spark's checkpoint holds them.

    {"v": 1, "q": {"broker-a|TopicX|0": 123, ...}}                     where a batch ends
    {"v": 1, "q": {...}, "first": true}                                where a new query starts
    {"v": 1, "q": {...}, "from": {"broker-a|TopicX|0": 100, ...}}      an end with some of its start
    {"v": 1, "q": {...}, "to": {"broker-a|TopicX|0": 999, ...}}        an end with what is behind it

An offset is the next message to read. Keys are sorted, because Spark compares offsets as text.
Spark keeps only ends, so an end carries with it what its batch's start does not tell: all of it for
a first batch, since a query killed in that would otherwise begin at what "latest" means after the
restart; and the oldest offset of each queue that a query meets on its way. Where a limit left
messages for later, the end carries how far the queue reached: the lag of a broker that goes away is
known by that, also after a restart. Releases before this one do not look at it. A topic may hold a
``|``, a broker name and a queue id do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from cometmq.message.model import MessageQueue

VERSION: Final = 1

Offsets = Mapping[MessageQueue, int]
"""The next message to read of each queue."""


class BadOffset(ValueError):
    """A checkpoint's offset cannot be read by this release."""


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """A point of a stream. ``is_first`` marks a new query's start; ``origin`` is where the batch
    that ends here starts, in those queues where the end before does not say it; ``reached`` how far
    queues reached then, where that is further."""

    queues: Offsets
    is_first: bool = False
    origin: Offsets | None = field(default=None)
    reached: Offsets | None = field(default=None)

    def to_json(self) -> dict[str, object]:
        """What Spark writes into its checkpoint."""
        found: dict[str, object] = {"v": VERSION, "q": _to_keys(self.queues)}
        if self.is_first:
            found["first"] = True
        if self.origin is not None:
            found["from"] = _to_keys(self.origin)
        if self.reached is not None:
            found["to"] = _to_keys(self.reached)
        return found


def from_json(found: Mapping[str, object]) -> StreamOffset:
    """Read what :meth:`StreamOffset.to_json` gave. Raises BadOffset."""
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
    """The text of a queue: broker, topic, id."""
    return f"{queue.broker_name}|{queue.topic}|{queue.queue_id}"


def queue_of(key: str) -> MessageQueue:
    """The queue of a text. Raises BadOffset."""
    broker_name, _, rest = key.partition("|")
    topic, _, queue_id = rest.rpartition("|")
    if not (topic and queue_id.isascii() and queue_id.isdigit()):
        raise BadOffset(f"{key!r} in the checkpoint is no BROKER|TOPIC|QUEUE")
    return MessageQueue(topic, broker_name, int(queue_id))


def _to_keys(offsets: Offsets) -> dict[str, int]:
    return dict(sorted((key_of(queue), offset) for queue, offset in offsets.items()))


def _from_keys(found: object) -> dict[MessageQueue, int]:
    if not isinstance(found, dict):
        raise BadOffset(f"offsets in the checkpoint are {found!r}, no object")
    for key, offset in found.items():
        if not isinstance(offset, int) or isinstance(offset, bool) or offset < 0:
            raise BadOffset(f"offset of {key} in the checkpoint is {offset!r}")
    return {queue_of(key): offset for key, offset in found.items()}
