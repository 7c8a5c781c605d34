"""The options of a read from store directories, parsed and checked once, and the range of each
queue that they request. An error names the option.

The options mean the same as in a read over the network. Options for connecting to a cluster or for
the progress of a stream are unknown here. The module does no I/O, except through the argument
``bounds``, which looks up a queue's files.
"""

from __future__ import annotations

import os.path
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from cometmq.message.model import MessageQueue
from cometmq.spark.options import (
    BadOption,
    boolean,
    by_name,
    get,
    names,
    only_one,
    positive,
    required,
    some_text,
)
from cometmq.spark.read import corrupt, filters, positions, topics
from cometmq.spark.read.positions import EARLIEST_OFFSET, LATEST_OFFSET, AtOffsets, AtTimes, Edge
from cometmq.spark.read.topics import Pattern
from cometmq.spark.store.urls import checked, place_of
from cometmq.spark.values import options as values

if TYPE_CHECKING:
    from cometmq.spark.read.corrupt import CorruptOptions
    from cometmq.spark.read.filters import RowFilter
    from cometmq.spark.read.positions import NamedPosition
    from cometmq.spark.read.topics import TopicChoice
    from cometmq.spark.values.options import ValueOptions


SPLIT_BYTES: Final = 128 << 20
"""Default size of a task's part of the log: large enough that the cost of a task is small, and a
fraction of a log file of 1 GiB."""

KNOWN: Final = (
    "store",
    "brokerName",
    *topics.OPTIONS,
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "minPartitions",
    "maxBytesPerPartition",
    "failOnDataLoss",
    "dataLossReport",
    "onlyQueued",
    *filters.OPTIONS,
    *corrupt.OPTIONS,
    *values.OPTIONS,
)
ALL: Final = Pattern(".*")
END: Final = (1 << 63) - 1

Key = tuple[str, int]
"""Topic and queue id: a queue of one store."""

Bounds = Callable[[Key], tuple[int, int]]
"""Function that returns the offset of a queue's first message and the offset after its last one."""


@dataclass(frozen=True, slots=True)
class StoreRoot:
    """A store directory, and the name of its broker. ``path`` may be a URL with credentials, so
    ``repr`` leaves it out."""

    path: str = field(repr=False)
    broker_name: str


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """All options of a read of store directories. With ``only_queued``, records of the log that are
    in no queue are left out."""

    roots: tuple[StoreRoot, ...]
    choice: TopicChoice
    starting: NamedPosition | None
    ending: NamedPosition | None
    min_partitions: int
    max_bytes_per_partition: int
    fail_on_data_loss: bool
    data_loss_report: str | None
    only_queued: bool
    row_filter: RowFilter
    corrupt: CorruptOptions
    values: ValueOptions | None


@dataclass(frozen=True, slots=True)
class RequestedRange:
    """Messages with ``start <= queue offset < stop`` and ``from_ms <= store time < until_ms``.

    A ``start`` of -1 is the beginning of the queue.
    """

    start: int = -1
    stop: int = END
    from_ms: int = -END
    until_ms: int = END


OPEN: Final = RequestedRange()


@dataclass(frozen=True, slots=True)
class RequestedRanges:
    """The requested range of each queue. Queues not in ``by_queue`` have ``otherwise``."""

    otherwise: RequestedRange = OPEN
    by_queue: dict[Key, RequestedRange] = field(default_factory=dict)

    def of(self, topic: str, queue_id: int) -> RequestedRange:
        """Return the requested range of a queue."""
        return self.by_queue.get((topic, queue_id), self.otherwise)

    @property
    def are_open(self) -> bool:
        """True if no message is left out."""
        return self.otherwise == OPEN and not self.by_queue


def parse(options: Mapping[str, str]) -> StoreOptions:
    """Parse the options of ``spark.read`` with a ``store``. Raises BadOption."""
    given = by_name(options, KNOWN, topics.ALIASES | values.ALIASES)
    paths = required(given, "store", _stores)
    starting, ending = positions.starting(given), positions.ending(given)
    positions.in_order(starting, ending)
    roots = _roots(paths, get(given, "brokerName", names, None))
    for named in (starting, ending):
        check_brokers(named, [root.broker_name for root in roots])
    chosen = only_one(given, ("topic", "subscribePattern", "assign"))
    read = StoreOptions(
        roots=roots,
        choice=topics.parse(given) if chosen or "includeSystemTopics" in given else ALL,
        starting=starting,
        ending=ending,
        min_partitions=get(given, "minPartitions", positive, 1),
        max_bytes_per_partition=get(given, "maxBytesPerPartition", positive, SPLIT_BYTES),
        fail_on_data_loss=get(given, "failOnDataLoss", boolean, True),
        data_loss_report=get(given, "dataLossReport", some_text, None),
        only_queued=get(given, "onlyQueued", boolean, True),
        row_filter=filters.parse(given),
        corrupt=corrupt.parse(given),
        values=values.parse(given),
    )
    if read.fail_on_data_loss and read.data_loss_report is not None:
        raise BadOption("dataLossReport", "needs failOnDataLoss=false: the first loss is an error")
    return read


def _stores(text: str) -> tuple[str, ...]:
    return tuple(map(checked, names(text)))


