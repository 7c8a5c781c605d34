"""The options of the source, parsed and checked once. An error names the option.

The modules for topics, positions, filters, corrupt messages, values and access each parse their own
options. This module parses all others: limits, sizes of tasks, losses and outages.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

import msgspec

from cometmq.spark import kafka
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
from cometmq.spark.read import corrupt, filters, positions, topics
from cometmq.spark.read.planning import TASK_BYTES_MAX, TASK_ROWS_MAX
from cometmq.spark.values import options as values

if TYPE_CHECKING:
    from cometmq.spark.brokers.access import Access
    from cometmq.spark.read.corrupt import CorruptOptions
    from cometmq.spark.read.filters import RowFilter
    from cometmq.spark.read.positions import NamedPosition
    from cometmq.spark.values.options import ValueOptions


CAP_OPTIONS: Final = (
    *("maxOffsetsPerTrigger", "maxBytesPerTrigger"),
    *("minOffsetsPerTrigger", "maxTriggerDelay"),
)
TRIGGER_DELAY_MS: Final = 15 * 60_000
OUTAGE_OPTIONS: Final = ("brokers", "knownBrokers", "missingBroker", "outageTimeout")

KNOWN: Final = (
    *access.OPTIONS,
    *topics.OPTIONS,
    *positions.OPTIONS,
    *CAP_OPTIONS,
    *("minPartitions", "maxRowsPerPartition", "maxBytesPerPartition", "racks"),
    *("failOnDataLoss", "dataLossReport", "reportLag"),
    *OUTAGE_OPTIONS,
    *filters.OPTIONS,
    "pushFilters",
    *corrupt.OPTIONS,
    *values.OPTIONS,
    *kafka.ACCEPTED,
)
ALIASES: Final = access.ALIASES | topics.ALIASES | kafka.READ_ALIASES | values.ALIASES


@dataclass(frozen=True, slots=True)
class Caps:
    """Limits of a micro-batch: at most ``rows_max`` messages and about ``bytes_max`` bytes. A batch
    with fewer than ``rows_min`` messages waits until ``delay_ms`` after the previous one."""

    rows_max: int | None = None
    bytes_max: int | None = None
    rows_min: int | None = None
    delay_ms: int = TRIGGER_DELAY_MS


class MissingBroker(Enum):
    """Handling of a broker that is away: wait for it until a timeout, fail at once, or log a
    warning and continue without it."""

    WAIT = "wait"
    FAIL = "fail"
    WARN = "warn"


@dataclass(frozen=True, slots=True)
class Outage:
    """Options for outages. ``brokers`` are the names of all brokers that hold queues of the read.
    If it is empty, brokers recorded in the folder ``known_brokers`` are expected. If ``timeout_ms``
    is None, the default for a batch or a stream applies."""

    rule: MissingBroker = MissingBroker.WAIT
    timeout_ms: int | None = None
    brokers: tuple[str, ...] = ()
    known_brokers: str | None = None


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """All options of a read. If ``starting`` is None, a batch starts at the earliest offsets and a
    stream at the latest. ``racks`` has the rack of each broker that has one."""

    access: Access
    topics: topics.TopicChoice
    starting: NamedPosition | None
    ending: NamedPosition | None
    caps: Caps
    min_partitions: int
    max_rows_per_partition: int
    max_bytes_per_partition: int
    racks: Mapping[str, str]
    fail_on_data_loss: bool
    data_loss_report: str | None
    outage: Outage
    consumer_group: str | None
    reports_lag: bool
    row_filter: RowFilter
    pushes_filters: bool
    corrupt: CorruptOptions
    values: ValueOptions | None


def parse(options: Mapping[str, str]) -> ReadOptions:
    """Parse the options of ``spark.read`` or ``spark.readStream``. Raises BadOption."""
    given = by_name(options, KNOWN, ALIASES, kafka.hint)
    read = ReadOptions(
        access=access.parse(given),
        topics=topics.parse(given),
        starting=positions.starting(given),
        ending=positions.ending(given),
        caps=parse_caps(given),
        min_partitions=get(given, "minPartitions", positive, 1),
        max_rows_per_partition=get(given, "maxRowsPerPartition", positive, TASK_ROWS_MAX),
        max_bytes_per_partition=get(given, "maxBytesPerPartition", positive, TASK_BYTES_MAX),
        racks=get(given, "racks", _racks, {}),
        fail_on_data_loss=get(given, "failOnDataLoss", boolean, True),
        data_loss_report=get(given, "dataLossReport", some_text, None),
        outage=parse_outage(given),
        consumer_group=get(given, "consumerGroup", some_text, None),
        reports_lag=get(given, "reportLag", boolean, True),
        row_filter=filters.parse(given),
        pushes_filters=get(given, "pushFilters", boolean, False),
        corrupt=corrupt.parse(given),
        values=values.parse(given),
    )
    kafka.check_accepted(given)
    positions.in_order(read.starting, read.ending)
    if read.fail_on_data_loss and read.data_loss_report is not None:
        raise BadOption("dataLossReport", "needs failOnDataLoss=false: the first loss is an error")
    if "reportLag" in given and read.consumer_group is None:
        raise BadOption("reportLag", "needs consumerGroup")
    return read


def for_stream(options: ReadOptions) -> ReadOptions:
    """Return ``options`` unchanged. Raises BadOption if an end is given, since a stream has
    none."""
    if options.ending is not None:
        problem = "a stream has no end; use spark.read, or the trigger availableNow"
        raise BadOption(options.ending.option, problem)
    return options


def parse_outage(given: Given) -> Outage:
    """Parse the options that name brokers and say how to handle an outage. Raises BadOption."""
    folder = get(given, "knownBrokers", some_text, default_known_brokers() or "none")
    return Outage(
        MissingBroker(get(given, "missingBroker", one_of("wait", "fail", "warn"), "wait")),
        get(given, "outageTimeout", duration_ms, None),
        get(given, "brokers", names, ()),
        None if folder.lower() == "none" else folder,
    )


def default_known_brokers() -> str | None:
    """Return the folder in the user's cache directory, or None for a user without a home
    directory."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(cache, "cometmq", "spark") if os.path.isabs(cache) else None


