"""Filters that Spark pushes down to a batch read: selects those that reduce the messages to read.

Filters on the columns of a queue (topic, broker_name, queue_id) skip whole queues. Bounds of
queue_offset and store_timestamp cut the ranges of the other queues. The broker compares tags.
Filters that are applied exactly here are not evaluated again by Spark. All others are returned to
Spark, also those that only skip some messages:

- topic, because an unreadable record has none;
- store_timestamp, because a broker whose clock was set back stores out of order: ranges are wider
  by CLOCK_SLACK_MS, so that up to this shift no row is missed;
- keys and everything else.

Off unless the user enables it: Spark 4.3 caches the plan of the last pushed filters for a whole
DataFrame, and a later query of it that pushes nothing gets those rows.

Pure functions: filters in, bounds out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from cometmq.spark.read.filters import RowFilter

if TYPE_CHECKING:
    from cometmq.message.model import MessageQueue
    from cometmq.spark.read.checkpoint import Offsets

CLOCK_SLACK_MS: Final = 60_000
"""The largest step back of a broker's clock that costs no rows."""

TAGS_MAX: Final = 64
"""More tags than this are not worth a longer request to the broker."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_US: Final = timedelta(microseconds=1)
_QUEUE_COLUMNS: Final[dict[str, type]] = {"topic": str, "broker_name": str, "queue_id": int}
_NEVER_NULL: Final = frozenset({"broker_name", "queue_id", "queue_offset", "store_timestamp"})

AtTime = Callable[[int, Sequence["MessageQueue"]], Mapping["MessageQueue", int]]


@dataclass(frozen=True, slots=True)
class Bounds:
    """The whole numbers ``low <= value < high``; None means no bound."""

    low: int | None = None
    high: int | None = None

    def within(self, other: Bounds) -> Bounds:
        """Return the intersection of both."""
        lows = [low for low in (self.low, other.low) if low is not None]
        highs = [high for high in (self.high, other.high) if high is not None]
        return Bounds(max(lows, default=None), min(highs, default=None))


@dataclass(frozen=True, slots=True)
class Pushed:
    """The part of a read that the filters leave: queues, offsets, store times in milliseconds,
    rows."""

    row_filter: RowFilter = field(default_factory=RowFilter)
    of_queues: tuple[Filter, ...] = ()
    offsets: Bounds = Bounds()
    store_ms: Bounds = Bounds()

    def cut(self, start: Offsets, end: Offsets, at_time: AtTime) -> tuple[Offsets, Offsets]:
        """Return the start and the end of each queue that passes the filters.

        ``at_time`` returns for each queue the first offset stored at a time (ms) or later.
        """
        queues = [queue for queue in end if all(_takes(one, queue) for one in self.of_queues)]
        if self.row_filter.matches_none:
            queues = []
        starts = {queue: start.get(queue, 0) for queue in queues}
        ends = {queue: end[queue] for queue in queues}
        _raise(starts, self.offsets.low)
        _lower(ends, self.offsets.high)
        left = [queue for queue in queues if starts[queue] < ends[queue]]
        if left and self.store_ms.low is not None:
            found = at_time(max(self.store_ms.low - CLOCK_SLACK_MS, 0), left)
            starts |= {queue: max(starts[queue], found[queue]) for queue in left}
        if left and self.store_ms.high is not None:
            found = at_time(max(self.store_ms.high + CLOCK_SLACK_MS, 0), left)
            ends |= {queue: min(ends[queue], found[queue]) for queue in left}
        return starts, ends


def split(filters: Iterable[Filter], row_filter: RowFilter) -> tuple[Pushed, list[Filter]]:
    """Return the filters that are applied here, and those that Spark must still evaluate."""
    pushed = Pushed(row_filter)
    rest: list[Filter] = []
    for one in filters:
        pushed, is_exact = _add(pushed, one)
        if not is_exact:
            rest.append(one)
    return pushed, rest


class Push:
    """A callable attribute ``pushFilters`` for a reader.

    Spark refuses a reader whose class overrides pushFilters while
    ``spark.sql.python.filterPushdown.enabled`` is off, which is the default of a session. It
    inspects the method's ``__func__``. This object has the base class's function there, and is
    still called if the setting is on.
    """

    def __init__(self, take: Callable[[Iterable[Filter]], list[Filter]]) -> None:
        self.__func__ = DataSourceReader.pushFilters
        self._take = take

    def __call__(self, filters: Iterable[Filter]) -> Iterable[Filter]:
        """Return the filters that Spark must still evaluate."""
        return self._take(filters)


def _add(pushed: Pushed, one: Filter) -> tuple[Pushed, bool]:
    column = _column(one)
    if isinstance(one, IsNotNull):
        return pushed, column in _NEVER_NULL
    if column in _QUEUE_COLUMNS:
        if not _can_take(one, _QUEUE_COLUMNS[column]):
            return pushed, False
        return replace(pushed, of_queues=(*pushed.of_queues, one)), column != "topic"
    if column == "queue_offset":
        bounds, is_exact = _bounds(one, lambda value: _whole(value, 1))
        return replace(pushed, offsets=pushed.offsets.within(bounds)), is_exact
    if column == "store_timestamp":
        bounds, _ = _bounds(one, _milliseconds)
        return replace(pushed, store_ms=pushed.store_ms.within(bounds)), False
    if column == "tags" and pushed.row_filter.sql is None:
        tags = _tags(one)
        if tags is not None:
            return replace(pushed, row_filter=pushed.row_filter.narrowed(tags)), True
    return pushed, False


def _column(one: Filter) -> str:
    if isinstance(one, Not):
        return _column(one.child)
    path: tuple[str, ...] = getattr(one, "attribute", ())
    return path[0] if len(path) == 1 else ""


def _can_take(one: Filter, kind: type) -> bool:
    """Return whether a filter on a column of this type can be applied here."""
    if isinstance(one, Not):
        return _can_take(one.child, kind)
    values = one.value if isinstance(one, In) else (getattr(one, "value", None),)
    # A bool is an int in Python, and null equals nothing: Spark makes such comparisons.
    return type(one) in _VERDICTS and all(type(each) is kind for each in values)


def _takes(one: Filter, queue: MessageQueue) -> bool:
    if isinstance(one, Not):
        return not _takes(one.child, queue)
    own = getattr(queue, _column(one))
    return _VERDICTS[type(one)](own, getattr(one, "value"))  # noqa: B009


_VERDICTS: Final[dict[type[Filter], Callable[..., bool]]] = {
    EqualTo: lambda own, value: own == value,
    EqualNullSafe: lambda own, value: own == value,
    In: lambda own, values: own in values,
    GreaterThan: lambda own, value: own > value,
    GreaterThanOrEqual: lambda own, value: own >= value,
    LessThan: lambda own, value: own < value,
    LessThanOrEqual: lambda own, value: own <= value,
    StringStartsWith: lambda own, value: own.startswith(value),
    StringEndsWith: lambda own, value: own.endswith(value),
    StringContains: lambda own, value: value in own,
}


def _bounds(one: Filter, read: Callable[[object], tuple[int, int] | None]) -> tuple[Bounds, bool]:
    """Return the bounds that a filter sets, and whether they express the whole filter.

    ``read`` returns the last whole number up to a value and the first one from it on.
    """
    if isinstance(one, In):
        places = [read(value) for value in one.value]
        known = [place for place in places if place is not None]
        if not known or len(known) < len(places):
            return Bounds(), False
        return Bounds(min(up for _, up in known), max(down for down, _ in known) + 1), False
    place = read(getattr(one, "value", None))
    if place is None:
        return Bounds(), False
    down, up = place
    match one:
        case EqualTo() | EqualNullSafe():
            return Bounds(up, down + 1), True
        case GreaterThan():
            return Bounds(low=down + 1), True
        case GreaterThanOrEqual():
            return Bounds(low=up), True
        case LessThan():
            return Bounds(high=up), True
        case LessThanOrEqual():
            return Bounds(high=down + 1), True
    return Bounds(), False


def _whole(value: object, unit: int) -> tuple[int, int] | None:
    if type(value) is not int:
        return None
    return value // unit, -(-value // unit)


def _milliseconds(value: object) -> tuple[int, int] | None:
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    return _whole((value - _EPOCH) // _US, 1000)


def _tags(one: Filter) -> tuple[str, ...] | None:
    """Return the tags that a filter allows, or None unless a broker can be asked for all of
    them."""
    if isinstance(one, In):
        values = one.value
    elif isinstance(one, (EqualTo, EqualNullSafe)):
        values = (one.value,)
    else:
        return None
    named = tuple(value for value in values if value is not None)
    if isinstance(one, EqualNullSafe) and not named:
        return None
    return named if len(named) <= TAGS_MAX and all(map(_can_be_asked, named)) else None


def _can_be_asked(tag: object) -> bool:
    """Return whether an expression can name the tag and all parties compute the same hash of it.
    Hashes differ for text with replaced broken bytes."""
    return (
        isinstance(tag, str)
        and tag != "*"
        and bool(tag)
        and tag == tag.strip()
        and tag.isprintable()
        and "|" not in tag
        and "\ufffd" not in tag
    )


def _raise(offsets: dict[MessageQueue, int], low: int | None) -> None:
    if low is not None:
        offsets.update({queue: max(offset, low) for queue, offset in offsets.items()})


def _lower(offsets: dict[MessageQueue, int], high: int | None) -> None:
    if high is not None:
        offsets.update({queue: min(offset, high) for queue, offset in offsets.items()})
