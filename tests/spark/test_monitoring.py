"""Metrics of streaming queries, as Prometheus would scrape them."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import cometmq
from cometmq.spark.monitoring import QueryMetrics, lag_of
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


def test_a_query_is_measured(spark: SparkSession, cometmq_cluster: Cluster, tmp_path: Path) -> None:
    with cometmq.BlockingClient(cometmq_cluster.namesrv) as client:
        client.wait(cometmq.Admin(client.inner.session).create_topic("watched", queues=1))
        for number in range(20):
            client.send("watched", b'{"id": %d}' % number if number else b"broken")
    registry = CollectorRegistry()
    listener = QueryMetrics(registry)
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
        assert found['cometmq_spark_failures_total{query="watching"}'] == 0
        decoded = {name: value for name, value in found.items() if "observed" in name}
        assert any('metric="undecodable",name="decoding"' in name for name in decoded)

        def fail(batch: DataFrame, number: int) -> None:
            raise ValueError("on purpose")

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
