"""Metrics of streaming queries, as Prometheus would scrape them."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import cometmq
from cometmq.message.model import MessageQueue
from cometmq.spark.monitoring import FailedTasks, LossReport, QueryMetrics
from cometmq.spark.querylag import ENDS_MAX, EndHistory, lag_of
from cometmq.spark.read.losses import line
from cometmq.spark.values.decoding import from_rocketmq
from cometmq.testing.cluster import Cluster

pytestmark = pytest.mark.spark


def until(condition: Callable[[], bool]) -> None:
    """Waits for what Spark's listener thread brings a moment later."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def scraped(registry: CollectorRegistry) -> dict[str, float]:
    """The samples of a registry by their names with labels."""
    lines = generate_latest(registry).decode().splitlines()
    pairs = [line.rpartition(" ") for line in lines if not line.startswith("#")]
    return {name: float(value) for name, _, value in pairs}


def test_a_job_counts_once_it_has_ended() -> None:
    """Spark calls a listener some time after the progress that it tells of."""
    jobs = {3: ["SUCCEEDED", 1], 4: ["RUNNING", 2]}
    tracker = SimpleNamespace(
        getJobIdsForGroup=lambda run_id: list(jobs),
        getJobInfo=lambda job: SimpleNamespace(stageIds=[job], status=jobs[job][0]),
        getStageInfo=lambda stage: SimpleNamespace(numFailedTasks=jobs[stage][1]),
    )
    session: Any = SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=lambda: tracker))
    failed = FailedTasks(session)
    assert failed.new("run", has_ended=False) == 1
    jobs[4] = ["SUCCEEDED", 5]
    assert failed.new("run", has_ended=False) == 5
    assert failed.new("run", has_ended=False) == 0
    # Spark may not know yet that the job has ended with which the query did.
    jobs[5] = ["RUNNING", 4]
    assert failed.new("run", has_ended=True) == 4


