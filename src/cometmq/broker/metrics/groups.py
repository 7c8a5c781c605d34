"""Metrics of consumer groups: lag in messages and time, messages in flight, offsets, connections.

The ages of the oldest messages that a group has not consumed, and not pulled, are read from the
log: once for each offset, and for at most 500 offsets a scrape. Beyond that, the scrape uses the
times of earlier offsets, so an age is too high rather than too low. The next scrape begins where
the reads ended.
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

#: Maximum number of store times that a scrape reads from the log.
READS_MAX: Final = 500
_MODELS: Final = {"BROADCASTING": "0", "CLUSTERING": "1"}
_MODES: Final = {"CONSUME_PASSIVELY": "push", "CONSUME_ACTIVELY": "pull"}

#: Topic, group, queue id, and True for the position up to which the group pulled, False for the one
#: up to which it consumed.
_Place = tuple[str, str, int, bool]


class _Times:
    """Store times of the messages that groups consume or pull next, as far as they are known."""

    def __init__(self) -> None:
        #: Offset and store time (ms) by place, of the last scrape and of this one.
        self._known: dict[_Place, tuple[int, int]] = {}
        self._seen: dict[_Place, tuple[int, int]] = {}
        self.reads_left = READS_MAX

    def begin(self) -> None:
        """Begin a scrape."""
        self._known, self._seen = self._seen or self._known, {}
        self.reads_left = READS_MAX

    def known(self, place: _Place, offset: int) -> int | None:
        """Return the time of an offset, or of an earlier one if no reads are left; None if the log
        has to be read."""
        found = self._known.get(place)
        if found is not None and (found[0] == offset or self.reads_left <= 0):
            self._seen[place] = found
            return found[1]
        return None

    def put(self, place: _Place, offset: int, store_ms: int) -> None:
        """Note the time of an offset."""
        self.reads_left -= 1
        self._seen[place] = offset, store_ms


class _Oldest:
    """Age of the oldest of some messages, by their store times."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self._age_ms = 0
        self._is_known = True

    def add(self, store_ms: int | None) -> None:
        """Add a message; None if its time is not known yet."""
        if store_ms is None:
            self._is_known = False
        elif store_ms > 0:
            self._age_ms = max(self._age_ms, self._now_ms - store_ms)

    @property
    def age_ms(self) -> int | None:
        """The age: 0 without a message, None if no age is known yet."""
        return self._age_ms if self._age_ms or self._is_known else None


class _Lag:
    """Messages of a topic that a group has not consumed: those in flight, and those not pulled."""

    def __init__(self, now_ms: int) -> None:
        self.messages = self.inflight = self.ready = 0
        self.unconsumed = _Oldest(now_ms)
        self.unpulled = _Oldest(now_ms)


class GroupMetrics:
    """Metrics of consumer groups and of producers."""

    def __init__(self, context: BrokerContext) -> None:
        self._config = context.config
        self._store = context.store
        self._stats = context.stats
        self._tables = context.tables
        self._clock = context.clock
        self._times = _Times()
        #: Index of the pair of a topic and a group with which the next scrape begins.
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
        found = self._new(
            catalog.LAG_MESSAGES,
            catalog.LAG_LATENCY,
            catalog.LAG_LATENCY_DOCUMENTED,
            catalog.INFLIGHT_MESSAGES,
            catalog.READY_MESSAGES,
            catalog.QUEUEING_LATENCY,
            catalog.QUEUEING_LATENCY_DOCUMENTED,
            catalog.GET_LATENCY,
            catalog.CONSUMER_OFFSET,
            catalog.GROUP_DIFF,
            catalog.RETRY_DIFF,
            catalog.DLQ_DIFF,
        )
        messages, latency, documented, inflight, ready, queueing, queueing_documented = found[:7]
        by_time, total, diff, retries, dead = found[7:]
        place = self._config.broker_cluster_name, self._config.broker_name
        self._times.begin()
        positions = [*self._tables.offsets.positions()]
        begin, self._first = min(self._first, len(positions)), 0
        for number, (topic, group, offsets) in enumerate(positions[begin:] + positions[:begin]):
            if is_system_topic(topic) or topic not in self._tables.topics:
                continue
            online = self._tables.members.group(group)
            count = 0 if online is None else len(online.members)
            lag = await self._lag(topic, group, offsets, is_online=count > 0)
            if self._times.reads_left <= 0 and not self._first:
                self._first = (begin + number) % len(positions)
            labels = topic, group, is_retry(topic), is_system(topic, group)
            messages.add(lag.messages, *labels)
            inflight.add(lag.inflight, *labels)
            ready.add(lag.ready, *labels)
            if (age_ms := lag.unconsumed.age_ms) is not None:
                latency.add(age_ms, *labels)
                documented.add(age_ms, *labels)
                by_time.add(age_ms, *place, topic, group)
            if (age_ms := lag.unpulled.age_ms) is not None:
                queueing.add(age_ms, *labels)
                queueing_documented.add(age_ms, *labels)
            total.add(sum(offsets.values()), *place, topic, group)
            series = retries if topic.startswith(RETRY_PREFIX) else diff
            if topic.startswith(DLQ_PREFIX):
                series = dead
            model = "CLUSTERING" if online is None else online.message_model
            series.add(lag.messages, group, topic, str(count), _MODELS.get(model, model))
            await slices.pause()
        return found

    async def _lag(
        self, topic: str, group: str, offsets: dict[int, int], *, is_online: bool
    ) -> _Lag:
        """Return a group's lag in a topic. Without online consumers no message is in flight."""
        found = _Lag(self._clock.wall_ms())
        pulled = self._stats.positions.get((group, topic), {}) if is_online else {}
        for queue_id in sorted(self._store.queues.known.get(topic, ())):
            low, high = bounds(self._store, topic, queue_id)
            committed = offsets.get(queue_id)
            offset = max(committed or 0, low)
            if offset >= high:
                continue
            position = offset
            if queue_id in pulled:
                position = min(max(pulled[queue_id].offset, offset), high)
            found.messages += high - offset
            found.ready += high - position
            if committed is not None:
                found.inflight += position - offset
            store_ms = await self._time((topic, group, queue_id, False), offset)
            found.unconsumed.add(store_ms)
            if offset < position < high:
                store_ms = await self._time((topic, group, queue_id, True), position)
            if position < high:
                found.unpulled.add(store_ms)
        return found

    async def _time(self, place: _Place, offset: int) -> int | None:
        known = self._times.known(place, offset)
        if known is not None or self._times.reads_left <= 0:
            return known
        topic, _, queue_id, _ = place
        store_ms = await self._store.store_time_at(topic, queue_id, offset)
        self._times.put(place, offset, store_ms)
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