def _racks(text: str) -> dict[str, str]:
    try:
        found = msgspec.json.decode(text, type=dict[str, list[str]])
    except msgspec.MsgspecError as error:
        raise ValueError(f'is not like {{"rack": ["broker-a", "broker-b"]}}: {error}') from None
    racks: dict[str, str] = {}
    for rack, brokers in found.items():
        for broker in brokers:
            if racks.setdefault(broker, rack) != rack:
                raise ValueError(f"broker {broker!r} is in {racks[broker]!r} and in {rack!r}")
    return racks


def parse_caps(given: Given) -> Caps:
    """Parse the options that limit a micro-batch. Raises BadOption."""
    caps = Caps(
        rows_max=get(given, "maxOffsetsPerTrigger", positive, None),
        bytes_max=get(given, "maxBytesPerTrigger", positive, None),
        rows_min=get(given, "minOffsetsPerTrigger", positive, None),
        delay_ms=get(given, "maxTriggerDelay", duration_ms, TRIGGER_DELAY_MS),
    )
    if caps.rows_min is None and "maxTriggerDelay" in given:
        raise BadOption("maxTriggerDelay", "needs minOffsetsPerTrigger")
    if caps.rows_min is not None and caps.rows_max is not None and caps.rows_min > caps.rows_max:
        raise BadOption("minOffsetsPerTrigger", "is more than maxOffsetsPerTrigger")
    return caps


def is_enough(caps: Caps, rows: int, since_last_ms: int | None) -> bool:
    """Return whether a batch of ``rows`` messages may start. ``since_last_ms`` is the time since
    the previous batch, None before the first one."""
    if caps.rows_min is None or rows >= caps.rows_min:
        return True
    return since_last_ms is None or since_last_ms >= caps.delay_ms
