"""Progress of streaming queries as metrics for Prometheus: lag, rows, durations, failures, losses.

Spark calls a listener in the driver's process after each micro-batch of any query, so queries with
other sources are counted too. Lag is measured only for sources with format("rocketmq").
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from prometheus_client import REGISTRY, Counter, Gauge, Histogram
from pyspark.sql.streaming.listener import StreamingQueryListener

from cometmq.spark.querylag import EndHistory, lag_of, offsets_of

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        StreamingQueryProgress,
    )

log = logging.getLogger(__name__)

_MS_PER_S: Final = 1_000
_BUCKETS_S: Final = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class QueryMetrics(StreamingQueryListener):
    """A listener that keeps metrics in a registry of prometheus_client.

    ``spark.streams.addListener(QueryMetrics())``, and ``prometheus_client.start_http_server(port)``
    in the driver. The label ``query`` is the ``queryName``, or the id of a query without a name.
    The series of a query that ended stay, with ``cometmq_spark_query_active`` 0. With ``session``
    (a classic one, not Spark Connect) failed tasks are counted; Spark repeats such tasks. With
    ``loss_report``, the folder of the queries' option dataLossReport, lost messages are counted.
    """

    def __init__(
        self,
        registry: CollectorRegistry = REGISTRY,
        *,
        session: SparkSession | None = None,
        loss_report: str | None = None,
    ) -> None:
        self._names: dict[str, str] = {}
        self._ends: dict[str, EndHistory] = {}
        self._failed_tasks = None if session is None else FailedTasks(session)
        self._losses = None if loss_report is None else LossReport(Path(loss_report))
        by_query = ("query",)
        by_place = ("topic", "broker")
        self._active = Gauge(
            "cometmq_spark_query_active", "1 while a query runs.", by_query, registry=registry
        )
        self._rows = Counter(
            "cometmq_spark_rows", "Rows that a query has read.", by_query, registry=registry
        )
        self._rate = Gauge(
            "cometmq_spark_rows_per_second", "Rows a second of the last micro-batch.", by_query,
            registry=registry,
        )  # fmt: skip
        self._seconds = Histogram(
            "cometmq_spark_batch_seconds", "Duration of a micro-batch.", by_query,
            registry=registry, buckets=_BUCKETS_S,
        )  # fmt: skip
        self._batch = Gauge(
            "cometmq_spark_batch_id", "Number of the last micro-batch.", by_query, registry=registry
        )
        self._lag = Gauge(
            "cometmq_spark_lag_messages", "Stored messages that a query has not read yet.",
            (*by_query, *by_place), registry=registry,
        )  # fmt: skip
        self._age = Gauge(
            "cometmq_spark_lag_seconds", "Estimated age of the oldest message not read yet.",
            (*by_query, *by_place), registry=registry,
        )  # fmt: skip
        self._observed = Gauge(
            "cometmq_spark_observed", "Metrics that a query observes, of its last micro-batch.",
            ("query", "name", "metric"), registry=registry,
        )  # fmt: skip
        self._failures = Counter(
            "cometmq_spark_failures", "Ends of a query with an error.", by_query, registry=registry
        )
        self._retried = Counter(
            "cometmq_spark_failed_tasks", "Tasks of a query that failed, which Spark repeats.",
            by_query, registry=registry,
        )  # fmt: skip
        self._lost = Counter(
            "cometmq_spark_lost_messages", "Messages in the report of losses.", by_place,
            registry=registry,
        )  # fmt: skip

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Keep a query's name, and show the query as active."""
        name = event.name or str(event.id)
        self._names[str(event.id)] = name
        self._ends[str(event.id)] = EndHistory()
        self._active.labels(name).set(1)
        self._failures.labels(name)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Update the metrics from the report of a micro-batch."""
        progress = event.progress
        name = progress.name or str(progress.id)
        self._rows.labels(name).inc(max(progress.numInputRows, 0))
        # Spark reports no finite rate for a batch that took no time.
        rate = progress.processedRowsPerSecond or 0.0
        self._rate.labels(name).set(rate if math.isfinite(rate) else 0)
        self._seconds.labels(name).observe(progress.batchDuration / _MS_PER_S)
        self._batch.labels(name).set(progress.batchId)
        self._note_lag(name, progress)
        for observation, row in progress.observedMetrics.items():
            for metric, value in row.asDict().items():
                if isinstance(value, int | float):
                    self._observed.labels(name, observation, metric).set(value)
        self._note_failures(name, str(progress.runId), has_ended=False)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Do nothing: an idle query has read all messages, so no metric changes."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Show a query as ended, and count its failure if it has one."""
        name = self._names.pop(str(event.id), str(event.id))
        self._ends.pop(str(event.id), None)
        self._active.labels(name).set(0)
        if event.exception is not None:
            self._failures.labels(name).inc()
        self._note_failures(name, str(event.runId), has_ended=True)
        if self._failed_tasks is not None:
            self._failed_tasks.forget(str(event.runId))

    def _note_lag(self, name: str, progress: StreamingQueryProgress) -> None:
        """Set the lag and the age of each topic and broker from the offsets in a report."""
        started_s = datetime.fromisoformat(progress.timestamp).timestamp()
        ended_s = started_s + progress.batchDuration / _MS_PER_S
        history = self._ends.setdefault(str(progress.id), EndHistory())
        for source in progress.sources:
            for place, lag in lag_of(source.endOffset, source.latestOffset).items():
                self._lag.labels(name, *place).set(lag)
            found = offsets_of(source.endOffset, source.latestOffset)
            if found is None:
                continue
            reached, ends = found
            history.note(ends, started_s)
            ages: dict[tuple[str, str], float] = {}
            for queue, offset in reached.items():
                place = (queue.topic, queue.broker_name)
                age = history.age_s(queue, offset, ended_s)
                if age is not None:
                    ages[place] = max(ages.get(place, 0.0), age)
            for place, age in ages.items():
                self._age.labels(name, *place).set(age)

    def _note_failures(self, name: str, run_id: str, *, has_ended: bool) -> None:
        if self._failed_tasks is not None:
            self._retried.labels(name).inc(self._failed_tasks.new(run_id, has_ended=has_ended))
        if self._losses is not None:
            for topic, broker, messages in self._losses.new():
                self._lost.labels(topic, broker).inc(messages)


