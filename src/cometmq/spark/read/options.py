"""The options of the source, parsed and checked once. An error names the option.

The modules for topics, positions, limits, filters and access each parse their own options. The
options about brokers that are away say which ones a read needs, and how long it waits for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from cometmq.spark.brokers import access
from cometmq.spark.options import (
    BadOption,
    Given,
    boolean,
    by_name,
    duration_ms,
    get,
    names,
    one_of,
    positive,
    some_text,
)
from cometmq.spark.read import dirty, filters, limits, positions, topics
from cometmq.spark.read.planning import TASK_ROWS_MAX
from cometmq.spark.read.remembered import default_folder

if TYPE_CHECKING:
    from cometmq.spark.brokers.access import Access
    from cometmq.spark.read.dirty import Dirty
    from cometmq.spark.read.filters import RowFilter
    from cometmq.spark.read.limits import Caps
    from cometmq.spark.read.positions import NamedPosition

OUTAGE_OPTIONS: Final = ("brokers", "knownBrokers", "missingBroker", "outageTimeout")


class MissingBroker(Enum):
    """Handling of a broker that is away."""

    WAIT = "wait"
    FAIL = "fail"
    WARN = "warn"


@dataclass(frozen=True, slots=True)
class Outage:
    """Options for outages. ``brokers`` hold queues of the read, whatever the route says. If none
    are named, the folder ``memory`` says which brokers are expected. ``timeout_ms`` None is the
    default of the kind of read."""

    rule: MissingBroker = MissingBroker.WAIT
    timeout_ms: int | None = None
    brokers: tuple[str, ...] = ()
    memory: str | None = None


def parse_outage(given: Given) -> Outage:
    """Parse the options that name brokers and say how to handle an outage. Raises BadOption."""
    memory = get(given, "knownBrokers", some_text, default_folder() or "none")
    return Outage(
        MissingBroker(get(given, "missingBroker", one_of("wait", "fail", "warn"), "wait")),
        get(given, "outageTimeout", duration_ms, None),
        get(given, "brokers", names, ()),
        None if memory.lower() == "none" else memory,
    )


KNOWN: Final = (
    *access.OPTIONS,
    *topics.OPTIONS,
    *positions.OPTIONS,
    *limits.OPTIONS,
    *("minPartitions", "maxRowsPerPartition"),
    *("failOnDataLoss", "dataLossReport", "reportLag"),
    *OUTAGE_OPTIONS,
    *filters.OPTIONS,
    "pushFilters",
    *dirty.OPTIONS,
)
ALIASES: Final = access.ALIASES | topics.ALIASES


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """All options of a read. ``starting`` None means the default of the kind of read: earliest for
    a batch, latest for a stream."""

    access: Access
    topics: topics.Choice
    starting: NamedPosition | None
    ending: NamedPosition | None
    caps: Caps
    min_partitions: int
    max_rows_per_partition: int
    fail_on_data_loss: bool
    data_loss_report: str | None
    outage: Outage
    consumer_group: str | None
    reports_lag: bool
    row_filter: RowFilter
    pushes_filters: bool
    dirty: Dirty


def parse(options: Mapping[str, str]) -> ReadOptions:
    """Parse the options of ``spark.read`` or ``spark.readStream``. Raises BadOption."""
    given = by_name(options, KNOWN, ALIASES)
    read = ReadOptions(
        access=access.parse(given),
        topics=topics.parse(given),
        starting=positions.starting(given),
        ending=positions.ending(given),
        caps=limits.parse(given),
        min_partitions=get(given, "minPartitions", positive, 1),
        max_rows_per_partition=get(given, "maxRowsPerPartition", positive, TASK_ROWS_MAX),
        fail_on_data_loss=get(given, "failOnDataLoss", boolean, True),
        data_loss_report=get(given, "dataLossReport", some_text, None),
        outage=parse_outage(given),
        consumer_group=get(given, "consumerGroup", some_text, None),
        reports_lag=get(given, "reportLag", boolean, True),
        row_filter=filters.parse(given),
        pushes_filters=get(given, "pushFilters", boolean, False),
        dirty=dirty.parse(given),
    )
    positions.in_order(read.starting, read.ending)
    if read.fail_on_data_loss and read.data_loss_report is not None:
        raise BadOption("dataLossReport", "needs failOnDataLoss=false: the first loss is an error")
    if "reportLag" in given and read.consumer_group is None:
        raise BadOption("reportLag", "needs consumerGroup")
    return read


def for_stream(options: ReadOptions) -> ReadOptions:
    """Return the options of a stream, which has no end. Raises BadOption if one is given."""
    if options.ending is not None:
        problem = "a stream has no end; use spark.read, or the trigger availableNow"
        raise BadOption(options.ending.option, problem)
    return options
