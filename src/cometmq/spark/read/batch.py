"""``spark.read``: every message between two positions, planned once.

Spark creates the reader in a planning process, asks it for partitions there, and sends it pickled
to the tasks. So it holds only plain values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition

from cometmq.spark.brokers import cluster
from cometmq.spark.frozen import keep_loaded
from cometmq.spark.read.discovery import (
    BATCH_OUTAGE_MS,
    find_queues,
    wait_for_brokers,
    without_brokers,
)
from cometmq.spark.read.filters import Push, Pushed, split_filters
from cometmq.spark.read.losses import report_loss
from cometmq.spark.read.planning import TASK_ROWS_MAX, backward, ranges
from cometmq.spark.read.positions import (
    AtGroup,
    Edge,
    NamedPosition,
    at_moments,
    check_order,
    end_of,
    resolve,
)
from cometmq.spark.read.rows import batches, planned, ranges_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter

    from cometmq.message.model import MessageQueue
    from cometmq.spark.read.options import ReadOptions


_EARLIEST: Final = NamedPosition("startingOffsets", Edge.EARLIEST)
_LATEST: Final = NamedPosition("endingOffsets", Edge.LATEST)


class TopicReader(DataSourceReader):
    """Reads topics from ``starting`` (default earliest) to ``ending`` (default latest)."""

    def __init__(self, options: ReadOptions, names: tuple[str, ...]) -> None:
        self._options = options
        self._names = names
        self._pushed = Pushed(options.row_filter)
        if options.pushes_filters:
            self.pushFilters = Push(self._push)  # type: ignore[method-assign]

    def _push(self, filters: Iterable[Filter]) -> list[Filter]:
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
        starting = without_brokers(options.starting or _EARLIEST, found.without)
        ending = without_brokers(options.ending or _LATEST, found.without)
        start = resolve(starting, queues, options.access)
        end = end_of(ending, queues, options.access, options)
        if isinstance(starting.position, AtGroup):
            # The group's offset is beyond the end of the queue: its topic was deleted and
            # recreated.
            for queue in backward(start, end):
                report_loss(queue, end[queue], start[queue], options)
        else:
            check_order(start, end, starting.option)

        def at_time(moment_ms: int, asked: Sequence[MessageQueue]) -> Mapping[MessageQueue, int]:
            return at_moments(dict.fromkeys(asked, moment_ms), end, options.access)

        todo = ranges(*self._pushed.cut(start, end, at_time))
        return planned(todo, options, rows_min=TASK_ROWS_MAX)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task. Raises DataLoss and the errors of requests to brokers."""
        keep_loaded()
        parts = ranges_of(partition)
        cluster.prefetch((part.queue.topic for part in parts), self._options.access)
        return batches(parts, self._options, self._names)
