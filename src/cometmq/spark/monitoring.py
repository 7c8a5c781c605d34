"""Progress of streaming queries as metrics for Prometheus: lag, rows, durations, failures.

Spark calls a listener in the driver's process after each micro-batch. It is Spark's own interface,
so queries with other sources are counted too; lag is that of sources with format("rocketmq").
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import REGISTRY, Counter, Gauge, Histogram
from pyspark.sql.streaming.listener import StreamingQueryListener

from cometmq.spark.read.checkpoint import BadOffset, StreamOffset, from_json

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

log = logging.getLogger(__name__)

_MS_PER_S: Final = 1_000
_BUCKETS_S: Final = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class QueryMetrics(StreamingQueryListener):
    """A listener that keeps metrics in a registry of prometheus_client.

    ``spark.streams.addListener(QueryMetrics())``, and ``prometheus_client.start_http_server(port)``
    in the driver. A query goes by its ``queryName``, or by its id. The series of a query that ended
    stay, with ``cometmq_spark_query_active`` 0.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._names: dict[str, str] = {}
        by_query = ("query",)
        self._active = Gauge(
            "cometmq_spark_query_active", "1 while a query runs.", by_query, registry=registry
        )
        self._rows = Counter(
            "cometmq_spark_rows", "Rows that a query has read.", by_query, registry=registry
        )
        self._seconds = Histogram(
            "cometmq_spark_batch_seconds", "Duration of a micro-batch.", by_query,
            registry=registry, buckets=_BUCKETS_S,
        )  # fmt: skip
        self._batch = Gauge(
            "cometmq_spark_batch_id", "Number of the last micro-batch.", by_query, registry=registry
        )
        self._lag = Gauge(
            "cometmq_spark_lag_messages", "Stored messages that a query has not read yet.",
            ("query", "topic", "broker"), registry=registry,
        )  # fmt: skip
        self._observed = Gauge(
            "cometmq_spark_observed", "Metrics that a query observes, of its last micro-batch.",
            ("query", "name", "metric"), registry=registry,
        )  # fmt: skip
        self._failures = Counter(
            "cometmq_spark_failures", "Ends of a query with an error.", by_query, registry=registry
        )

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Note a query's name."""
        name = event.name or str(event.id)
        self._names[str(event.id)] = name
        self._active.labels(name).set(1)
        self._failures.labels(name)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Take the progress of a micro-batch."""
        progress = event.progress
        name = progress.name or str(progress.id)
        self._rows.labels(name).inc(max(progress.numInputRows, 0))
        self._seconds.labels(name).observe(progress.batchDuration / _MS_PER_S)
        self._batch.labels(name).set(progress.batchId)
        for source in progress.sources:
            for (topic, broker), lag in lag_of(source.endOffset, source.latestOffset).items():
                self._lag.labels(name, topic, broker).set(lag)
        for observation, row in progress.observedMetrics.items():
            for metric, value in row.asDict().items():
                if isinstance(value, int | float):
                    self._observed.labels(name, observation, metric).set(value)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Do nothing: an idle query has read what there was."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Note the end of a query, and whether it failed."""
        name = self._names.pop(str(event.id), str(event.id))
        self._active.labels(name).set(0)
        if event.exception is not None:
            self._failures.labels(name).inc()


def lag_of(end: str | None, latest: str | None) -> dict[tuple[str, str], int]:
    """Return the messages after a batch, by topic and broker, from two offsets of Spark's progress.

    The result is empty for offsets of another source.
    """
    reached, newest = _parsed(end), _parsed(latest)
    if reached is None:
        return {}
    ends = dict(reached.reached or {})
    if newest is not None:
        ends |= newest.queues
        ends |= newest.reached or {}
    found: dict[tuple[str, str], int] = {}
    for queue, offset in reached.queues.items():
        place = (queue.topic, queue.broker_name)
        found[place] = found.get(place, 0) + max(ends.get(queue, offset) - offset, 0)
    for queue in ends.keys() - reached.queues.keys():
        found.setdefault((queue.topic, queue.broker_name), 0)
    return found


def _parsed(text: str | None) -> StreamOffset | None:
    if not text:
        return None
    try:
        found: Any = json.loads(text)
        return from_json(found) if isinstance(found, dict) else None
    except (ValueError, BadOffset):
        return None
