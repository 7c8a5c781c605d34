"""``spark.readStream``: micro-batches from one offset of every queue to the next.

The checkpoint alone says what was read; nothing is committed at a broker. The driver's side lives
in one Python process as long as the query; tasks get the reader pickled and use only its options.
Offsets: see offsets.py. A first batch carries its own start (``from``), since Spark asks for the
initial offset again when a query was killed before its first commit.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from cometmq.core.clock import SystemClock
from cometmq.core.errors import ClientError, NotConnected, RequestTimedOut, RouteNotFound
from cometmq.spark.brokers import cluster
from cometmq.spark.read.losses import report_loss
from cometmq.spark.read.offsets import Offsets, StreamOffset, from_json
from cometmq.spark.read.partition import QueueRanges, ranges_of
from cometmq.spark.read.planning import advance, backward, cap, ranges, tasks
from cometmq.spark.read.points import Kind, Point
from cometmq.spark.read.positions import resolve
from cometmq.spark.read.rows import batches

if TYPE_CHECKING:
    import pyarrow as pa

    from cometmq.message.model import MessageQueue
    from cometmq.spark.read.options import ReadOptions

log = logging.getLogger(__name__)

Json = dict[str, object]

OUTAGE_MS: Final = 120_000
"""How long a broker or a name server may be away before the query fails."""

_AWAY: Final = (RouteNotFound, NotConnected, RequestTimedOut)
_clock: Final = SystemClock()


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics from ``starting`` (default latest) on."""

    def __init__(self, options: ReadOptions, names: tuple[str, ...]) -> None:
        self._options = options
        self._names = names
        self._initial: Json | None = None
        self._frozen: Offsets | None = None
        self._newest: Json | None = None
        self._away_since_ms: int | None = None

    # ------------------------------------------------------------------------- on the driver

    def initialOffset(self) -> Json:
        """Where a new query starts. Spark asks more than once and must hear the same."""
        if self._initial is None:
            queues = cluster.queues(self._options.topics, self._options.access)
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
        queues = cluster.queues(self._options.topics, self._options.access)
        self._frozen = cluster.latest(queues, self._options.access)

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:
        """The end of the next batch, equal to ``start`` when there is nothing to read.

        Raises DataLoss when a queue ends before ``start``.
        """
        known = from_json(start)
        ends = self._ends() if self._frozen is None else self._frozen
        self._newest = StreamOffset(ends).to_json()
        for queue in backward(known.queues, ends):
            report_loss(queue, ends[queue], known.queues[queue], self._options)
        end = advance(known.queues, ends)
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
        """How far each queue reaches, without those whose broker cannot be asked now.

        Raises the last failure when some broker or name server is away for OUTAGE_MS.
        """
        found: dict[MessageQueue, int] = {}
        failure: ClientError | None = None
        try:
            queues = cluster.queues(self._options.topics, self._options.access)
        except _AWAY as error:
            queues, failure = [], error
        for name in sorted({queue.broker_name for queue in queues}):
            of_broker = [queue for queue in queues if queue.broker_name == name]
            try:
                found |= cluster.latest(of_broker, self._options.access)
            except _AWAY as error:
                failure = error
        self._bear(failure)
        return found

    def _bear(self, failure: ClientError | None) -> None:
        """Let a restart of a broker pass, and a real outage stop the query."""
        now_ms = _clock.monotonic_ms()
        if failure is None:
            self._away_since_ms = None
            return
        if self._away_since_ms is None:
            self._away_since_ms = now_ms
        away_ms = now_ms - self._away_since_ms
        log.warning("queues_unknown away_ms=%d error=%r", away_ms, str(failure))
        if away_ms >= OUTAGE_MS:
            raise failure