def test_a_query_is_measured(spark: SparkSession, cometmq_cluster: Cluster, tmp_path: Path) -> None:
    with cometmq.BlockingClient(cometmq_cluster.namesrv) as client:
        client.wait(cometmq.Admin(client.inner.session).create_topic("watched", queues=1))
        for number in range(20):
            client.send("watched", b'{"id": %d}' % number if number else b"broken")
    registry = CollectorRegistry()
    losses = tmp_path / "losses"
    losses.mkdir()
    queue = MessageQueue("watched", "broker-a", 0)
    (losses / "losses-h-1.jsonl").write_text(line(queue, 5, 9, at_ms=1) + "\n")
    listener = QueryMetrics(registry, session=spark, loss_report=str(losses))
    spark.streams.addListener(listener)
    source = (
        spark.readStream.format("rocketmq")
        .options(nameservers=cometmq_cluster.namesrv, topic="watched")
        .options(startingOffsets="earliest", maxOffsetsPerTrigger="8")
        .load()
    )
    rows = from_rocketmq(source, "id bigint", counted_as="decoding")
    lags: list[float] = []

    def note(batch: DataFrame, number: int) -> None:
        batch.count()

    try:
        query = (
            rows.writeStream.foreachBatch(note)
            .queryName("watching")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
        until(lambda: scraped(registry).get('cometmq_spark_query_active{query="watching"}') == 0)
        found = scraped(registry)
        lags += [value for name, value in found.items() if "lag_messages" in name]
        assert found['cometmq_spark_rows_total{query="watching"}'] == 20
        assert found['cometmq_spark_batch_seconds_count{query="watching"}'] >= 3
        assert found['cometmq_spark_batch_id{query="watching"}'] >= 2
        assert lags == [0]
        ages = [value for name, value in found.items() if "lag_seconds" in name]
        assert ages == [0]
        assert found['cometmq_spark_rows_per_second{query="watching"}'] >= 0
        assert found['cometmq_spark_failed_tasks_total{query="watching"}'] == 0
        lost = 'cometmq_spark_lost_messages_total{broker="broker-a",topic="watched"}'
        assert found[lost] == 4
        assert found['cometmq_spark_failures_total{query="watching"}'] == 0
        decoded = {name: value for name, value in found.items() if "observed" in name}
        assert any('metric="undecodable",name="decoding"' in name for name in decoded)

        def fail(batch: DataFrame, number: int) -> None:
            raise ValueError("on purpose")

        def fail_in_a_task(batch: DataFrame, number: int) -> None:
            batch.selectExpr("raise_error('on purpose')").collect()

        unlucky = (
            source.writeStream.foreachBatch(fail_in_a_task)
            .queryName("unlucky")
            .option("checkpointLocation", str(tmp_path / "unlucky"))
            .start()
        )
        with pytest.raises(StreamingQueryException):
            unlucky.awaitTermination(120)
        tasks = 'cometmq_spark_failed_tasks_total{query="unlucky"}'
        until(lambda: scraped(registry).get(tasks, 0) >= 1)
        broken = (
            source.writeStream.foreachBatch(fail)
            .queryName("failing")
            .option("checkpointLocation", str(tmp_path / "failing"))
            .start()
        )
        with pytest.raises(StreamingQueryException):
            broken.awaitTermination(120)
        failed = 'cometmq_spark_failures_total{query="failing"}'
        until(lambda: scraped(registry).get(failed) == 1)
    finally:
        spark.streams.removeListener(listener)


def offset(queues: dict[str, int], **more: Any) -> str:
    return json.dumps({"v": 1, "q": queues, **more})


def test_lag_is_summed_by_topic_and_broker() -> None:
    end = offset({"a|T|0": 5, "a|T|1": 7, "b|T|0": 1})
    latest = offset({"a|T|0": 9, "a|T|1": 7, "b|T|0": 4, "b|U|0": 3})
    assert lag_of(end, latest) == {("T", "a"): 4, ("T", "b"): 3, ("U", "b"): 0}
    # What a limit left is known without the latest offsets.
    assert lag_of(offset({"a|T|0": 5}, to={"a|T|0": 8}), None) == {("T", "a"): 3}
    assert lag_of(end, None) == {("T", "a"): 0, ("T", "b"): 0}


def test_offsets_of_other_sources_have_no_lag() -> None:
    for other in (None, "", "3", "not JSON", '{"topic": {"0": 5}}', '{"v": 2, "q": {}}'):
        assert lag_of(other, other) == {}


QUEUE = MessageQueue("T", "a", 0)


def history(*ends: tuple[float, int]) -> EndHistory:
    found = EndHistory()
    for at_s, end in ends:
        found.note({QUEUE: end}, at_s)
    return found


@pytest.mark.parametrize(
    ("ends", "reached", "age_s"),
    [
        ([], 0, 0),
        ([(0, 100)], 100, 0),
        ([(0, 100), (10, 200)], 200, 0),
        # Offset 150 was stored half way between two ends.
        ([(0, 100), (10, 200)], 150, 15),
        ([(0, 100), (10, 200)], 100, 20),
        # Nothing came for long: it was stored after the last look that found nothing.
        ([(0, 100), (5, 100), (8, 100), (10, 200)], 100, 12),
        # What is older than the first end is judged by the rate.
        ([(0, 100), (10, 200)], 0, 30),
        ([(0, 100)], 50, None),
        ([(0, 100), (10, 100)], 50, None),
        # A topic that was created again begins anew.
        ([(0, 100), (10, 5)], 5, 0),
        ([(0, 100), (10, 5)], 3, None),
    ],
)
def test_the_oldest_message_not_read_is_as_old_as_the_ends_tell(
    ends: list[tuple[float, int]], reached: int, age_s: float | None
) -> None:
    assert history(*ends).age_s(QUEUE, reached, 20) == age_s


def test_the_history_of_ends_is_bounded_and_stays_near() -> None:
    found = history(*((at_s, at_s * 10) for at_s in range(10 * ENDS_MAX)))
    assert len(found._seen[QUEUE]) <= ENDS_MAX
    now_s = 10 * ENDS_MAX - 1
    for behind_s in (1, 100, now_s - 1):
        age = found.age_s(QUEUE, (now_s - behind_s) * 10, now_s)
        assert age == pytest.approx(behind_s, abs=1e-6)
    # What was read needs no older ends.
    assert len(found._seen[QUEUE]) <= ENDS_MAX


def test_a_report_of_losses_is_read_once_and_by_whole_lines(tmp_path: Path) -> None:
    report = LossReport(tmp_path / "losses")
    assert list(report.new()) == []
    (tmp_path / "losses").mkdir()
    path = tmp_path / "losses" / "losses-host-1.jsonl"
    first, second = line(QUEUE, 5, 9, at_ms=1), line(QUEUE, 9, 10, at_ms=2)
    path.write_text(f"{first}\n{second[:10]}")
    assert list(report.new()) == [("T", "a", 4)]
    path.write_text(f"{first}\n{second}\n")
    assert list(report.new()) == [("T", "a", 1)]
    assert list(report.new()) == []
