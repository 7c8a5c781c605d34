"""Batches in an Iceberg table: once, whole, and beside other writers; read by pyiceberg."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Transaction
from pyspark.sql import DataFrame, SparkSession

import cometmq
from cometmq.core.errors import SettingsError
from cometmq.spark.tables.iceberg import IcebergTable
from cometmq.spark.tables.sink import NO_BATCH, ColumnsDiffer, Mark
from cometmq.testing.cluster import Cluster

pytestmark = pytest.mark.spark


def found(settings: dict[str, str], name: str = "shop.orders") -> list[dict[str, Any]]:
    """The rows of a table, as another reader sees them."""
    table = load_catalog("default", **settings).load_table(name)
    rows: list[dict[str, Any]] = table.scan().to_arrow().to_pylist()
    return sorted(rows, key=lambda row: row["id"])


def batch(spark: SparkSession, start: int, stop: int) -> DataFrame:
    return spark.range(start, stop).selectExpr(
        "id", "cast(id as string) as name", "to_binary('00ff', 'hex') as body",
        "timestamp_seconds(id) as at", "array(id) as numbers",
    )  # fmt: skip


def test_a_batch_is_written_once(spark: SparkSession, settings: dict[str, str]) -> None:
    table = IcebergTable("shop.orders", properties=settings)
    assert table.last(spark, "q") == NO_BATCH
    assert table.apply(batch(spark, 0, 5), Mark("q", 0))
    assert not table.apply(batch(spark, 0, 5), Mark("q", 0))
    assert table.apply(batch(spark, 5, 9), Mark("q", 1))
    # Another driver of the same checkpoint, and another query.
    other = IcebergTable("shop.orders", properties=settings)
    assert other.last(spark, "q") == 1
    assert not other.write(batch(spark, 5, 9), Mark("q", 1))
    assert other.apply(batch(spark, 9, 10), Mark("p", 0))
    rows = found(settings)
    assert [row["id"] for row in rows] == list(range(10))
    assert rows[7]["name"] == "7"
    assert rows[7]["at"] == datetime.fromtimestamp(7, UTC)
    assert rows[7]["numbers"] == [7]
    # An empty batch leaves its mark, too.
    assert table.apply(batch(spark, 0, 0), Mark("q", 2))
    assert table.last(spark, "q") == 2


def test_other_writers_may_commit_meanwhile(
    spark: SparkSession, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = IcebergTable("shop.orders", properties=settings)
    assert table.apply(spark.range(3), Mark("q", 0))
    outside = load_catalog("default", **settings).load_table("shop.orders")
    loaded = table._loaded
    meanwhile = [pa.table({"id": pa.array([100], pa.int64())})]

    def slow() -> Any:
        current = loaded()
        if meanwhile and current is not None and current.properties.get("begun"):
            outside.refresh().append(meanwhile.pop())
        return current

    with outside.transaction() as change:
        change.set_properties({"begun": "yes"})
    monkeypatch.setattr(table, "_loaded", slow)
    assert table.write(spark.range(3, 5), Mark("q", 1))
    assert not meanwhile
    assert [row["id"] for row in found(settings)] == [0, 1, 2, 3, 4, 100]


def test_a_driver_that_was_presumed_dead(
    spark: SparkSession, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has seen that the batch is not there, and commits after the other one: a commit that is
    moved to the newest version would have the batch twice."""
    first, second = (IcebergTable("shop.orders", properties=settings) for _ in range(2))
    assert first.apply(spark.range(3), Mark("q", 0))
    adding = Transaction.add_files
    is_first = True

    def late(*words: Any, **more: Any) -> None:
        nonlocal is_first
        if is_first:
            is_first = False
            assert first.apply(spark.range(3, 5), Mark("q", 1))
        adding(*words, **more)

    monkeypatch.setattr(Transaction, "add_files", late)
    assert not second.write(spark.range(3, 5), Mark("q", 1))
    assert [row["id"] for row in found(settings)] == [0, 1, 2, 3, 4]
    table = load_catalog("default", **settings).load_table("shop.orders")
    assert "commit.retry.num-retries" not in table.properties


