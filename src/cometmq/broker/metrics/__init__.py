"""Metrics of a broker, read from the counters that its parts keep anyway.

The path of a message has no counters just for metrics. Counts that queues hold until the next
sample are taken at each scrape, so totals are exact at that moment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.broker.admin.broker import measure_disks
from cometmq.broker.metrics import catalog
from cometmq.broker.metrics.groups import GroupMetrics
from cometmq.broker.metrics.labels import runtime_labels
from cometmq.broker.metrics.messages import MessageMetrics
from cometmq.broker.metrics.state import LOCAL, StateMetrics, one, some
from cometmq.monitoring.series import Series

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from cometmq.broker.admin.broker import BrokerAdmin
    from cometmq.broker.config import BrokerConfig
    from cometmq.broker.context import BrokerContext
    from cometmq.broker.topics.registration import Registration
    from cometmq.core.clock import Slices
    from cometmq.monitoring.readiness import StartProgress


def shared_labels(config: BrokerConfig) -> Mapping[str, str]:
    """Return the labels of every series of a broker."""
    return {
        "cluster": config.broker_cluster_name,
        "node_type": "broker",
        "node_id": config.broker_name,
    }


def start_series(progress: StartProgress) -> list[Series]:
    """Return the metrics that a broker has even while it starts."""
    found = [one(catalog.READY, int(progress.is_serving))]
    if progress.recovered is not None:
        found.append(one(catalog.RECOVERY_POSITION, progress.recovered.position))
        found.append(one(catalog.RECOVERY_END, progress.recovered.end))
    return found


class RuntimeMetrics:
    """Metrics with the values of ``brokerStatus``, named as in rocketmq-exporter, and metrics of
    the disks and of the oldest message. ``brokerStatus`` shows these two as well, so a scrape
    measures them once for both."""

    def __init__(self, context: BrokerContext, admin: BrokerAdmin) -> None:
        self._context = context
        self._admin = admin

    async def series(self, slices: Slices) -> AsyncIterator[Series]:
        """Return the metrics, one after another."""
        disks = await measure_disks(self._context.store)
        state = await self._admin.state(disks)
        labels = runtime_labels(self._context)
        for metric, key, number in catalog.RUNTIME:
            # A range of times is followed by its count: "[0~10ms]:7".
            yield one(metric, float(state[key].split()[number].rpartition(":")[2]), *labels)
        oldest_ms = int(state["earliestMessageTimeStamp"])
        if oldest_ms >= 0:
            age_ms = self._context.clock.wall_ms() - oldest_ms
            yield one(catalog.RESERVE_TIME, max(age_ms, 0), *LOCAL)
        log, queues = disks.log, disks.queues
        yield one(catalog.LOG_DEVICE_SIZE, log.total_bytes, *labels)
        yield one(catalog.LOG_DEVICE_FREE, log.free_bytes, *labels)
        yield one(catalog.STORAGE_SIZE, queues.total_bytes - queues.free_bytes, *LOCAL)
        yield some(catalog.DISK_RATIO, {"log": log.used_ratio, "queues": queues.used_ratio})
        yield some(catalog.DISK_FREE, {"log": log.free_bytes, "queues": queues.free_bytes})
        await slices.pause()


class BrokerMetrics:
    """Collects the metrics of a broker that serves."""

    def __init__(
        self,
        context: BrokerContext,
        *,
        admin: BrokerAdmin,
        state: StateMetrics,
        registration: Registration,
    ) -> None:
        self._config = context.config
        self._registration = registration
        broker_ip = context.store_address
        self._parts = (
            MessageMetrics(context, broker_ip),
            GroupMetrics(context),
            RuntimeMetrics(context, admin),
            state,
        )

    async def series(self, slices: Slices) -> AsyncIterator[Series]:
        """Return all metrics, one after another."""
        left_out = Series(catalog.LEFT_OUT, len(catalog.METRICS))
        for part in self._parts:
            async for each in part.series(slices):
                if each.left_out:
                    left_out.add(each.left_out, each.metric.name)
                yield each
        yield one(catalog.NAME_SERVERS, len(self._registration.name_servers))
        yield one(catalog.REGISTERED, len(self._registration.registered_with))
        yield left_out
