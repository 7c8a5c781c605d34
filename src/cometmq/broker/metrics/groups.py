"""Metrics of consumer groups: lag in messages and in time, offsets, connections.

The age of a group's oldest message that it has not consumed is read from the log: once for each
offset, and for at most 500 queues a scrape. Beyond that, the times of earlier offsets are shown,
which are too old rather than too young, and the next scrape reads on from there.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from cometmq.broker.lookup import bounds
from cometmq.broker.metrics import catalog
from cometmq.broker.metrics.labels import is_retry, is_system
from cometmq.message.names import DLQ_PREFIX, RETRY_PREFIX, is_system_topic
from cometmq.monitoring.series import Series
from cometmq.protocol.codes import version_name

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from cometmq.broker.context import BrokerContext
    from cometmq.core.clock import Slices
    from cometmq.monitoring.series import Metric

#: Most store times that a scrape reads from the log.
READS_MAX: Final = 500
_MODELS: Final = {"BROADCASTING": "0", "CLUSTERING": "1"}
_MODES: Final = {"CONSUME_PASSIVELY": "push", "CONSUME_ACTIVELY": "pull"}

_Queue = tuple[str, str, int]


class _Times:
    """Store times of the messages that groups consume next, as far as they are known."""

    def __init__(self) -> None:
        self._known: dict[_Queue, tuple[int, int]] = {}
        self._seen: dict[_Queue, tuple[int, int]] = {}
        self.reads_left = READS_MAX

    def begin(self) -> None:
        """Begin a scrape."""
        self._known, self._seen = self._seen or self._known, {}
        self.reads_left = READS_MAX

    def known(self, queue: _Queue, offset: int) -> int | None:
        """Return the time of an offset, or of an earlier one if no reads are left; None if the log
        has to be read."""
        found = self._known.get(queue)
        if found is not None and (found[0] == offset or self.reads_left <= 0):
            self._seen[queue] = found
            return found[1]
        return None

    def put(self, queue: _Queue, offset: int, store_ms: int) -> None:
        """Note the time of an offset."""
        self.reads_left -= 1
        self._seen[queue] = offset, store_ms


class GroupMetrics:
    """Metrics of consumer groups and of producers."""

    def __init__(self, context: BrokerContext) -> None:
        self._config = context.config
        self._store = context.store
        self._tables = context.tables
        self._clock = context.clock
        self._times = _Times()
        self._first = 0

    async def series(self, slices: Slices) -> AsyncIterator[Series]:
        """Return the metrics, one after another."""
        for each in await self._progress(slices):
            yield each
        for each in await self._clients(slices):
            yield each

    def _new(self, *metrics: Metric) -> tuple[Series, ...]:
        most = self._config.metrics_otel_cardinality_limit
        return tuple(Series(metric, most) for metric in metrics)

    # ------------------------------------------------------------------------------------ progress

    async def _progress(self, slices: Slices) -> tuple[Series, ...]:
        found = lag, latency, documented, by_time, total, diff, retries, dead = self._new(
            catalog.LAG_MESSAGES,
            catalog.LAG_LATENCY,
            catalog.LAG_LATENCY_DOCUMENTED,
            catalog.GET_LATENCY,
            catalog.CONSUMER_OFFSET,
            catalog.GROUP_DIFF,
            catalog.RETRY_DIFF,
            catalog.DLQ_DIFF,
        )
        place = self._config.broker_cluster_name, self._config.broker_name
        self._times.begin()
        positions = [*self._tables.offsets.positions()]
        begin, self._first = min(self._first, len(positions)), 0
        for number, (topic, group, offsets) in enumerate(positions[begin:] + positions[:begin]):
            if is_system_topic(topic) or topic not in self._tables.topics:
                continue
            behind, oldest_ms = await self._behind(topic, group, offsets)
            if self._times.reads_left <= 0 and not self._first:
                self._first = (begin + number) % len(positions)
            labels = topic, group, is_retry(topic), is_system(topic, group)
            lag.add(behind, *labels)
            if oldest_ms is not None:
                latency.add(oldest_ms, *labels)
                documented.add(oldest_ms, *labels)
                by_time.add(oldest_ms, *place, topic, group)
            total.add(sum(offsets.values()), *place, topic, group)
            online = self._tables.members.group(group)
            series = retries if topic.startswith(RETRY_PREFIX) else diff
            if topic.startswith(DLQ_PREFIX):
                series = dead
            count = 0 if online is None else len(online.members)
            model = "CLUSTERING" if online is None else online.message_model
            series.add(behind, group, topic, str(count), _MODELS.get(model, model))
            await slices.pause()
        return found

    async def _behind(
        self, topic: str, group: str, offsets: dict[int, int]
    ) -> tuple[int, int | None]:
        """Return a group's lag in a topic, in messages, and the age of the oldest of them in ms: 0
        without lag, None if it is not known yet."""
        behind, oldest_ms, is_known = 0, 0, True
        now_ms = self._clock.wall_ms()
        for queue_id in sorted(self._store.queues.known.get(topic, ())):
            low, high = bounds(self._store, topic, queue_id)
            offset = max(offsets.get(queue_id, 0), low)
            if offset >= high:
                continue
            behind += high - offset
            store_ms = await self._time((topic, group, queue_id), offset)
            if store_ms is None:
                is_known = False
            elif store_ms > 0:
                oldest_ms = max(oldest_ms, now_ms - store_ms)
        return behind, oldest_ms if oldest_ms or is_known else None

    async def _time(self, queue: _Queue, offset: int) -> int | None:
        known = self._times.known(queue, offset)
        if known is not None or self._times.reads_left <= 0:
            return known
        topic, _, queue_id = queue
        store_ms = await self._store.store_time_at(topic, queue_id, offset)
        self._times.put(queue, offset, store_ms)
        return store_ms

    # ------------------------------------------------------------------------------------- clients

    async def _clients(self, slices: Slices) -> tuple[Series, ...]:
        found = producers, consumers, counts = self._new(
            catalog.PRODUCER_CONNECTIONS, catalog.CONSUMER_CONNECTIONS, catalog.PRODUCERS
        )
        table = self._tables.members.table
        place = self._config.broker_cluster_name, self._config.broker_name
        kinds: Counter[tuple[str, str]] = Counter()
        for group, members in [*table.producers.items()]:
            for member in members.values():
                kinds[member.language.lower(), version_name(member.version).lower()] += 1
            counts.add(len(members), *place, group)
            await slices.pause()
        for (language, version), count in kinds.items():
            producers.add(count, language, version, "remoting")
        for name, online in [*table.consumers.items()]:
            kinds = Counter(
                (member.language.lower(), version_name(member.version).lower())
                for member in online.members.values()
            )
            mode = _MODES.get(online.consume_type, online.consume_type.lower())
            for (language, version), count in kinds.items():
                consumers.add(count, name, language, version, mode, "remoting", is_system("", name))
            await slices.pause()
        return found
