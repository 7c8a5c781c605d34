"""Batches merged into a Delta table by key, with deletions and new columns, as deltalake reads them
afterwards."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession

from cometmq.core.errors import SettingsError
from cometmq.spark.tables.delta import DeltaLakeTable
from cometmq.spark.tables.deltamerge import not_newer
from cometmq.spark.tables.merge import MergeFailed
from cometmq.spark.tables.sink import ColumnsDiffer, Mark
from tests.spark.tables.changes import Changes, check_merges, check_new_columns, rows_of

pytestmark = pytest.mark.spark


def table_at(path: Path, **settings: Any) -> DeltaLakeTable:
    keyed = {"keys": ["Key"], "newest_by": ["n"], "deleted": "gone"}
    return DeltaLakeTable(str(path), **{**keyed, **settings})


def found(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = DeltaTable(path).to_pyarrow_table().to_pylist()
    return sorted(rows, key=str)


def test_the_newest_change_of_each_key_counts(spark: SparkSession, tmp_path: Path) -> None:
    check_merges(table_at(tmp_path), lambda: found(tmp_path), spark)


def test_random_changes_in_any_order(spark: SparkSession, tmp_path: Path) -> None:
    changes = Changes(seed=7)
    table = table_at(tmp_path)
    for batch in range(6):
        assert table.apply(rows_of(spark, changes.batch(40)), Mark("q", batch))
        assert {(row["Key"], row["n"], row["text"]) for row in found(tmp_path)} == changes.expected


def test_keys_and_orders_of_several_columns_in_a_partitioned_table(
    spark: SparkSession, tmp_path: Path
) -> None:
    ddl = "`the key` int, part string, day date, at timestamp, raw binary"
    days = [datetime.date(2026, 1, day) for day in (1, 2)]
    moments = [datetime.datetime(2026, 1, 1, hour, tzinfo=datetime.UTC) for hour in (1, 2)]
    keyed = {"keys": ["the key", "part"], "newest_by": ["day", "at"], "deleted": ""}
    table = table_at(tmp_path, partition_by=["part"], **keyed)
    first = [(1, "x", days[0], moments[1], b"\0"), (1, "y", days[0], None, b"\1")]
    assert table.apply(spark.createDataFrame(first, ddl), Mark("q", 0))
    second = [(1, "x", days[0], moments[0], b"late"), (1, "y", days[0], moments[0], b"\2")]
    assert table.apply(spark.createDataFrame(second, ddl), Mark("q", 1))
    third = [(1, "x", days[1], moments[0], b"\3")]
    assert table.apply(spark.createDataFrame(third, ddl), Mark("q", 2))
    assert {(row["part"], row["raw"]) for row in found(tmp_path)} == {("y", b"\2"), ("x", b"\3")}


def test_a_driver_that_was_presumed_dead(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has seen that the batch is not there, and merges after the other one."""
    first, second = table_at(tmp_path), table_at(tmp_path)
    assert first.apply(rows_of(spark, [("a", 1, "one", False)]), Mark("q", 0))
    batch = rows_of(spark, [("a", 2, "two", False), ("b", 1, "b", False)])
    merging = second._merging

    def slow(*args: Any) -> Any:
        change = merging(*args)

        def late(*words: Any) -> None:
            first.apply(batch, Mark("q", 1))
            change(*words)

        return late

    monkeypatch.setattr(second, "_merging", slow)
    assert not second.write(batch, Mark("q", 1))
    assert [row["text"] for row in found(tmp_path)] == ["two", "b"]


def test_new_columns_and_columns_that_are_left_out(spark: SparkSession, tmp_path: Path) -> None:
    check_new_columns(table_at(tmp_path, add_columns=True), lambda: found(tmp_path), spark)
    with pytest.raises(ColumnsDiffer, match="'more' is missing"):
        table_at(tmp_path).apply(rows_of(spark, []), Mark("q", 2))


def test_appended_batches_add_columns_too(spark: SparkSession, tmp_path: Path) -> None:
    table = DeltaLakeTable(str(tmp_path), add_columns=True)
    assert table.apply(spark.range(1), Mark("q", 0))
    write_deltalake(tmp_path, DeltaTable(tmp_path).to_pyarrow_table(), mode="append")
    assert table.apply(spark.range(5, 6).selectExpr("'x' as name", "id"), Mark("q", 1))
    assert table.apply(spark.sql("select 'y' as name"), Mark("q", 2))
    assert [(row["id"], row["name"]) for row in found(tmp_path)] == [
        *[(0, None)] * 2, (5, "x"), (None, "y")
    ]  # fmt: skip


def test_what_cannot_be_merged(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="needs newest_by"):
        DeltaLakeTable(str(tmp_path), keys=["k"])
    table = table_at(tmp_path)

    def refused(rows: DataFrame, error: type[Exception], said: str) -> None:
        with pytest.raises(error, match=said):
            table.apply(rows, Mark("q", 0))

    rows = rows_of(spark, [(None, 1, "x", False)])
    refused(rows, MergeFailed, "'Key' has nulls")
    refused(rows.drop("Key"), SettingsError, "no column 'Key'")
    refused(rows.drop("n"), SettingsError, "no column 'n'")
    refused(rows.drop("gone"), SettingsError, "no column 'gone'")
    refused(rows.withColumn("gone", rows.n), SettingsError, "'gone' is not boolean")


def test_the_order_of_several_columns() -> None:
    assert not_newer(["a"]) == "NOT coalesce((t.`a` > s.`a` OR (t.`a` = s.`a` AND false)), false)"
    assert not_newer(["a", "b`"]) == (
        "NOT coalesce((t.`a` > s.`a` OR (t.`a` = s.`a` AND "
        "(t.`b``` > s.`b``` OR (t.`b``` = s.`b``` AND false)))), false)"
    )