def _roots(paths: tuple[str, ...], given: tuple[str, ...] | None) -> tuple[StoreRoot, ...]:
    if given is not None and len(given) != len(paths):
        raise BadOption("brokerName", f"names {len(given)} brokers for {len(paths)} stores")
    found = given or tuple(map(broker_of, paths))
    if len(set(found)) < len(found):
        raise BadOption("brokerName", f"is required: the stores would all be {found[0]!r}")
    return tuple(StoreRoot(path, name) for path, name in zip(paths, found, strict=True))


def broker_of(path: str) -> str:
    """Return the broker's name derived from the path of its store, because no file of a store
    contains it: the last folder, or the one before if the last is called ``store``."""
    folder, name = os.path.split(os.path.abspath(place_of(path)))
    return os.path.basename(folder) or name if name == "store" else name


def requested_ranges(
    starting: NamedPosition | None,
    ending: NamedPosition | None,
    broker_name: str,
    queues: Iterable[Key],
    bounds: Bounds,
) -> RequestedRanges:
    """Return the ranges that two positions request of one broker's queues. Raises BadOption for a
    position that names a queue that does not exist."""
    otherwise = replace(_unknown_start(starting), **_unknown_stop(ending))
    if _is_global(starting) and _is_global(ending):
        return RequestedRanges(otherwise)
    known = set(queues)
    for named in (starting, ending):
        _check(named, broker_name, known)
    found: dict[Key, RequestedRange] = {}
    for key in known:
        requested = _narrowed(OPEN, starting, broker_name, key, bounds, is_start=True)
        found[key] = _narrowed(requested, ending, broker_name, key, bounds, is_start=False)
    # Keep only the differing ones, because every task of the log carries them.
    own = {key: asked for key, asked in found.items() if asked != otherwise}
    return RequestedRanges(otherwise, own)


def _is_global(named: NamedPosition | None) -> bool:
    """Return whether a position is the same for queues that the plan does not know."""
    position = None if named is None else named.position
    if isinstance(position, AtTimes):
        return position.everywhere_ms is not None
    return position is None


def _unknown_start(named: NamedPosition | None) -> RequestedRange:
    """Return the range of a queue that the plan does not know: it starts at the moment of the
    position, or with the first message."""
    if named is not None and isinstance(named.position, AtTimes):
        return RequestedRange(from_ms=named.position.everywhere_ms or -END)
    return OPEN


def _unknown_stop(named: NamedPosition | None) -> dict[str, int]:
    if named is not None and isinstance(named.position, AtTimes):
        return {
            "until_ms": END
            if named.position.everywhere_ms is None
            else named.position.everywhere_ms
        }
    return {}


def _check(named: NamedPosition | None, broker_name: str, known: set[Key]) -> None:
    if named is None or not isinstance(named.position, (AtOffsets, AtTimes)):
        return
    for queue in sorted(named.position.by_queue):
        if queue.broker_name == broker_name and (queue.topic, queue.queue_id) not in known:
            raise BadOption(named.option, f"no queue {queue.queue_id} of {queue.topic!r} in the "
                            f"store of {broker_name!r}")  # fmt: skip


def check_brokers(named: NamedPosition | None, brokers: Iterable[str]) -> None:
    """Raise BadOption for a position that names a broker whose store is not read."""
    if named is None or not isinstance(named.position, (AtOffsets, AtTimes)):
        return
    known = set(brokers)
    for queue in sorted(named.position.by_queue):
        if queue.broker_name not in known:
            raise BadOption(
                named.option,
                f"no store is of broker {queue.broker_name!r} ({', '.join(sorted(known))})",
            )


def _narrowed(
    requested: RequestedRange,
    named: NamedPosition | None,
    broker_name: str,
    key: Key,
    bounds: Bounds,
    *,
    is_start: bool,
) -> RequestedRange:
    """Return ``requested`` with its start, or with ``is_start`` false its end, at a position."""
    if named is None:
        return requested
    position = named.position
    if isinstance(position, AtTimes):
        moment = position.everywhere_ms
        if moment is None:
            moment = _of(position.by_queue, broker_name, key)
        if moment is not None:
            return (
                replace(requested, from_ms=moment)
                if is_start
                else replace(requested, until_ms=moment)
            )
        return _at_edge(requested, position.otherwise, key, bounds, is_start=is_start)
    if isinstance(position, AtOffsets):
        offset = _of(position.by_queue, broker_name, key)
        if offset is not None and offset not in (EARLIEST_OFFSET, LATEST_OFFSET):
            return replace(requested, start=offset) if is_start else replace(requested, stop=offset)
        edge = {EARLIEST_OFFSET: Edge.EARLIEST, LATEST_OFFSET: Edge.LATEST}.get(
            offset if offset is not None else 0, position.otherwise
        )
        return _at_edge(requested, edge, key, bounds, is_start=is_start)
    if isinstance(position, Edge):
        return _at_edge(requested, position, key, bounds, is_start=is_start)
    raise BadOption(named.option, "a store directory is read without the offsets of groups")


def _at_edge(
    requested: RequestedRange, edge: Edge, key: Key, bounds: Bounds, *, is_start: bool
) -> RequestedRange:
    if (edge is Edge.EARLIEST) == is_start:
        # The start at the beginning, or the end at the end.
        return requested if is_start else replace(requested, stop=bounds(key)[1])
    start, stop = bounds(key)
    return replace(requested, start=stop) if is_start else replace(requested, stop=start)


def _of(numbers: Mapping[MessageQueue, int], broker_name: str, key: Key) -> int | None:
    return numbers.get(MessageQueue(key[0], broker_name, key[1]))
