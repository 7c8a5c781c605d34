"""Points in queues as options name them: an edge, offsets, times, or a group's committed
offsets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import Final

import msgspec

from cometmq.message.model import MessageQueue
from cometmq.spark.options import BadOption, Given, get, one_of, only_one, parsed, some_text

EARLIEST_OFFSET: Final = -2
LATEST_OFFSET: Final = -1

STRATEGY: Final = "startingOffsetsByTimestampStrategy"
OPTIONS: Final = (
    *("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp", STRATEGY),
    *("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"),
    *("consumerGroup", "uncommittedOffsets"),
)


class Edge(Enum):
    """The beginning or the end of a queue."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """Offsets of queues; -2 is the earliest and -1 the latest. Other queues are at
    ``otherwise``."""

    by_queue: Mapping[MessageQueue, int]
    otherwise: Edge


@dataclass(frozen=True, slots=True)
class AtTimes:
    """The first message stored at a moment (ms since the epoch) or later.

    There is one moment for all queues, or one per queue with the other queues at ``otherwise``. A
    queue without such a message is at its end, or an error if ``is_strict``.
    """

    everywhere_ms: int | None = None
    by_queue: Mapping[MessageQueue, int] = field(default_factory=dict)
    otherwise: Edge = Edge.EARLIEST
    is_strict: bool = False


@dataclass(frozen=True, slots=True)
class AtGroup:
    """The committed offsets of a consumer group. Queues without one are at ``otherwise``."""

    group: str
    otherwise: Edge


Point = Edge | AtOffsets | AtTimes | AtGroup


@dataclass(frozen=True, slots=True)
class Named:
    """A point and the option that named it, for error messages."""

    option: str
    point: Point


def starting(given: Given) -> Named | None:
    """Return the point where a read starts, or None if no option names it. Raises BadOption."""
    found = _named(given, "starting", Edge.EARLIEST)
    if STRATEGY in given and (found is None or not isinstance(found.point, AtTimes)):
        raise BadOption(STRATEGY, "needs startingTimestamp or startingOffsetsByTimestamp")
    if "uncommittedOffsets" in given and (found is None or not isinstance(found.point, AtGroup)):
        raise BadOption("uncommittedOffsets", "needs startingOffsets=group")
    return found


def ending(given: Given) -> Named | None:
    """Return the point where a batch ends, or None if no option names it. Raises BadOption."""
    return _named(given, "ending", Edge.LATEST)


def in_order(start: Named | None, end: Named | None) -> None:
    """Check the order of two points as far as possible without a broker. Raises BadOption."""
    if start is None or end is None:
        return
    first, last = start.point, end.point
    if not (isinstance(first, AtTimes) and isinstance(last, AtTimes)):
        return
    if first.everywhere_ms is None or last.everywhere_ms is None:
        return
    if first.everywhere_ms > last.everywhere_ms:
        raise BadOption(end.option, f"is before {start.option}")


def _named(given: Given, side: str, otherwise: Edge) -> Named | None:
    offsets, moment, moments = f"{side}Offsets", f"{side}Timestamp", f"{side}OffsetsByTimestamp"
    option = only_one(given, (offsets, moment, moments))
    if option is None:
        return None
    if option == offsets:
        return Named(option, parsed(option, given[option], _offsets(given, otherwise)))
    is_strict = side == "starting" and get(given, STRATEGY, _is_error, False)
    if option == moment:
        everywhere_ms = parsed(option, given[option], moment_ms)
        return Named(option, AtTimes(everywhere_ms, is_strict=is_strict))
    by_queue = parsed(option, given[option], _moments)
    return Named(option, AtTimes(None, by_queue, otherwise, is_strict))


def _is_error(text: str) -> bool:
    return one_of("error", "latest")(text) == "error"


def _offsets(given: Given, otherwise: Edge) -> Callable[[str], Point]:
    def read(text: str) -> Point:
        if text.lower() in ("earliest", "latest"):
            return Edge(text.lower())
        if text.lower() == "group" and otherwise is Edge.EARLIEST:
            return _group(given)
        return AtOffsets(by_queue(text, _offset), otherwise)

    return read


def _group(given: Given) -> AtGroup:
    group = get(given, "consumerGroup", some_text, None)
    if group is None:
        raise BadOption("consumerGroup", "is required with startingOffsets=group")
    edge = get(given, "uncommittedOffsets", one_of("earliest", "latest"), "earliest")
    return AtGroup(group, Edge(edge))


def by_queue(text: str, read: Callable[[int | str], int]) -> dict[MessageQueue, int]:
    """Parse numbers per queue from JSON like ``{"topic": {"broker": {"0": 123}}}``. Raises
    ValueError."""
    try:
        found = msgspec.json.decode(text, type=dict[str, dict[str, dict[str, int | str]]])
    except msgspec.MsgspecError as error:
        form = '{"topic": {"broker": {"0": 123}}}'
        raise ValueError(f"is neither a known word nor like {form}: {error}") from None
    return {
        queue(topic, broker, queue_id): read(value)
        for topic, brokers in found.items()
        for broker, ids in brokers.items()
        for queue_id, value in ids.items()
    }


def queue(topic: str, broker: str, queue_id: str) -> MessageQueue:
    """Return the queue with an id given as text. Raises ValueError."""
    if not (queue_id.isascii() and queue_id.isdigit()):
        raise ValueError(f"{queue_id!r} of {topic} on {broker} is not a queue id")
    return MessageQueue(topic, broker, int(queue_id))


def _offset(offset: int | str) -> int:
    if not isinstance(offset, int) or offset < EARLIEST_OFFSET:
        raise ValueError(f"{offset!r} is not an offset; -2 means earliest, -1 latest")
    return offset


def _moments(text: str) -> dict[MessageQueue, int]:
    return by_queue(text, lambda moment: moment_ms(str(moment)))


def moment_ms(text: str) -> int:
    """Parse a time into milliseconds since the epoch: a number of them, or an ISO 8601 time (UTC
    unless it says otherwise). Raises ValueError."""
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is neither milliseconds nor an ISO 8601 time") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)