def test_a_crashed_attempt_leaves_no_rows(spark: SparkSession, settings: dict[str, str]) -> None:
    table = IcebergTable("shop.orders", properties=settings)
    assert table.apply(spark.range(3), Mark("q", 0))

    class Crashing(IcebergTable):
        def _commit(self, *_: object) -> bool:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Crashing("shop.orders", properties=settings).apply(spark.range(3, 6), Mark("q", 1))
    assert [row["id"] for row in found(settings)] == [0, 1, 2]
    assert IcebergTable("shop.orders", properties=settings).apply(spark.range(3, 6), Mark("q", 1))
    assert [row["id"] for row in found(settings)] == [0, 1, 2, 3, 4, 5]


def test_columns_are_checked(spark: SparkSession, settings: dict[str, str]) -> None:
    table = IcebergTable("shop.orders", properties=settings)
    assert table.apply(spark.range(3), Mark("q", 0))
    with pytest.raises(ColumnsDiffer, match="other"):
        table.apply(spark.range(3).selectExpr("id", "id as other"), Mark("q", 1))
    with pytest.raises(SettingsError, match="not namespace"):
        IcebergTable("orders", properties=settings)


def test_a_stream_of_a_topic(
    spark: SparkSession, settings: dict[str, str], cometmq_cluster: Cluster, tmp_path: Path
) -> None:
    with cometmq.BlockingClient(cometmq_cluster.namesrv) as client:
        for number in range(20):
            client.send("orders", b"%d" % number)
    stream = (
        spark.readStream.format("rocketmq")
        .option("nameservers", cometmq_cluster.namesrv)
        .option("topic", "orders")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "7")
        .load()
        .selectExpr("cast(cast(body as string) as bigint) as id", "store_timestamp")
    )
    query = (
        stream.writeStream.foreachBatch(IcebergTable("shop.orders", properties=settings))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert [row["id"] for row in found(settings)] == list(range(20))


def test_a_commit_was_sent_twice_and_others_expired_its_snapshot(
    spark: SparkSession, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its mark tells that it was made."""
    table = IcebergTable("shop.orders", properties=settings)
    assert table.apply(spark.range(3), Mark("q", 0))
    catalog = table.catalog
    commit = catalog.commit_table

    def twice(*words: Any) -> Any:
        commit(*words)
        orders = load_catalog("default", **settings).load_table("shop.orders")
        orders.append(pa.table({"id": pa.array([100], pa.int64())}))
        main = orders.metadata.current_snapshot_id
        ids = [each.snapshot_id for each in orders.metadata.snapshots if each.snapshot_id != main]
        orders.maintenance.expire_snapshots().by_ids(ids).commit()
        raise CommitFailedException("409")

    monkeypatch.setattr(catalog, "commit_table", twice)
    assert not table.write(spark.range(3, 5), Mark("q", 1))
    assert [row["id"] for row in found(settings)] == [0, 1, 2, 3, 4, 100]


def test_a_conflict_that_nobody_made_is_tried_again(
    spark: SparkSession, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first request comes late, and is refused."""
    table = IcebergTable("shop.orders", properties=settings)
    assert table.apply(spark.range(3), Mark("q", 0))
    catalog = table.catalog
    commit, late = catalog.commit_table, list[Any]()

    def once_lost(*words: Any) -> Any:
        if not late:
            late.append(words)
            raise CommitFailedException("409")
        return commit(*words)

    monkeypatch.setattr(catalog, "commit_table", once_lost)
    assert table.write(spark.range(3, 5), Mark("q", 1))
    with pytest.raises(CommitFailedException):
        commit(*late[0])
    assert [row["id"] for row in found(settings)] == [0, 1, 2, 3, 4]
