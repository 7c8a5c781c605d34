"""``spark.readStream``: micro-batches from one offset of every queue to the next.

The checkpoint alone says what was read; what a consumer group is told serves the eyes. The driver's
side lives in one Python process as long as the query; tasks get the reader pickled and use only its
options. Offsets: see offsets.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from cometmq.core.clock import SystemClock
from cometmq.spark.brokers import cluster, reach
from cometmq.spark.frozen import keep_loaded
from cometmq.spark.read import limits, sizes, topics
from cometmq.spark.read.discovery import AWAY, Discovery
from cometmq.spark.read.lag import LagReport
from cometmq.spark.read.losses import report_loss
from cometmq.spark.read.offsets import Offsets, StreamOffset, from_json
from cometmq.spark.read.partition import planned, ranges_of
from cometmq.spark.read.planning import advance, backward, cap, ranges
from cometmq.spark.read.points import AtOffsets, Edge, Named
from cometmq.spark.read.positions import check_order, resolve
from cometmq.spark.read.rows import batches

if TYPE_CHECKING:
    import pyarrow as pa

    from cometmq.message.model import MessageQueue
    from cometmq.spark.brokers.reach import Ends
    from cometmq.spark.read.limits import Caps
    from cometmq.spark.read.options import ReadOptions

Json = dict[str, object]

_LATEST: Final = Named("startingOffsets", Edge.LATEST)
_clock: Final = SystemClock()


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics from ``starting`` (default latest) on."""

    def __init__(self, options: ReadOptions, names: tuple[str, ...]) -> None:
        self._options = options
        self._names = names
        self._initial: Json | None = None
        self._frozen: Ends | None = None
        self._newest: Json | None = None
        self._batch_ms: int | None = None
        self._discovery = Discovery(options)
        self._lag: LagReport | None = None
        if options.consumer_group is not None and options.reports_lag:
            self._lag = LagReport(options.consumer_group, options.access)

    # ------------------------------------------------------------------------- on the driver

    def initialOffset(self) -> Json:
        """Where a new query starts. Spark asks more than once and must hear the same."""
        if self._initial is None:
            access = self._options.access
            queues = topics.find_all(self._options.topics, access)
            starting = self._options.starting or _LATEST
            start = resolve(starting, queues, access)
            if isinstance(starting.point, AtOffsets):
                check_order(start, reach.latest(queues, access), starting.option)
            self._initial = StreamOffset(start, is_first=True).to_json()
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        """The caps of the options."""
        return limits.default_limit(self._options.caps)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix what "available" means; messages that come later wait for the next start.

        Raises what :func:`topics.find_all` and :func:`reach.ends` raise.
        """
        options = self._options
        if options.fail_on_data_loss:
            queues = topics.find_all(options.topics, options.access)
        else:
            queues = topics.find(options.topics, options.access).queues
        self._frozen = reach.ends(queues, options.access)

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:
        """The end of the next batch, equal to ``start`` when there is nothing to read.

        Raises DataLoss when a queue ends before ``start``.
        """
        known = from_json(start)
        if self._lag is not None and not known.is_first:
            # Spark asks for a batch's end when the batch before is finished.
            self._lag.report(known.queues)
        ends = self._discovery.ends() if self._frozen is None else self._frozen
        self._newest = StreamOffset(ends.by_queue).to_json()
        try:
            begin, furthest = self._bounds(known.queues, ends)
            end = self._capped(begin, furthest, limits.under(limit, self._options.caps))
        except AWAY:
            return start  # a broker that has just gone away: discovery bears that
        if end is None or end == known.queues:
            return start
        self._batch_ms = _clock.monotonic_ms()
        self._discovery.has_news()
        origin = {q: at for q, at in begin.items() if known.is_first or q not in known.queues}
        return StreamOffset(end, origin=origin or None).to_json()

    def reportLatestOffset(self) -> Json | None:
        """How far the queues reach, for Spark's progress report."""
        return self._newest

    def partitions(self, start: Json, end: Json) -> list[InputPartition]:
        """The tasks of a batch; also of one that ran before and is run again."""
        stop = from_json(end)
        begin = {**from_json(start).queues, **(stop.origin or {})}
        return planned(ranges(begin, stop.queues), self._options)

    def commit(self, end: Json) -> None:
        """Nothing: Spark calls this a batch late, and not for the last one."""

    def stop(self) -> None:
        """Nothing: Spark does not always call it."""

    # -------------------------------------------------------------------------- in the tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task. Raises DataLoss and what the wire raises."""
        keep_loaded()
        parts = ranges_of(partition)
        cluster.prefetch((part.queue.topic for part in parts), self._options.access)
        return batches(parts, self._options, self._names)

    # ------------------------------------------------------------------------- what to read next

    def _bounds(
        self, known: Offsets, ends: Ends
    ) -> tuple[dict[MessageQueue, int], dict[MessageQueue, int]]:
        """Where a batch of everything would start and end."""
        told = dict(ends.by_queue)
        for queue in ends.copies & known.keys():
            # A slave may be behind, which is no loss: its master has the rest.
            told[queue] = max(told[queue], known[queue])
        for queue in backward(known, told):
            report_loss(queue, told[queue], known[queue], self._options)
        new = [queue for queue, end in told.items() if queue not in known and end > 0]
        oldest = reach.earliest(new, self._options.access)
        begin = {**known, **{q: offset for q, offset in oldest.items() if offset < told[q]}}
        return begin, advance(begin, {q: end for q, end in told.items() if q in begin})

    def _capped(self, begin: Offsets, end: Offsets, caps: Caps) -> Offsets | None:
        """``end`` drawn in to what a batch may take; None when there is not enough yet."""
        todo = ranges(begin, end)
        rows = sum(map(len, todo))
        if rows == 0 or backward(begin, end):
            return end  # what is lost is passed over at once, so that it is reported once
        if self._frozen is None and not limits.is_enough(caps, rows, self._since_batch_ms()):
            return None
        rows_max = caps.rows_max
        if caps.bytes_max is not None:
            within = sizes.rows_within(caps.bytes_max, todo, self._options.access)
            rows_max = min(n for n in (rows_max, within, rows) if n is not None)
        return end if rows_max is None else cap(begin, end, rows_max)

    def _since_batch_ms(self) -> int | None:
        return None if self._batch_ms is None else _clock.monotonic_ms() - self._batch_ms
