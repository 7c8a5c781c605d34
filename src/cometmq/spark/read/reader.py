"""The reader that Spark calls for ``spark.read``, which reads every message between two positions.

Spark creates the reader in a planning process, asks it for partitions there, and sends it to the
tasks with pickle. The reader therefore holds only plain values.

This module also turns the plans of batches and streams into partitions.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition

from cometmq.core.clock import SystemClock
from cometmq.core.errors import CometError
from cometmq.spark.brokers import cluster, offsets
from cometmq.spark.read.discovery import (
    BATCH_OUTAGE_MS,
    find_queues,
    wait_for_brokers,
    without_brokers,
)
from cometmq.spark.read.fetcher import batches
from cometmq.spark.read.losses import report_loss
from cometmq.spark.read.planning import (
    TASK_ROWS_MAX,
    TASK_ROWS_MIN,
    backward,
    ranges,
    tasks,
)
from cometmq.spark.read.positions import (
    AtGroup,
    Edge,
    NamedPosition,
    at_moments,
    check_order,
    end_of,
    resolve,
)
from cometmq.spark.workermemory import keep_loaded

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter

    from cometmq.message.model import MessageQueue
    from cometmq.spark.brokers.access import Access
    from cometmq.spark.brokers.cluster import Replicas
    from cometmq.spark.read.options import ReadOptions
    from cometmq.spark.read.planning import Range
    from cometmq.spark.read.pushdown import Pushed
    from cometmq.spark.values.columns import ValueColumns


log = logging.getLogger(__name__)

SAMPLED_QUEUES: Final = 16
SAMPLED_ROWS: Final = 32
"""Number of queues to sample, and messages requested of each. A response holds at most 32."""

UNSAMPLED_ROWS: Final = 64
"""A plan with at most this many messages needs no sample: they fit in one task."""

Json = dict[str, object]
_FROM_EARLIEST: Final = NamedPosition("startingOffsets", Edge.EARLIEST)
_FROM_LATEST: Final = NamedPosition("startingOffsets", Edge.LATEST)
_TO_LATEST: Final = NamedPosition("endingOffsets", Edge.LATEST)
_clock: Final = SystemClock()


class QueueRanges(InputPartition):
    """The ranges that one task reads.

    ``copies`` are the brokers that had the queues when the read was planned. The task uses their
    addresses while no name server answers.
    """

    def __init__(self, parts: tuple[Range, ...], copies: tuple[Replicas, ...] = ()) -> None:
        super().__init__(parts)
        self.copies = copies


def ranges_of(partition: InputPartition) -> tuple[Range, ...]:
    """Return the ranges of a task.

    If the plan has no tasks, Spark sends a partition of another class, which has no ranges.
    """
    return partition.value if isinstance(partition, QueueRanges) else ()


def partitions_of(
    todo: Iterable[Range],
    options: ReadOptions,
    *,
    rows_min: int = TASK_ROWS_MIN,
    mean_bytes: float | None = None,
) -> list[InputPartition]:
    """Return the partitions of a plan.

    Large ranges are split as the options say. Small ones are joined up to ``rows_min`` messages.
    ``mean_bytes`` is the mean size of a record, if it is known.
    """
    rows_max = options.max_rows_per_partition
    if mean_bytes:
        rows_max = max(1, min(rows_max, int(options.max_bytes_per_partition / mean_bytes)))
    parts = tasks(
        todo,
        tasks_min=options.min_partitions,
        rows_max=rows_max,
        rows_min=min(rows_min, rows_max),
        racks=options.racks,
    )
    return [QueueRanges(part, _copies_of(part, options.access)) for part in parts]


def _copies_of(parts: Iterable[Range], access: Access) -> tuple[Replicas, ...]:
    queues = {(part.queue.topic, part.queue.broker_name): part.queue for part in parts}
    known = (cluster.last_known(queue, access) for queue in queues.values())
    return tuple(each for each in known if each is not None)


def rows_of_task(
    partition: InputPartition,
    options: ReadOptions,
    names: tuple[str, ...],
    values: ValueColumns | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one task. Raises DataLoss and the errors of requests to brokers."""
    keep_loaded()
    parts = ranges_of(partition)
    if isinstance(partition, QueueRanges):
        cluster.learn(partition.copies, options.access)
    cluster.prefetch((part.queue.topic for part in parts), options.access)
    found = batches(parts, options, names)
    return found if values is None else values.decode(found)


