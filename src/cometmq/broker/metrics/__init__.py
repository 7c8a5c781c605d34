"""Metrics of a broker, read from the counters that its parts keep anyway.

Nothing is counted for this on the path of a message. Counts that the store's queues hold until the
next sample are taken at each scrape, so totals are exact at that moment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.broker.metrics import catalog
from cometmq.broker.stats import SCHEDULE_CONSUMER
from cometmq.message.names import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    SYSTEM_GROUP_PREFIX,
    is_system_topic,
)
from cometmq.monitoring.series import Series

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from cometmq.broker.config import BrokerConfig
    from cometmq.broker.context import BrokerContext
    from cometmq.core.clock import Slices
    from cometmq.monitoring.readiness import StartProgress
    from cometmq.monitoring.series import Metric


def shared_labels(config: BrokerConfig) -> Mapping[str, str]:
    """Return the labels of every series of a broker."""
    return {
        "cluster": config.broker_cluster_name,
        "node_type": "broker",
        "node_id": config.broker_name,
    }


def start_series(progress: StartProgress) -> list[Series]:
    """Return the metrics that there are during a start."""
    ready = Series(catalog.READY, 1)
    ready.add(0 if progress.is_starting else 1)
    found = [ready]
    if progress.recovered is not None:
        for metric, value in (
            (catalog.RECOVERY_POSITION, progress.recovered.position),
            (catalog.RECOVERY_END, progress.recovered.end),
        ):
            series = Series(metric, 1)
            series.add(value)
            found.append(series)
    return found


def is_retry(topic: str) -> str:
    """Return the label ``is_retry`` of a topic."""
    return _truth(topic.startswith((RETRY_PREFIX, DLQ_PREFIX)))


def is_system(topic: str, group: str = "") -> str:
    """Return the label ``is_system`` of a topic, or of a topic and a group."""
    is_system_group = group.lower().startswith(SYSTEM_GROUP_PREFIX.lower())
    return _truth(is_system_topic(topic) or is_system_group)


def _truth(value: bool) -> str:
    return "true" if value else "false"


class BrokerMetrics:
    """Collects the metrics of a broker."""

    def __init__(self, context: BrokerContext) -> None:
        self._config = context.config
        self._store = context.store
        self._stats = context.stats

    def _series(self, metric: Metric) -> Series:
        return Series(metric, self._config.metrics_otel_cardinality_limit)

    async def series(self, slices: Slices) -> AsyncIterator[Series]:
        """Return all metrics, one after another."""
        async for each in self._messages(slices):
            yield each

    async def _messages(self, slices: Slices) -> AsyncIterator[Series]:
        stats = self._stats
        for queue in self._store.dispatcher.take_grown():
            stats.take_puts((queue,))
            await slices.pause()
        count, size = self._series(catalog.MESSAGES_IN), self._series(catalog.THROUGHPUT_IN)
        for (_, topic), counter in [*stats.topic_puts.items()]:
            if "@" not in topic:
                labels = topic, "unspecified", is_system(topic)
                count.add(counter.count, *labels)
                size.add(counter.size_bytes, *labels)
            await slices.pause()
        yield count
        yield size
        count, size = self._series(catalog.MESSAGES_OUT), self._series(catalog.THROUGHPUT_OUT)
        for (group, topic), counter in [*stats.pulls.items()]:
            if group != SCHEDULE_CONSUMER:
                reader = topic, group, is_system(topic, group)
                count.add(counter.count, *reader)
                size.add(counter.size_bytes, *reader)
            await slices.pause()
        yield count
        yield size
