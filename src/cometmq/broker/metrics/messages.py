"""Metrics of messages by topic and group: totals since the start, rates of the last minute."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.broker.metrics import catalog
from cometmq.broker.metrics.labels import is_system
from cometmq.broker.stats import SCHEDULE_CONSUMER
from cometmq.message.names import (
    DLQ_PREFIX,
    HALF_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
)
from cometmq.monitoring.series import Series

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from cometmq.broker.context import BrokerContext
    from cometmq.broker.stats import Counter
    from cometmq.core.clock import Slices
    from cometmq.monitoring.series import Metric


#: Types of messages by the topics where they wait.
_TYPES: Final = {HALF_TOPIC: "transaction", SCHEDULE_TOPIC: "delay", TIMER_TOPIC: "delay"}


class MessageMetrics:
    """Metrics of topics, and of groups in topics."""

    def __init__(self, context: BrokerContext, broker_ip: str) -> None:
        self._config = context.config
        self._store = context.store
        self._stats = context.stats
        self._topics = context.tables.topics
        self._broker_ip = broker_ip
        #: Last shown number and bytes of normal messages, of topics that also got other types.
        self._others: dict[str, tuple[int, int]] = {}

    async def series(self, slices: Slices) -> AsyncIterator[Series]:
        """Return the metrics, one after another."""
        # Take the counts that queues otherwise hold until the next sample.
        for queue in self._store.dispatcher.take_grown():
            self._stats.take_puts((queue,))
            await slices.pause()
        for found in (
            await self._puts(slices),
            await self._reads(slices),
            await self._send_backs(slices),
            await self._offsets(slices),
            self._broker(),
        ):
            for each in found:
                yield each

    def _new(self, *metrics: Metric) -> tuple[Series, ...]:
        most = self._config.metrics_otel_cardinality_limit
        return tuple(Series(metric, most) for metric in metrics)

    @property
    def _place(self) -> tuple[str, str]:
        return self._config.broker_cluster_name, self._config.broker_name

    async def _puts(self, slices: Slices) -> tuple[Series, ...]:
        found = count, size, rate, byte_rate, dead = self._new(
            catalog.MESSAGES_IN,
            catalog.THROUGHPUT_IN,
            catalog.PRODUCER_TPS,
            catalog.PRODUCER_SIZE,
            catalog.TO_DLQ,
        )
        for (_, topic), counter in [*self._stats.topic_puts.items()]:
            if "@" in topic:
                continue  # a queue of a delay level
            for kind, messages_in, bytes_in in self._by_type(topic, counter):
                count.add(messages_in, topic, kind, is_system(topic))
                size.add(bytes_in, topic, kind, is_system(topic))
            messages, octets = self._stats.last_minute(counter)
            rate.add(messages.tps, *self._place, topic)
            byte_rate.add(octets.tps, *self._place, topic)
            if topic.startswith(DLQ_PREFIX):
                group = topic.removeprefix(DLQ_PREFIX)
                dead.add(counter.count, topic, group, is_system(topic, group))
            await slices.pause()
        return found

    def _by_type(self, topic: str, counter: Counter) -> Iterator[tuple[str, int, int]]:
        """Yield type, number and bytes of the messages that a topic got."""
        count, size_bytes = counter.count, counter.size_bytes
        found = [
            (kind, *counts.by_topic[topic])
            for kind, counts in (("delay", self._stats.delayed), ("fifo", self._stats.fifo))
            if topic in counts.by_topic
        ]
        if not found or topic in _TYPES:
            self._others.pop(topic, None)
            yield _TYPES.get(topic, "normal"), count, size_bytes
            return
        yield from found
        # A message may be counted by its type before its topic counts it, at its dispatch. The
        # difference is too low until then, and a counter must not decrease.
        shown = self._others.get(topic, (0, 0))
        others = (
            max(count - sum(each[1] for each in found), shown[0]),
            max(size_bytes - sum(each[2] for each in found), shown[1]),
        )
        self._others[topic] = others
        if others[0]:
            yield "normal", *others

    async def _reads(self, slices: Slices) -> tuple[Series, ...]:
        found = count, size, rate, byte_rate = self._new(
            catalog.MESSAGES_OUT,
            catalog.THROUGHPUT_OUT,
            catalog.CONSUMER_TPS,
            catalog.CONSUMER_SIZE,
        )
        for (group, topic), counter in [*self._stats.pulls.items()]:
            if "@" in topic:
                continue
            labels = topic, group, is_system(topic, group)
            count.add(counter.count, *labels)
            size.add(counter.size_bytes, *labels)
            if group != SCHEDULE_CONSUMER:
                messages, octets = self._stats.last_minute(counter)
                rate.add(messages.tps, *self._place, topic, group)
                byte_rate.add(octets.tps, *self._place, topic, group)
            await slices.pause()
        return found

    async def _send_backs(self, slices: Slices) -> tuple[Series, ...]:
        [found] = self._new(catalog.SEND_BACKS)
        for (group, topic), counter in [*self._stats.send_backs.items()]:
            found.add(self._stats.last_minute(counter)[0].sum, *self._place, topic, group)
            await slices.pause()
        return (found,)

    async def _offsets(self, slices: Slices) -> tuple[Series, ...]:
        found = ends, retries, dead = self._new(
            catalog.PRODUCER_OFFSET, catalog.RETRY_OFFSET, catalog.DLQ_OFFSET
        )
        for topic in [*self._topics]:
            in_memory = self._store.queues.by_topic.get(topic, {})
            if len(in_memory) < len(self._store.queues.known.get(topic, ())):
                continue  # not used since the start; a scrape must not load queues into memory
            end = sum([queue.max_offset for queue in in_memory.values()])
            if topic.startswith(RETRY_PREFIX):
                retries.add(end, *self._place, topic)
            elif topic.startswith(DLQ_PREFIX):
                dead.add(end, *self._place, topic.removeprefix(DLQ_PREFIX))
            else:
                ends.add(end, *self._place, topic)
            await slices.pause()
        return found

    def _broker(self) -> tuple[Series, ...]:
        found = self._new(catalog.BROKER_TPS, catalog.BROKER_QPS)
        cluster, name = self._place
        for series, key in zip(found, ("BROKER_PUT_NUMS", "BROKER_GET_NUMS"), strict=True):
            figures = self._stats.figures(key, cluster)
            series.add(figures[0].tps if figures else 0.0, cluster, self._broker_ip, name)
        return found
