"""Filters that Spark pushes down to a batch read.

Spark offers filters, and the read uses those that reduce the messages to read. A filter that is
applied exactly here is not evaluated again by Spark; all others are.

| filter on | effect | exact |
|---|---|---|
| broker_name, queue_id | skips whole queues | yes |
| topic | skips whole queues | no: an unreadable record has no topic |
| queue_offset | shortens the ranges of queues | yes, except IN |
| store_timestamp | shortens the ranges of queues | no: see CLOCK_SLACK_MS |
| tags | is sent to the broker | yes |

A broker whose clock was set back stores times out of order. Ranges by store time are therefore
CLOCK_SLACK_MS longer on both sides, so that a step back of up to this loses no row.

Pushdown is off unless the user enables it: Spark 4.3 caches the plan with the last pushed filters
for a whole DataFrame, and a later query of that DataFrame without filters returns those rows only.

The module needs the filter classes of pyspark 4.1. It does no I/O.
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
"""The largest step back of a broker's clock that loses no rows of a read by store time."""

TAGS_MAX: Final = 64
"""A filter by more tags than this is left to Spark: the request to the broker would be long."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_US: Final = timedelta(microseconds=1)
_QUEUE_COLUMNS: Final[dict[str, type]] = {"topic": str, "broker_name": str, "queue_id": int}
_NEVER_NULL: Final = frozenset({"broker_name", "queue_id", "queue_offset", "store_timestamp"})
#: Returns for each queue the first offset that was stored at a time (ms) or later.
AtTime = Callable[[int, Sequence["MessageQueue"]], Mapping["MessageQueue", int]]


@dataclass(frozen=True, slots=True)
class Bounds:
    """The integers ``low <= value < high``; None means no bound."""

    low: int | None = None
    high: int | None = None

    def within(self, other: Bounds) -> Bounds:
        """Return the intersection of both."""
        lows = [low for low in (self.low, other.low) if low is not None]
        highs = [high for high in (self.high, other.high) if high is not None]
        return Bounds(max(lows, default=None), min(highs, default=None))


@dataclass(frozen=True, slots=True)
class Pushed:
    """The effect of the pushed filters on a read.

    ``of_queues`` are the filters on topic, broker_name and queue_id. ``offsets`` and ``store_ms``
    are bounds for the messages of each queue; ``row_filter`` selects among these messages.
    """

    row_filter: RowFilter = field(default_factory=RowFilter)
    of_queues: tuple[Filter, ...] = ()
    offsets: Bounds = Bounds()
    store_ms: Bounds = Bounds()

    def cut(self, start: Offsets, end: Offsets, at_time: AtTime) -> tuple[Offsets, Offsets]:
        """Return the start and end offsets of the remaining queues, within the bounds."""
        queues = [queue for queue in end if all(_accepts(each, queue) for each in self.of_queues)]
        if self.row_filter.matches_none:
            queues = []
        starts = {queue: start.get(queue, 0) for queue in queues}
        ends = {queue: end[queue] for queue in queues}
        _raise_to(starts, self.offsets.low)
        _lower_to(ends, self.offsets.high)
        left = [queue for queue in queues if starts[queue] < ends[queue]]
        if left and self.store_ms.low is not None:
            found = at_time(max(self.store_ms.low - CLOCK_SLACK_MS, 0), left)
            starts |= {queue: max(starts[queue], found[queue]) for queue in left}
        if left and self.store_ms.high is not None:
            found = at_time(max(self.store_ms.high + CLOCK_SLACK_MS, 0), left)
            ends |= {queue: min(ends[queue], found[queue]) for queue in left}
        return starts, ends


def split_filters(filters: Iterable[Filter], row_filter: RowFilter) -> tuple[Pushed, list[Filter]]:
    """Return the effect of the filters, and the filters that Spark must still evaluate.

    ``row_filter`` is the filter of the read's own options.
    """
    pushed = Pushed(row_filter)
    rest: list[Filter] = []
    for one in filters:
        pushed, is_exact = _add(pushed, one)
        if not is_exact:
            rest.append(one)
    return pushed, rest


class Push:
    """A callable that a reader sets as its attribute ``pushFilters``.

    While ``spark.sql.python.filterPushdown.enabled`` is off, which is the default, Spark refuses a
    reader whose class overrides pushFilters. It recognizes an override by the method's
    ``__func__``. This object has the base class's function there, so Spark accepts the reader. If
    the setting is on, Spark calls this object.
    """

    def __init__(self, take: Callable[[Iterable[Filter]], list[Filter]]) -> None:
        self.__func__ = DataSourceReader.pushFilters
        self._take = take

    def __call__(self, filters: Iterable[Filter]) -> Iterable[Filter]:
        """Return the filters that Spark must still evaluate."""
        return self._take(filters)


def _add(pushed: Pushed, one: Filter) -> tuple[Pushed, bool]:
    """Return ``pushed`` with one more filter, and whether that filter is applied exactly."""
    column = _column(one)
    if isinstance(one, IsNotNull):
        return pushed, column in _NEVER_NULL
    if column in _QUEUE_COLUMNS:
        if not _is_supported(one, _QUEUE_COLUMNS[column]):
            return pushed, False
        return replace(pushed, of_queues=(*pushed.of_queues, one)), column != "topic"
    if column == "queue_offset":
        bounds, is_exact = _bounds(one, lambda value: _rounded(value, 1))
        return replace(pushed, offsets=pushed.offsets.within(bounds)), is_exact
    if column == "store_timestamp":
        bounds, _ = _bounds(one, _milliseconds)
        return replace(pushed, store_ms=pushed.store_ms.within(bounds)), False
    if column == "tags" and pushed.row_filter.sql is None:
        allowed = _tags_allowed(one)
        if allowed is not None:
            return replace(pushed, row_filter=pushed.row_filter.narrowed(allowed)), True
    return pushed, False


def _column(one: Filter) -> str:
    """Return the column of a filter; an empty text for a field of a struct."""
    if isinstance(one, Not):
        return _column(one.child)
    path: tuple[str, ...] = getattr(one, "attribute", ())
    return path[0] if len(path) == 1 else ""


def _is_supported(one: Filter, kind: type) -> bool:
    """Return whether a filter on a column of this type can be applied here."""
    if isinstance(one, Not):
        return _is_supported(one.child, kind)
    values = one.value if isinstance(one, In) else (getattr(one, "value", None),)
    # Exact types only: in Python a bool is an int, and None equals None. Spark has other rules, so
    # such comparisons are left to it.
    return type(one) in _COMPARISONS and all(type(each) is kind for each in values)


def _accepts(one: Filter, queue: MessageQueue) -> bool:
    if isinstance(one, Not):
        return not _accepts(one.child, queue)
    own = getattr(queue, _column(one))
    return _COMPARISONS[type(one)](own, getattr(one, "value"))  # noqa: B009


_COMPARISONS: Final[dict[type[Filter], Callable[..., bool]]] = {
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

    ``read`` returns a filter's value rounded down and rounded up to integers, or None if the value
    does not have the column's type.
    """
    if isinstance(one, In):
        values = [read(value) for value in one.value]
        known = [value for value in values if value is not None]
        if not known or len(known) < len(values):
            return Bounds(), False
        return Bounds(min(up for _, up in known), max(down for down, _ in known) + 1), False
    value = read(getattr(one, "value", None))
    if value is None:
        return Bounds(), False
    down, up = value
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


def _rounded(value: object, unit: int) -> tuple[int, int] | None:
    if type(value) is not int:
        return None
    return value // unit, -(-value // unit)


def _milliseconds(value: object) -> tuple[int, int] | None:
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    return _rounded((value - _EPOCH) // _US, 1000)


def _tags_allowed(one: Filter) -> tuple[str, ...] | None:
    """Return the tags that a filter allows; None if the filter cannot be sent to a broker."""
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
    """Return whether a tag expression can contain the tag, and its hash is the same everywhere.

    The hash may differ for a tag in which invalid bytes were replaced by U+FFFD.
    """
    return (
        isinstance(tag, str)
        and tag != "*"
        and bool(tag)
        and tag == tag.strip()
        and tag.isprintable()
        and "|" not in tag
        and "\ufffd" not in tag
    )


def _raise_to(offsets: dict[MessageQueue, int], low: int | None) -> None:
    if low is not None:
        offsets.update({queue: max(offset, low) for queue, offset in offsets.items()})


def _lower_to(offsets: dict[MessageQueue, int], high: int | None) -> None:
    if high is not None:
        offsets.update({queue: min(offset, high) for queue, offset in offsets.items()})
