"""The reader that Spark calls for ``spark.readStream``: micro-batches from one offset of every
queue to the next.

On the driver, one Python process keeps the reader as long as the query runs. Tasks receive a
pickled copy and use only its options. Only the checkpoint records the offsets read (see
checkpoint.py); offsets committed for a consumer group are for monitoring.

The module needs pyspark 4.2, which introduced read limits.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from cometmq.core.clock import SystemClock
from cometmq.core.errors import BrokerRefused, ClientError
from cometmq.spark.brokers import offsets
from cometmq.spark.brokers.offsets import EndOffsets
from cometmq.spark.read import discovery
from cometmq.spark.read.checkpoint import Offsets, StreamOffset, from_json
from cometmq.spark.read.discovery import (
    AWAY,
    Discovery,
    find_queues,
    wait_for_brokers,
    without_brokers,
)
from cometmq.spark.read.losses import report_loss
from cometmq.spark.read.options import Caps, is_enough
from cometmq.spark.read.planning import advance, backward, cap, ranges
from cometmq.spark.read.positions import AtOffsets, Edge, NamedPosition, check_order, resolve
from cometmq.spark.read.reader import (
    UNSAMPLED_ROWS,
    partitions_of,
    rows_of,
    rows_of_task,
    rows_within,
    sampled_bytes,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from cometmq.message.model import MessageQueue
    from cometmq.spark.brokers.access import Access
    from cometmq.spark.read.options import ReadOptions
    from cometmq.spark.read.planning import Range
    from cometmq.spark.values.columns import ValueColumns


log = logging.getLogger(__name__)

SAMPLE_KEPT_MS: Final = 60_000
"""Time for which a stream uses a sampled record size."""

EARLIEST_MS: Final = 10_000
"""Interval at which a stream with limits asks for the oldest offsets of its queues."""

Json = dict[str, object]
_FROM_LATEST: Final = NamedPosition("startingOffsets", Edge.LATEST)
_clock: Final = SystemClock()


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics from the position ``starting`` on (default: latest)."""

    def __init__(
        self, options: ReadOptions, names: tuple[str, ...], values: ValueColumns | None = None
    ) -> None:
        self._options = options
        self._names = names
        self._values = values
        self._initial: Json | None = None
        #: Ends fixed for the trigger availableNow.
        self._frozen: EndOffsets | None = None
        self._newest: Json | None = None
        self._batch_ms: int | None = None
        self._mean_bytes: float | None = None
        self._sampled_ms: int | None = None
        self._oldest: dict[MessageQueue, int] = {}
        self._oldest_ms: int | None = None
        #: The last end that a broker reported for each queue, also of brokers that are away.
        self._reported: dict[MessageQueue, int] = {}
        #: Whether ``_frozen`` includes the queues that only the checkpoint names.
        self._is_whole = True
        #: Names of the brokers that ``_frozen`` leaves out.
        self._without: frozenset[str] = frozenset()
        self._discovery = Discovery(options)
        self._lag: LagReport | None = None
        if options.consumer_group is not None and options.reports_lag:
            self._lag = LagReport(options.consumer_group, options.access)

    # ------------------------------------------------------------------------- on the driver

    def initialOffset(self) -> Json:
        """Return the offset where a new query starts. Spark calls this more than once and must get
        the same offset."""
        if self._initial is None:
            start = wait_for_brokers(self._first, self._options.outage, discovery.OUTAGE_MS)
            self._initial = StreamOffset(start, is_first=True).to_json()
        return self._initial

    def _first(self) -> Offsets:
        access = self._options.access
        found = find_queues(self._options)
        starting = without_brokers(self._options.starting or _FROM_LATEST, found.without)
        start = resolve(starting, found.queues, access)
        if isinstance(starting.position, AtOffsets):
            check_order(start, offsets.latest(found.queues, access), starting.option)
        return start

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limits of the options."""
        return default_read_limit(self._options.caps)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the ends of the queues, for the trigger availableNow. Messages stored later are read
        by the next run.

        Raises the errors of :func:`find_queues` and :func:`offsets.ends`.
        """
        self._frozen = self._freeze(())
        self._is_whole = False

    def _freeze(self, known: Iterable[MessageQueue]) -> EndOffsets:
        options = self._options

        def ends() -> EndOffsets:
            found = find_queues(options, known, must_exist=options.fail_on_data_loss)
            self._without = found.without
            return offsets.ends(found.queues, options.access)

        return wait_for_brokers(ends, options.outage, discovery.OUTAGE_MS)

    def _whole(self, frozen: EndOffsets, known: Offsets) -> EndOffsets:
        """Return the fixed ends, with the queues added that only the checkpoint (``known``) names.

        They are added at the first batch, because Spark does not pass the checkpoint earlier.
        """
        rest = [queue for queue in known if queue not in frozen.by_queue]
        if self._is_whole or not rest:
            self._is_whole = True
            return frozen
        found = self._freeze(rest)
        self._is_whole = True
        late = {queue: found.by_queue[queue] for queue in rest if queue in found.by_queue}
        return EndOffsets({**frozen.by_queue, **late}, frozen.copies | (found.copies & late.keys()))

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:
        """Return the end of the next batch, which equals ``start`` if there is nothing to read.

        Raises DataLoss if a queue ends before ``start``.
        """
        known = from_json(start)
        if not self._reported:
            self._reported.update(known.reached or {})
        if self._lag is not None and not known.is_first:
            # Spark asks for the end of a batch once the batch before it is finished.
            self._lag.report(known.queues)
        if self._frozen is None:
            ends = self._discovery.ends(known.queues)
        else:
            ends = self._frozen = self._whole(self._frozen, known.queues)
        self._newest = StreamOffset(self._reaching(known.queues, ends)).to_json()

        def bounds() -> tuple[Offsets, Offsets | None]:
            begin, furthest, lost = self._bounds(known.queues, ends)
            end = self._capped(begin, furthest, caps_under(limit, self._options.caps))
            # Report after all requests: a failed attempt is repeated, and must not report twice.
            for queue in lost:
                report_loss(queue, furthest[queue], begin[queue], self._options)
            return begin, end

        if self._frozen is not None:
            # Wait here: returning ``start`` would end the query with messages unread.
            begin, end = wait_for_brokers(bounds, self._options.outage, discovery.OUTAGE_MS)
        else:
            try:
                begin, end = bounds()
            except AWAY:
                return start  # a broker has just gone away: the next round of discovery handles it
        if end is None or end == known.queues:
            return start
        self._batch_ms = _clock.monotonic_ms()
        self._discovery.has_news()
        origin = {q: at for q, at in begin.items() if known.is_first or q not in known.queues}
        reached = {q: at for q, at in self._reported.items() if at > end.get(q, at)}
        return StreamOffset(end, origin=origin or None, reached=reached or None).to_json()

    def reportLatestOffset(self) -> Json | None:
        """Return the ends of the queues, for Spark's progress report."""
        return self._newest

    def partitions(self, start: Json, end: Json) -> list[InputPartition]:
        """Return the tasks of a batch, which may be one that Spark repeats after a restart."""
        stop = from_json(end)
        begin = {**from_json(start).queues, **(stop.origin or {})}
        todo = ranges(begin, stop.queues)
        self._sample(todo)
        return partitions_of(todo, self._options, mean_bytes=self._mean_bytes)

    def _sample(self, todo: Sequence[Range]) -> None:
        """Sample the mean size of a record if the last sample is older than SAMPLE_KEPT_MS."""
        now_ms = _clock.monotonic_ms()
        if self._sampled_ms is not None and now_ms - self._sampled_ms < SAMPLE_KEPT_MS:
            return
        if rows_of(todo) > UNSAMPLED_ROWS:
            self._mean_bytes = sampled_bytes(todo, self._options.access) or self._mean_bytes
            self._sampled_ms = now_ms

    def commit(self, end: Json) -> None:
        """Do nothing: Spark calls this one batch late, and not for the last batch."""

    def stop(self) -> None:
        """Do nothing: Spark does not always call this."""

    # -------------------------------------------------------------------------- in the tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task. Raises DataLoss and the errors of requests to brokers."""
        return rows_of_task(partition, self._options, self._names, self._values)

    # ------------------------------------------------------------------------- what to read next

    def _reaching(self, known: Offsets, ends: EndOffsets) -> Offsets:
        """Return the last known ends of the queues. For a broker that is away, this is the last end
        it reported, so that the lag still counts its unread messages."""
        self._reported |= ends.by_queue
        unasked = (queue for queue in known if queue not in ends.by_queue)
        away = (queue for queue in unasked if self._is_away(queue))
        return {**ends.by_queue, **{q: max(known[q], self._reported.get(q, 0)) for q in away}}

    def _is_away(self, queue: MessageQueue) -> bool:
        if self._frozen is None:
            return self._discovery.is_away(queue)
        return queue.broker_name in self._without

    def _bounds(
        self, known: Offsets, ends: EndOffsets
    ) -> tuple[dict[MessageQueue, int], dict[MessageQueue, int], list[MessageQueue]]:
        """Return the start and the end of a batch without limits, and the queues whose end is
        before their start: their messages are lost."""
        end_now = dict(ends.by_queue)
        for queue in ends.copies & known.keys():
            # A slave may lag, which is no loss: its master has the later messages.
            end_now[queue] = max(end_now[queue], known[queue])
        new = [queue for queue, end in end_now.items() if queue not in known and end > 0]
        oldest = offsets.earliest(new, self._options.access)
        lost = backward(known, end_now)
        begin = {**known, **{q: offset for q, offset in oldest.items() if offset < end_now[q]}}
        end = advance(begin, {q: end for q, end in end_now.items() if q in begin})
        return begin, end, lost

    def _capped(self, begin: Offsets, end: Offsets, caps: Caps) -> Offsets | None:
        """Return ``end`` reduced to the limits of a batch, or None if there are too few messages
        yet."""
        todo = ranges(begin, end)
        rows = rows_of(todo)
        if rows == 0:
            return end
        # A batch with a loss does not wait for more messages: the loss would be reported again in
        # each attempt.
        may_wait = self._frozen is None and not backward(begin, end)
        if may_wait and not is_enough(caps, rows, self._since_batch_ms()):
            return None
        rows_max = caps.rows_max
        if caps.bytes_max is None and (rows_max is None or rows <= rows_max):
            return end
        # Expired messages do not count towards the limits: one batch skips all of them.
        oldest = self._earliest(todo)
        there = {q: min(max(at, oldest.get(q, at)), end.get(q, at)) for q, at in begin.items()}
        left = ranges(there, end)
        if caps.bytes_max is not None and left:
            within = rows_within(caps.bytes_max, left, self._options.access)
            rows_max = min(n for n in (rows_max, within, rows) if n is not None)
        if rows_max is None or rows_of(left) <= rows_max:
            return end
        return cap(there, end, rows_max)

    def _earliest(self, todo: Iterable[Range]) -> Offsets:
        """Return the oldest offsets of queues, asked at most EARLIEST_MS ago. They only grow, so an
        old answer is a lower bound."""
        now_ms = _clock.monotonic_ms()
        if self._oldest_ms is None or now_ms - self._oldest_ms >= EARLIEST_MS:
            asked = [part.queue for part in todo]
            self._oldest = offsets.earliest(asked, self._options.access)
            self._oldest_ms = now_ms
        return self._oldest

    def _since_batch_ms(self) -> int | None:
        return None if self._batch_ms is None else _clock.monotonic_ms() - self._batch_ms


