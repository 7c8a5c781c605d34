"""The options of a read from store directories, parsed and checked once. An error names the option.

The options mean the same as in a read over the network. Options for connecting to a cluster or for
the progress of a stream are unknown here.
"""

from __future__ import annotations

import os.path
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

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
from cometmq.spark.read.topics import Pattern
from cometmq.spark.store.windows import check_brokers

if TYPE_CHECKING:
    from cometmq.spark.read.corrupt import CorruptOptions
    from cometmq.spark.read.filters import RowFilter
    from cometmq.spark.read.positions import NamedPosition
    from cometmq.spark.read.topics import Choice

SPLIT_BYTES: Final = 128 << 20
"""Size of a task's part of the log: large compared with the cost of a task, small compared with a
file of 1 GiB."""

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
)
_ALL: Final = Pattern(".*")


@dataclass(frozen=True, slots=True)
class StoreRoot:
    """A store directory, and the name of its broker."""

    path: str
    broker_name: str


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """All options of a read of store directories. ``only_queued`` leaves out records that are in
    the log but in no queue."""

    roots: tuple[StoreRoot, ...]
    choice: Choice
    starting: NamedPosition | None
    ending: NamedPosition | None
    min_partitions: int
    max_bytes_per_partition: int
    fail_on_data_loss: bool
    data_loss_report: str | None
    only_queued: bool
    row_filter: RowFilter
    corrupt: CorruptOptions


def parse(options: Mapping[str, str]) -> StoreOptions:
    """Parse the options of ``spark.read`` with a ``store``. Raises BadOption."""
    given = by_name(options, KNOWN, topics.ALIASES)
    paths = required(given, "store", names)
    starting, ending = positions.starting(given), positions.ending(given)
    positions.in_order(starting, ending)
    roots = _roots(paths, get(given, "brokerName", names, None))
    for named in (starting, ending):
        check_brokers(named, [root.broker_name for root in roots])
    chosen = only_one(given, ("topic", "subscribePattern", "assign"))
    read = StoreOptions(
        roots=roots,
        choice=topics.parse(given) if chosen or "includeSystemTopics" in given else _ALL,
        starting=starting,
        ending=ending,
        min_partitions=get(given, "minPartitions", positive, 1),
        max_bytes_per_partition=get(given, "maxBytesPerPartition", positive, SPLIT_BYTES),
        fail_on_data_loss=get(given, "failOnDataLoss", boolean, True),
        data_loss_report=get(given, "dataLossReport", some_text, None),
        only_queued=get(given, "onlyQueued", boolean, True),
        row_filter=filters.parse(given),
        corrupt=corrupt.parse(given),
    )
    if read.fail_on_data_loss and read.data_loss_report is not None:
        raise BadOption("dataLossReport", "needs failOnDataLoss=false: the first loss is an error")
    return read


def _roots(paths: tuple[str, ...], given: tuple[str, ...] | None) -> tuple[StoreRoot, ...]:
    if given is not None and len(given) != len(paths):
        raise BadOption("brokerName", f"names {len(given)} brokers for {len(paths)} stores")
    found = given or tuple(map(broker_of, paths))
    if len(set(found)) < len(found):
        raise BadOption("brokerName", f"is required: the stores would all be {found[0]!r}")
    return tuple(StoreRoot(path, name) for path, name in zip(paths, found, strict=True))


def broker_of(path: str) -> str:
    """Return the broker's name derived from the path of its store: the last folder not called
    ``store``. No file of a store contains the name."""
    folder, name = os.path.split(os.path.abspath(path))
    return os.path.basename(folder) or name if name == "store" else name