class FailedTasks:
    """Counts the failed tasks of queries. The job group of a query's jobs is the id of its run."""

    def __init__(self, session: SparkSession) -> None:
        self._tracker = session.sparkContext.statusTracker()
        #: Ids of the counted jobs that Spark still knows, by the id of the query's run.
        self._counted: dict[str, frozenset[int]] = {}

    def new(self, run_id: str, *, has_ended: bool) -> int:
        """Return the number of failed tasks in the jobs that ended since the last call.

        With ``has_ended`` the run has ended, and a job that Spark still shows as running counts as
        ended too.
        """
        known = frozenset(self._tracker.getJobIdsForGroup(run_id))
        counted = self._counted.get(run_id, frozenset()) & known
        jobs = {job: self._tracker.getJobInfo(job) for job in known - counted}
        ended = {
            job: info
            for job, info in jobs.items()
            if info is not None and (has_ended or info.status != "RUNNING")
        }
        self._counted[run_id] = counted | ended.keys()
        found = 0
        for info in ended.values():
            for stage_id in info.stageIds:
                stage = self._tracker.getStageInfo(stage_id)
                found += stage.numFailedTasks if stage else 0
        return found

    def forget(self, run_id: str) -> None:
        """Drop the job ids of a run that has ended."""
        self._counted.pop(run_id, None)


class LossReport:
    """Reads the lines that were added to a folder of loss reports (read/losses.py)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}

    def new(self) -> Iterator[tuple[str, str, int]]:
        """Yield topic, broker and number of messages of each line added since the last call.

        An unfinished last line is left for the next call.
        """
        for path in sorted(self._folder.glob("losses-*.jsonl")):
            with path.open("rb") as opened:
                opened.seek(self._read.get(path, 0))
                for line in opened:
                    if not line.endswith(b"\n"):
                        break
                    self._read[path] = self._read.get(path, 0) + len(line)
                    found = json.loads(line)
                    yield found["topic"], found["broker"], found["messages"]
