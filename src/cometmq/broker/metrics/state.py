"""Metrics of the broker's state: store, event loop, limits, replication, waiting messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.broker.metrics import catalog
from cometmq.broker.metrics.labels import runtime_labels
from cometmq.broker.replication.roles import MasterPart
from cometmq.message.names import TIMER_TOPIC
from cometmq.monitoring.series import Series
from cometmq.protocol.codes import ResponseCode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from cometmq.broker.context import BrokerContext
    from cometmq.broker.replication import ReplicationService
    from cometmq.broker.scheduled import ScheduleService
    from cometmq.broker.transactions import TransactionService
    from cometmq.core.clock import Slices
    from cometmq.core.histogram import Histogram
    from cometmq.monitoring.series import Metric
    from cometmq.net.eventloop import Watchdog

#: Values of the labels ``storage_type`` and ``storage_medium``.
LOCAL = ("local", "disk")


def one(metric: Metric, value: float | Histogram, *labels: str) -> Series:
    """Return a metric with a single series."""
    series = Series(metric, 1)
    series.add(value, *labels)
    return series


def some(metric: Metric, values: dict[str, float]) -> Series:
    """Return a metric with one label, from the values by that label."""
    series = Series(metric, len(values))
    for label, value in values.items():
        series.add(value, label)
    return series


def _cause(code: int) -> str:
    """Return the name of the code of an answer, or the number of one without a name."""
    try:
        return ResponseCode(code).name
    except ValueError:
        return str(code)


class StateMetrics:
    """Metrics of the broker's store, event loop, limits, timers, transactions and slaves."""

    def __init__(
        self,
        context: BrokerContext,
        *,
        watchdog: Watchdog,
        scheduled: ScheduleService,
        transactions: TransactionService,
        replication: ReplicationService,
    ) -> None:
        self._context = context
        self._watchdog = watchdog
        self._scheduled = scheduled
        self._transactions = transactions
        self._replication = replication

    async def series(self, slices: Slices) -> AsyncIterator[Series]:
        """Return the metrics, one after another."""
        for each in self._counts():
            yield each
        await slices.pause()
        for each in self._waiting():
            yield each
        if isinstance(self._replication.part, MasterPart):  # a slave delivers nothing
            async for each in self._timers():
                yield each
        for each in self._copies():
            yield each
        await slices.pause()
        for each in self._storage():
            yield each

    def _counts(self) -> Iterator[Series]:
        context, stats = self._context, self._context.stats
        state, tables = context.store.state, context.tables
        yield one(catalog.PERMISSION, context.config.broker_permission)
        yield one(catalog.TOPICS, len(tables.topics))
        yield one(catalog.GROUPS, len(tables.groups))
        yield one(catalog.PUT_SECONDS, stats.put_times.since_start())
        yield one(catalog.PULL_SECONDS, stats.pull_seconds)
        yield one(catalog.DISPATCH_SECONDS, context.store.backlog.delays)
        yield one(catalog.SYNC_SECONDS, context.store.flusher.latency.seconds)
        yield one(catalog.LONG_TURNS, self._watchdog.long_turns)
        yield some(catalog.STALLS, dict(self._watchdog.stalls))
        pulled = stats.pulled
        yield some(catalog.PULLS, {"found": pulled.found, "missed": pulled.missed})
        hits = stats.limits.hits
        yield some(catalog.LIMIT_HITS, {limit.value: count for limit, count in hits.items()})
        refusals = stats.limits.refusals
        yield some(catalog.REFUSALS, {_cause(code): count for code, count in refusals.items()})
        yield one(catalog.CONNECTIONS, stats.limits.open_connections)
        yield one(catalog.WRITES_REFUSED, int(state.refusal is not None))
        yield one(catalog.PUT_FAILURES, state.put_failures)
        yield one(catalog.CONFLICTS, tables.members.conflicting_count)

    def _waiting(self) -> Iterator[Series]:
        index = self._transactions.open.index
        oldest_ms = index.oldest_ms()
        age_ms = self._context.clock.wall_ms() - oldest_ms if oldest_ms else 0
        yield one(catalog.OPEN_TRANSACTIONS, len(index))
        yield one(catalog.OLDEST_TRANSACTION, max(age_ms, 0) / 1_000)
        yield one(catalog.WAITING_TIMERS, max(self._scheduled.timers.pending.count, 0))
        levels = self._scheduled.delay.progress()
        yield some(
            catalog.WAITING_LEVEL,
            {str(level): max(end - at, 0) for level, (at, end) in levels.items()},
        )

    async def _timers(self) -> AsyncIterator[Series]:
        timers, store = self._scheduled.timers, self._context.store
        lag, age_ms = timers.intake.lag, 0
        if lag:
            stored_ms = await store.store_time_at(TIMER_TOPIC, 0, timers.pending.position)
            age_ms = self._context.clock.wall_ms() - stored_ms if stored_ms > 0 else 0
        yield one(catalog.TIMER_ENQUEUE_LAG, lag, *LOCAL)
        yield one(catalog.TIMER_ENQUEUE_LATENCY, max(age_ms, 0), *LOCAL)
        yield one(catalog.TIMER_DEQUEUE_LAG, max(timers.pending.count, 0), *LOCAL)
        yield one(catalog.TIMER_DEQUEUE_LATENCY, timers.behind_ms(), *LOCAL)
        most = self._context.config.metrics_otel_cardinality_limit
        for metric, counts in (
            (catalog.TIMER_ENQUEUED, timers.intake.counts),
            (catalog.TIMER_DEQUEUED, timers.delivery.counts),
        ):
            found = Series(metric, most)
            for topic, (count, _) in counts.by_topic.items():
                found.add(count, topic, *LOCAL)
            yield found
        delays = Series(catalog.DELAYS, most)
        for topic, histogram in timers.intake.delays.items():
            delays.add(histogram, topic, *LOCAL)
        yield delays

    def _copies(self) -> Iterator[Series]:
        part, config = self._replication.part, self._context.config
        if isinstance(part, MasterPart):
            slaves = part.master.slaves()
            yield one(catalog.SLAVES, len(slaves))
            behind = Series(catalog.LOG_DIFF, len(slaves))
            for slave in slaves:
                names = config.broker_cluster_name, slave.address, config.broker_name
                behind.add(slave.behind_bytes, *names)
            yield behind
            yield some(
                catalog.REPLICATION_BEHIND,
                {slave.address: slave.behind_bytes for slave in slaves},
            )
        elif part.tables.master_end >= 0:
            lag = max(part.tables.master_end - self._context.store.written_offset, 0)
            yield one(catalog.REPLICATION_BEHIND, lag, "self")

    def _storage(self) -> Iterator[Series]:
        store = self._context.store
        flushes, dispatches = store.written_offset - store.durable_offset, store.dispatched_offset
        yield one(catalog.FLUSH_BEHIND, max(flushes, 0), *LOCAL)
        yield one(catalog.DISPATCH_BEHIND, max(store.written_offset - dispatches, 0), *LOCAL)
        yield one(catalog.LOG_START, store.log.segments.start)
        yield one(catalog.LOG_END, store.written_offset)
        yield one(catalog.TO_FLUSH, max(flushes, 0), *runtime_labels(self._context))
