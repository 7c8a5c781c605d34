"""The options of the source, read and checked once; an error names the option.

Spark gives all options as text and their names in any case. An unknown option is an error, because
a misspelt limit would otherwise be none. The names that Spark itself may add (``path``) are errors
too: the source reads topics, not files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from enum import Enum, auto
from typing import Final, TypeVar

import msgspec

from cometmq.core.errors import CometError
from cometmq.filter.tags import TagFilter
from cometmq.filter.tags import parse as parse_tags
from cometmq.message.model import MessageQueue
from cometmq.spark.brokers.access import Access, addresses
from cometmq.spark.read.planning import TASK_ROWS_MAX

T = TypeVar("T")

EARLIEST_OFFSET: Final = -2
LATEST_OFFSET: Final = -1

KNOWN: Final = (
    "nameservers",
    "topic",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "maxOffsetsPerTrigger",
    "minPartitions",
    "maxRowsPerPartition",
    "failOnDataLoss",
    "filter",
    "requestTimeoutMs",
)
_ALIASES: Final = {"namesrv": "nameservers", "namesrvaddr": "nameservers"}


class BadOption(CometError, ValueError):
    """``option`` is missing, unknown, or has a value that cannot be used."""

    def __init__(self, option: str, problem: str) -> None:
        self.option = option
        self.problem = problem
        super().__init__(f"option {option!r}: {problem}")


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


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Everything a read needs to know. ``starting`` None means the default of its kind of read:
    earliest for a batch, latest for a stream."""

    access: Access
    topics: tuple[str, ...]
    starting: Point | None
    ending: Point | None
    max_offsets_per_trigger: int | None
    min_partitions: int
    max_rows_per_partition: int
    fail_on_data_loss: bool
    tag_filter: TagFilter


def parse(options: Mapping[str, str]) -> ReadOptions:
    """Read the options of ``spark.read`` or ``spark.readStream``. Raises BadOption."""
    given = _by_name(options)
    return ReadOptions(
        access=_access(given),
        topics=_required(given, "topic", _topics),
        starting=_point(given, "starting", Kind.EARLIEST),
        ending=_point(given, "ending", Kind.LATEST),
        max_offsets_per_trigger=_get(given, "maxOffsetsPerTrigger", _positive, None),
        min_partitions=_get(given, "minPartitions", _positive, 1),
        max_rows_per_partition=_get(given, "maxRowsPerPartition", _positive, TASK_ROWS_MAX),
        fail_on_data_loss=_get(given, "failOnDataLoss", _boolean, True),
        tag_filter=_get(given, "filter", parse_tags, parse_tags(None)),
    )


def _access(given: Mapping[str, str]) -> Access:
    return Access(
        nameservers=_required(given, "nameservers", addresses),
        request_timeout_ms=_get(given, "requestTimeoutMs", _positive, 10_000),
    )


def for_stream(options: ReadOptions) -> ReadOptions:
    """The options of a stream, which has no end. Raises BadOption when one is given."""
    if options.ending is not None:
        raise BadOption(
            "endingTimestamp" if options.ending.kind is Kind.TIME else "endingOffsets",
            "a stream has no end; use spark.read, or the trigger availableNow",
        )
    return options


def _by_name(options: Mapping[str, str]) -> dict[str, str]:
    names = {name.lower(): name for name in KNOWN}
    given: dict[str, str] = {}
    for key, value in options.items():
        lowered = key.lower()
        name = _ALIASES.get(lowered) or names.get(lowered)
        if name is None:
            near = get_close_matches(lowered, names, n=1)
            hint = f"did you mean {names[near[0]]!r}?" if near else f"known are {', '.join(KNOWN)}"
            raise BadOption(key, f"no such option; {hint}")
        given[name] = value
    return given


def _get(given: Mapping[str, str], name: str, read: Callable[[str], T], default: T) -> T:
    text = given.get(name)
    return default if text is None else _read(name, text, read)


def _required(given: Mapping[str, str], name: str, read: Callable[[str], T]) -> T:
    if name not in given:
        raise BadOption(name, "is required")
    return _read(name, given[name], read)


def _read(name: str, text: str, read: Callable[[str], T]) -> T:
    try:
        return read(text.strip())
    except ValueError as error:
        raise BadOption(name, str(error)) from None


def _topics(text: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not found:
        raise ValueError("names no topic")
    return found


def _positive(text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() else 0
    if number <= 0:
        raise ValueError(f"{text!r} is no positive number")
    return number


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"{text!r} is neither true nor false")
    return text.lower() == "true"


def _point(given: Mapping[str, str], side: str, otherwise: Kind) -> Point | None:
    offsets, timestamp = f"{side}Offsets", f"{side}Timestamp"
    if offsets in given and timestamp in given:
        raise BadOption(timestamp, f"cannot be given together with {offsets}")
    if timestamp in given:
        return Point(Kind.TIME, moment_ms=_read(timestamp, given[timestamp], moment_ms))
    if offsets not in given:
        return None
    return _read(offsets, given[offsets], lambda text: _offsets(text, otherwise))


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
