"""Points in queues as options name them: an edge, offsets, a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, auto
from typing import Final

import msgspec

from cometmq.message.model import MessageQueue
from cometmq.spark.options import Given, only_one, parsed

EARLIEST_OFFSET: Final = -2
LATEST_OFFSET: Final = -1


class Kind(Enum):
    """How a point in the queues is given."""

    EARLIEST = auto()
    LATEST = auto()
    OFFSETS = auto()
    TIME = auto()


@dataclass(frozen=True, slots=True)
class Point:
    """A place in every queue. ``offsets`` may hold -2 (earliest) and -1 (latest); queues that it
    does not name are taken at ``otherwise``."""

    kind: Kind
    offsets: Mapping[MessageQueue, int] | None = None
    moment_ms: int = 0
    otherwise: Kind = Kind.EARLIEST


def point(given: Given, side: str, otherwise: Kind) -> Point | None:
    """The point of ``side`` (starting or ending), None when no option names it.

    Raises BadOption.
    """
    offsets, timestamp = f"{side}Offsets", f"{side}Timestamp"
    chosen = only_one(given, (offsets, timestamp))
    if chosen is None:
        return None
    if chosen == timestamp:
        return Point(Kind.TIME, moment_ms=parsed(timestamp, given[timestamp], moment_ms))
    return parsed(offsets, given[offsets], lambda text: _offsets(text, otherwise))


def _offsets(text: str, otherwise: Kind) -> Point:
    named = {"earliest": Kind.EARLIEST, "latest": Kind.LATEST}.get(text.lower())
    if named is not None:
        return Point(named)
    try:
        found = msgspec.json.decode(text, type=dict[str, dict[str, dict[str, int]]])
    except msgspec.MsgspecError as error:
        form = '{"topic": {"broker": {"0": 123}}}'
        raise ValueError(f"is neither earliest nor latest nor like {form}: {error}") from None
    queues: dict[MessageQueue, int] = {}
    for topic, brokers in found.items():
        for broker, ids in brokers.items():
            for queue_id, offset in ids.items():
                queues[_queue(topic, broker, queue_id)] = _offset(offset)
    return Point(Kind.OFFSETS, queues, otherwise=otherwise)


def _queue(topic: str, broker: str, queue_id: str) -> MessageQueue:
    if not (queue_id.isascii() and queue_id.isdigit()):
        raise ValueError(f"{queue_id!r} of {topic} on {broker} is no queue id")
    return MessageQueue(topic, broker, int(queue_id))


def _offset(offset: int) -> int:
    if offset < EARLIEST_OFFSET:
        raise ValueError(f"{offset} is no offset; -2 means earliest, -1 latest")
    return offset


def moment_ms(text: str) -> int:
    """Milliseconds since the epoch of a number of them, or of an ISO 8601 time (UTC unless it
    says otherwise). Raises ValueError."""
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is neither milliseconds nor an ISO 8601 time") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)
