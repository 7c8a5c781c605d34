"""The options of the source, read and checked once; an error names the option.

The names that Spark itself may add (``path``) are errors too: the source reads topics, not files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cometmq.filter.tags import TagFilter
from cometmq.filter.tags import parse as parse_tags
from cometmq.spark.brokers import access
from cometmq.spark.options import (
    BadOption,
    boolean,
    by_name,
    get,
    names,
    positive,
    required,
    some_text,
)
from cometmq.spark.read.planning import TASK_ROWS_MAX
from cometmq.spark.read.points import Kind, Point, point

if TYPE_CHECKING:
    from cometmq.spark.brokers.access import Access

KNOWN: Final = (
    *access.OPTIONS,
    "topic",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "maxOffsetsPerTrigger",
    "minPartitions",
    "maxRowsPerPartition",
    "failOnDataLoss",
    "dataLossReport",
    "filter",
)


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
    data_loss_report: str | None
    tag_filter: TagFilter


def parse(options: Mapping[str, str]) -> ReadOptions:
    """Read the options of ``spark.read`` or ``spark.readStream``. Raises BadOption."""
    given = by_name(options, KNOWN, access.ALIASES)
    read = ReadOptions(
        access=access.parse(given),
        topics=required(given, "topic", names),
        starting=point(given, "starting", Kind.EARLIEST),
        ending=point(given, "ending", Kind.LATEST),
        max_offsets_per_trigger=get(given, "maxOffsetsPerTrigger", positive, None),
        min_partitions=get(given, "minPartitions", positive, 1),
        max_rows_per_partition=get(given, "maxRowsPerPartition", positive, TASK_ROWS_MAX),
        fail_on_data_loss=get(given, "failOnDataLoss", boolean, True),
        data_loss_report=get(given, "dataLossReport", some_text, None),
        tag_filter=get(given, "filter", parse_tags, parse_tags(None)),
    )
    if read.fail_on_data_loss and read.data_loss_report is not None:
        raise BadOption("dataLossReport", "needs failOnDataLoss=false: the first loss is an error")
    return read


def for_stream(options: ReadOptions) -> ReadOptions:
    """The options of a stream, which has no end. Raises BadOption when one is given."""
    if options.ending is not None:
        raise BadOption(
            "endingTimestamp" if options.ending.kind is Kind.TIME else "endingOffsets",
            "a stream has no end; use spark.read, or the trigger availableNow",
        )
    return options
