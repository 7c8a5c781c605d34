"""``spark.read``: every message between two points, planned once.

Spark makes the reader in a planning process, asks it for partitions there, and sends it pickled to
the tasks; so it holds values only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from cometmq.spark.brokers import cluster
from cometmq.spark.read.partition import QueueRanges, ranges_of
from cometmq.spark.read.planning import ranges, tasks
from cometmq.spark.read.points import Kind, Point
from cometmq.spark.read.positions import resolve
from cometmq.spark.read.rows import batches

if TYPE_CHECKING:
    import pyarrow as pa

    from cometmq.spark.read.options import ReadOptions


class TopicReader(DataSourceReader):
    """Reads topics from ``starting`` (default earliest) to ``ending`` (default latest)."""

    def __init__(self, options: ReadOptions, names: tuple[str, ...]) -> None:
        self._options = options
        self._names = names

    def partitions(self) -> list[InputPartition]:
        """One partition a task. Raises RouteNotFound, NotConnected, BadOption."""
        options = self._options
        queues = cluster.queues(options.topics, options.access)
        starting = options.starting or Point(Kind.EARLIEST)
        ending = options.ending or Point(Kind.LATEST)
        start = resolve(starting, "startingOffsets", queues, options)
        end = resolve(ending, "endingOffsets", queues, options)
        planned = tasks(
            ranges(start, end),
            tasks_min=options.min_partitions,
            rows_max=options.max_rows_per_partition,
        )
        return [QueueRanges(parts) for parts in planned]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task. Raises DataLoss and what the wire raises."""
        return batches(ranges_of(partition), self._options, self._names)