def default_read_limit(caps: Caps) -> ReadLimit:
    """Return the limit that Spark passes with each request.

    Spark has no limit with several parts, so one of ``caps`` stands for all: see
    :func:`caps_under`.
    """
    if caps.rows_max is not None:
        return ReadMaxRows(caps.rows_max)
    if caps.bytes_max is not None:
        return ReadMaxBytes(caps.bytes_max)
    if caps.rows_min is not None:
        return ReadMinRows(caps.rows_min)
    return ReadAllAvailable()


def caps_under(limit: ReadLimit, caps: Caps) -> Caps:
    """Return the limits that apply when Spark asks with ``limit``.

    They are ``caps``, the limits of the options, with the number of ``limit`` in place of the
    corresponding one. ReadAllAvailable removes all limits.
    """
    match limit:
        case ReadAllAvailable():
            return Caps()
        case ReadMaxRows():
            return replace(caps, rows_max=limit.max_rows)
        case ReadMaxBytes():
            return replace(caps, bytes_max=limit.max_bytes)
        case ReadMinRows():
            return replace(caps, rows_min=limit.min_rows)
    return caps  # ReadMaxFiles does not apply: there are no files


class LagReport:
    """Commits the end of each finished batch as the offsets of a group, so that tools show the lag.
    Failures are only logged."""

    def __init__(self, group: str, access: Access) -> None:
        self._group = group
        self._access = access
        self._reported: dict[MessageQueue, int] = {}

    def report(self, reached: Offsets) -> None:
        """Commit the offsets that changed since the last report."""
        changed = {q: at for q, at in reached.items() if self._reported.get(q) != at}
        if not changed:
            return
        # One request per broker: a broker that is away must not prevent commits on the others.
        for name in sorted({queue.broker_name for queue in changed}):
            self._report({q: at for q, at in changed.items() if q.broker_name == name})

    def _report(self, changed: dict[MessageQueue, int]) -> None:
        try:
            self._make(changed)
            offsets.commit(self._group, changed, self._access)
        except ClientError as error:
            log.warning("lag_not_reported group=%s error=%r", self._group, str(error))
            return
        self._reported |= changed

    def _make(self, changed: Offsets) -> None:
        """Create the group on brokers where this query has not reported yet.

        If a broker refuses, that is only logged: it may still accept offsets of the group.
        """
        known = {queue.broker_name for queue in self._reported}
        strange = [queue for queue in changed if queue.broker_name not in known]
        if not strange:
            return
        try:
            offsets.ensure_group(self._group, strange, self._access)
        except BrokerRefused as error:
            log.warning("group_not_created group=%s error=%r", self._group, str(error))
