"""Store directories through Spark."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cometmq.spark.schema import NAMES
from tests.golden import library
from tests.store.stores import fill, opened

pytestmark = pytest.mark.spark


def test_a_java_brokers_store(spark: SparkSession, tmp_path: Path) -> None:
    root = library.unpack_store("clean", tmp_path)
    facts = library.stores()["clean"]["topics"]["golden"]
    read = spark.read.format("rocketmq").option("store", str(root)).option("topic", "golden")
    found = read.option("maxBytesPerPartition", 100_000).load()
    assert found.columns == list(NAMES)
    rows = {(row.queue_id, row.queue_offset): row for row in found.collect()}
    assert len(rows) == sum(int(queue["max"]) for queue in facts["queues"].values())
    for message in facts["messages"]:
        row = rows[message["queueId"], message["queueOffset"]]
        assert row.msg_id == message["msgId"]
        assert row.properties["UNIQ_KEY"] == message["msgId"]


def test_two_stores_and_fewer_columns(spark: SparkSession, tmp_path: Path) -> None:
    for name in ("a", "b"):
        store = opened(tmp_path / name)
        fill(store, 100)
        store.close()
    found = (
        spark.read.format("rocketmq")
        .option("store", f"{tmp_path}/a,{tmp_path}/b")
        .schema("tags string, broker_name string")
        .load()
    )
    counts = {(row.broker_name, row.tags): row["count"] for row in found.groupBy(
        "broker_name", "tags").count().collect()}  # fmt: skip
    assert counts == {(name, f"g{tag}"): 25 for name in ("a", "b") for tag in range(4)}


def test_an_empty_store(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    assert spark.read.format("rocketmq").option("store", str(tmp_path)).load().count() == 0