class TopicReader(DataSourceReader):
    """Reads topics from ``starting`` (default earliest) to ``ending`` (default latest)."""

    def __init__(
        self, options: ReadOptions, names: tuple[str, ...], values: ValueColumns | None = None
    ) -> None:
        self._options = options
        self._names = names
        self._values = values
        self._pushed: Pushed | None = None
        if options.pushes_filters and hasattr(DataSourceReader, "pushFilters"):
            # pyspark 4.0 cannot push filters down and lacks the classes that pushdown.py imports.
            from cometmq.spark.read.pushdown import Push

            self.pushFilters = Push(self._push)  # type: ignore[method-assign]

    def _push(self, filters: Iterable[Filter]) -> list[Filter]:
        from cometmq.spark.read.pushdown import split_filters

        self._pushed, rest = split_filters(filters, self._options.row_filter)
        self._options = replace(self._options, row_filter=self._pushed.row_filter)
        return rest

    def partitions(self) -> list[InputPartition]:
        """Return one partition per task. Raises RouteNotFound, NotConnected, BadOption,
        DataLoss."""
        keep_loaded()
        return wait_for_brokers(self._plan, self._options.outage, BATCH_OUTAGE_MS)

    def _plan(self) -> list[InputPartition]:
        options = self._options
        found = find_queues(options)
        queues = found.queues
        starting = without_brokers(options.starting or _FROM_EARLIEST, found.without)
        ending = without_brokers(options.ending or _TO_LATEST, found.without)
        start = resolve(starting, queues, options.access)
        end = end_of(ending, queues, options.access, options)
        if isinstance(starting.position, AtGroup):
            # If an offset of the group is beyond the end of its queue, the topic was deleted and
            # recreated.
            for queue in backward(start, end):
                report_loss(queue, end[queue], start[queue], options)
        else:
            check_order(start, end, starting.option)

        def at_time(moment_ms: int, asked: Sequence[MessageQueue]) -> Mapping[MessageQueue, int]:
            return at_moments(dict.fromkeys(asked, moment_ms), end, options.access)

        pushed = self._pushed
        todo = ranges(*((start, end) if pushed is None else pushed.cut(start, end, at_time)))
        mean = sampled_bytes(todo, options.access)
        return partitions_of(todo, options, rows_min=TASK_ROWS_MAX, mean_bytes=mean)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task. Raises DataLoss and the errors of requests to brokers."""
        return rows_of_task(partition, self._options, self._names, self._values)


def rows_within(bytes_max: int, todo: Sequence[Range], access: Access) -> int | None:
    """Return how many messages of the ranges take up about ``bytes_max``.

    Returns None if all sampled messages are gone. Raises the errors of :func:`mean_bytes`.
    """
    mean = mean_bytes(todo, access)
    return None if mean is None else max(1, int(bytes_max / mean))


def sampled_bytes(todo: Sequence[Range], access: Access) -> float | None:
    """Return the mean size of a record of the ranges, from which the size of tasks is chosen.

    Return None for a small plan, and after a failure, which is only logged: the tasks handle
    corrupt records and busy brokers themselves.
    """
    if rows_of(todo) <= UNSAMPLED_ROWS:
        return None
    try:
        return mean_bytes(todo, access)
    except CometError as error:
        log.warning("sample_failed error=%r", str(error))
        return None


def rows_of(todo: Iterable[Range]) -> int:
    """Return the number of messages of the ranges."""
    return sum(map(len, todo))


def mean_bytes(todo: Sequence[Range], access: Access) -> float | None:
    """Return the mean size of a record of the ranges, from a sample of the fullest ones, or None if
    all sampled messages are gone.

    Raises NotConnected, RequestTimedOut, RouteNotFound, BrokerRefused.
    """
    fullest = sorted(todo, key=len, reverse=True)[:SAMPLED_QUEUES]
    samples = offsets.samples(
        {part.queue: part.start for part in fullest}, access, rows=SAMPLED_ROWS
    )
    weighed = [
        (len(part), samples[part.queue].size_bytes)
        for part in fullest
        if samples[part.queue].size_bytes > 0
    ]
    if not weighed:
        return None
    return sum(rows * size for rows, size in weighed) / sum(rows for rows, _ in weighed)
