"""A copy of tables, kept in step with the topic of their changes."""

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cometmq.client.blocking import Client
from cometmq.spark.jobs import sync
from cometmq.spark.jobs.changes import COLUMNS
from cometmq.testing.cluster import Cluster
from tests.spark.jobs.changing import Row, World, body
from tests.spark.topics import make_topic

pytestmark = pytest.mark.spark


def publish(client: Client, topic: str, world: World, count: int) -> None:
    for _ in range(count):
        key, change = world.change()
        client.send(topic, change, keys=[key], order_key=key)


def copy_of(spark: SparkSession, options: sync.SyncOptions) -> dict[tuple[str, str], Row]:
    rows = sync.live(spark, options.directory).collect()
    return {(row.table, row.key): json.loads(row.row) for row in rows}


def test_the_copy_equals_its_base(
    spark: SparkSession, cometmq_session_cluster: Cluster, tmp_path: Path
) -> None:
    world = World()
    options = sync.SyncOptions(
        cometmq_session_cluster.namesrv, "Sync", tmp_path, buckets=4, trigger_ms=100
    )
    with Client(options.nameservers) as client:
        make_topic(client, "Sync", 4)
        publish(client, "Sync", world, 200)
        query = sync.start(spark, options)
        try:
            query.processAllAvailable()
            assert copy_of(spark, options) == world.rows
            client.send("Sync", b"not a change")
            publish(client, "Sync", world, 50)
        finally:
            sync.drain(query)
        assert copy_of(spark, options) == world.rows
        late = body("regions", "AD-00", "update", 0, {"code": "late"})
        client.send("Sync", late)
        publish(client, "Sync", world, 50)
    result = sync.run(spark, options)
    assert copy_of(spark, options) == world.rows
    tables = {table for table, _ in world.rows}
    assert result.rows == {name: sum(table == name for table, _ in world.rows) for name in tables}
    assert (result.applied, result.rejected) == (301, 1)
    assert result.report.changes == 301
    assert {"p50", "p95", "p99", "max"} == set(result.report.lag_ms)


def test_a_batch_that_comes_again_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    options = sync.SyncOptions("unused:1", "T", tmp_path, buckets=2)
    rows = [
        ("broker-a", 0, 0, body("t", "a", "insert", 1, {"n": 1}), None, None),
        ("broker-a", 0, 1, body("t", "a", "update", 2, {"n": 2}), None, None),
    ]
    batch = spark.createDataFrame(rows, COLUMNS)
    for _ in range(2):
        sync.ChangeTable(options)(batch, 0)
        manifest = options.table.current()
        assert (manifest.version, manifest.counts) == (1, {"applied": 2, "rejected": 0})
    assert copy_of(spark, options) == {("t", "a"): {"n": 2}}


def test_files_of_an_attempt_that_was_killed_are_written_over(
    spark: SparkSession, tmp_path: Path
) -> None:
    options = sync.SyncOptions("unused:1", "T", tmp_path, buckets=1)
    first = [("broker-a", 0, 0, body("t", "a", "insert", 1, {"n": 1}), None, None)]
    second = [("broker-a", 0, 1, body("t", "a", "delete", 2, None), None, None)]
    sync.ChangeTable(options)(spark.createDataFrame(first, COLUMNS), 0)
    sync.ChangeTable(options)(spark.createDataFrame(second, COLUMNS), 1)
    assert copy_of(spark, options) == {}
    # Without its manifest the second batch has not happened; Spark gives it again.
    (tmp_path / "table" / "manifests" / "00000002.json").unlink()
    assert copy_of(spark, options) == {("t", "a"): {"n": 1}}
    sync.ChangeTable(options)(spark.createDataFrame(second, COLUMNS), 1)
    assert copy_of(spark, options) == {}
    assert options.table.current().counts == {"applied": 2, "rejected": 0}


def test_nothing_yet(spark: SparkSession, tmp_path: Path) -> None:
    assert sync.live(spark, tmp_path).collect() == []
