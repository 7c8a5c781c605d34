"""``spark.readStream``: micro-batches from one offset of every queue to the next.

The checkpoint alone says what was read; nothing is committed at a broker. The driver's side lives
in one Python process as long as the query; tasks get the reader pickled and use only its options.
Offsets: see offsets.py. A first batch carries its own start (``from``), since Spark asks for the
initial offset again when a query was killed before its first commit.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from cometmq.core.errors import RouteNotFound
from cometmq.spark import cluster
from cometmq.spark.offsets import Offsets, StreamOffset, from_json
from cometmq.spark.options import Kind, Point, ReadOptions
from cometmq.spark.partition import QueueRanges, ranges_of
from cometmq.spark.planning import advance, backward, cap, ranges, tasks
from cometmq.spark.positions import resolve
from cometmq.spark.rows import batches, report_loss

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

Json = dict[str, object]


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics from ``starting`` (default latest) on."""

    def __init__(self, options: ReadOptions, names: tuple[str, ...]) -> None:
        self._options = options
        self._names = names
        self._initial: Json | None = None
        self._frozen: Offsets | None = None
        self._newest: Json | None = None

    # ------------------------------------------------------------------------- on the driver

    def initialOffset(self) -> Json:
        """Where a new query starts. Spark asks more than once and must hear the same."""
        if self._initial is None:
            queues = cluster.queues(self._options)
            starting = self._options.starting or Point(Kind.LATEST)
            start = resolve(starting, "startingOffsets", queues, self._options)
            self._initial = StreamOffset(start, is_first=True).to_json()
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        """The cap of option maxOffsetsPerTrigger."""
        rows_max = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if rows_max is None else ReadMaxRows(rows_max)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix what "available" means; messages that come later wait for the next start."""
        self._frozen = self._ends()

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:
        """The end of the next batch, equal to ``start`` when there is nothing to read.

        Raises DataLoss when a queue ends before ``start``.
        """
        known = from_json(start)
        ends = self._ends()
        self._newest = StreamOffset(ends).to_json()
        for queue in backward(known.queues, ends):
            report_loss(queue, ends[queue], known.queues[queue], self._options)
        end = advance(known.queues, ends, self._frozen)
        if isinstance(limit, ReadMaxRows):
            end = cap(known.queues, end, limit.max_rows)
        if end == known.queues:
            return start
        origin = known.queues if known.is_first else None
        return StreamOffset(end, origin=origin).to_json()

    def reportLatestOffset(self) -> Json | None:
        """How far the queues reach, for Spark's progress report."""
        return self._newest

    def partitions(self, start: Json, end: Json) -> list[InputPartition]:
        """The tasks of a batch; also of one that ran before and is run again."""
        stop = from_json(end)
        begin = from_json(start).queues
        if stop.origin is not None:
            begin = stop.origin
        planned = tasks(
            ranges(begin, stop.queues),
            tasks_min=self._options.min_partitions,
            rows_max=self._options.max_rows_per_partition,
        )
        return [QueueRanges(parts) for parts in planned]

    def commit(self, end: Json) -> None:
        """Nothing: the checkpoint is the truth, and Spark calls this a batch late or never."""

    def stop(self) -> None:
        """Nothing: Spark does not always call it."""

    # -------------------------------------------------------------------------- in the tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task. Raises DataLoss and what the wire raises."""
        return batches(ranges_of(partition), self._options, self._names)

    def _ends(self) -> Offsets:
        try:
            queues = cluster.queues(self._options)
        except RouteNotFound as error:
            # Its brokers are away or it was deleted; its queues stay where they are.
            log.warning("topic_without_route error=%r", str(error))
            return {}
        return cluster.latest(self._options, queues)
