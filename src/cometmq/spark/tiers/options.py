"""The options of a read of several tiers, parsed and checked once. An error names the option.

The options of the tiers are given together: ``archive`` names an archive, ``store`` names store
directories, ``nameservers`` a cluster. Positions, filters and the rules for losses apply to all
tiers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cometmq.spark import kafka
from cometmq.spark.brokers import access
from cometmq.spark.options import (
    BadOption,
    Given,
    boolean,
    by_name,
    get,
    only_one,
    positive,
    some_text,
)
from cometmq.spark.read import corrupt, filters, positions, topics
from cometmq.spark.read import options as read_options
from cometmq.spark.read.planning import TASK_BYTES_MAX, TASK_ROWS_MAX
from cometmq.spark.read.positions import AtGroup
from cometmq.spark.store import options as store_options
from cometmq.spark.store.urls import checked
from cometmq.spark.values import options as values

if TYPE_CHECKING:
    from cometmq.spark.read.corrupt import CorruptOptions
    from cometmq.spark.read.filters import RowFilter
    from cometmq.spark.read.options import ReadOptions
    from cometmq.spark.read.positions import NamedPosition
    from cometmq.spark.read.topics import TopicChoice
    from cometmq.spark.store.options import StoreOptions
    from cometmq.spark.values.options import ValueOptions

_OF_STREAMS: Final = frozenset({*read_options.CAP_OPTIONS, "reportLag"})

KNOWN: Final = (
    *("archive", "store", "brokerName"),
    *(name for name in read_options.KNOWN if name not in _OF_STREAMS),
)
ALIASES: Final = read_options.ALIASES

_NAME_SERVERS: Final = frozenset({"nameservers", *access.ALIASES})
_POSITIONS: Final = frozenset(positions.OPTIONS)


@dataclass(frozen=True, slots=True)
class TieredOptions:
    """All options of a read of several tiers. ``archive``, ``store`` and ``live`` are None for a
    tier that is not read. ``archive`` may be a URL with credentials, so ``repr`` leaves it out."""

    archive: str | None = field(repr=False)
    store: StoreOptions | None
    live: ReadOptions | None
    topics: TopicChoice
    starting: NamedPosition | None
    ending: NamedPosition | None
    min_partitions: int
    max_rows_per_partition: int
    max_bytes_per_partition: int
    fail_on_data_loss: bool
    data_loss_report: str | None
    row_filter: RowFilter
    pushes_filters: bool
    corrupt: CorruptOptions
    values: ValueOptions | None


def are_tiered(options: Mapping[str, str]) -> bool:
    """Return whether the options of a read name an archive, or more than one tier."""
    names = {name.lower() for name in options}
    return "archive" in names or ("store" in names and bool(names & _NAME_SERVERS))


def parse(options: Mapping[str, str]) -> TieredOptions:
    """Parse the options of ``spark.read`` with several tiers. Raises BadOption."""
    given = by_name(options, KNOWN, ALIASES, _hint)
    live = None
    if "nameservers" in given:
        # Leave out the positions: a broker that they name may be gone, and its messages in another
        # tier.
        known = [name for name in read_options.KNOWN if name not in _POSITIONS]
        live = read_options.parse(_chosen(given, known))
    store = None
    if "store" in given:
        known = [name for name in store_options.KNOWN if name not in _POSITIONS]
        store = store_options.parse(_chosen(given, known))
    elif "brokerName" in given:
        raise BadOption("brokerName", "needs store")
    chosen = only_one(given, ("topic", "subscribePattern", "assign"))
    names_topics = live is not None or chosen or "includeSystemTopics" in given
    read = TieredOptions(
        archive=get(given, "archive", _place, None),
        store=store,
        live=live,
        topics=topics.parse(given) if names_topics else store_options.ALL,
        starting=positions.starting(given),
        ending=positions.ending(given),
        min_partitions=get(given, "minPartitions", positive, 1),
        max_rows_per_partition=get(given, "maxRowsPerPartition", positive, TASK_ROWS_MAX),
        max_bytes_per_partition=get(given, "maxBytesPerPartition", positive, TASK_BYTES_MAX),
        fail_on_data_loss=get(given, "failOnDataLoss", boolean, True),
        data_loss_report=get(given, "dataLossReport", some_text, None),
        row_filter=filters.parse(given),
        pushes_filters=get(given, "pushFilters", boolean, False),
        corrupt=corrupt.parse(given),
        values=values.parse(given),
    )
    positions.in_order(read.starting, read.ending)
    if live is None and read.starting and isinstance(read.starting.position, AtGroup):
        raise BadOption(read.starting.option, "the offsets of a group need nameservers")
    if read.fail_on_data_loss and read.data_loss_report is not None:
        raise BadOption("dataLossReport", "needs failOnDataLoss=false: the first loss is an error")
    return read


def refuse_stream(options: Mapping[str, str]) -> None:
    """Raise BadOption if the options of a stream name an archive or store directories."""
    names = {name.lower() for name in options}
    for option in ("archive", "store"):
        if option in names:
            raise BadOption(
                option,
                "is read in batches only: read it with spark.read and an endingOffsets, and start "
                "a stream of the topic at the same startingOffsets",
            )


def _chosen(given: Given, known: Sequence[str]) -> dict[str, str]:
    return {name: value for name, value in given.items() if name in known}


def _hint(option: str) -> str:
    if option.lower() == "onlyqueued":
        return "records that are in no queue are read from a store directory alone"
    return kafka.hint(option)


def _place(text: str) -> str:
    # Do not percent-decode: Spark takes the path of a file URL literally, as the job archive does.
    return checked(some_text(text).removeprefix("file://"))
