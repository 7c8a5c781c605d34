"""Batches merged into an Iceberg table by key, with deletions and new columns, as pyiceberg reads
them afterwards."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

from cometmq.core.errors import SettingsError
from cometmq.spark.tables.iceberg import IcebergTable
from cometmq.spark.tables.icebergmerge import merge_into
from cometmq.spark.tables.merge import MergeFailed
from cometmq.spark.tables.sink import ColumnsDiffer, Mark
from tests.spark.tables.changes import Changes, check_merges, check_new_columns, rows_of

pytestmark = pytest.mark.spark

NAME = "shop.orders"


def table_of(settings: dict[str, str], **more: Any) -> IcebergTable:
    keyed = {"keys": ["Key"], "newest_by": ["n"], "deleted": "gone"}
    return IcebergTable(NAME, properties=settings, **{**keyed, **more})


def found(settings: dict[str, str]) -> list[dict[str, Any]]:
    table = load_catalog("default", **settings).load_table(NAME)
    rows: list[dict[str, Any]] = table.scan().to_arrow().to_pylist()
    return sorted(rows, key=str)


def test_the_newest_change_of_each_key_counts(
    spark: SparkSession, settings: dict[str, str]
) -> None:
    check_merges(table_of(settings), lambda: found(settings), spark)


def test_random_changes_in_any_order(spark: SparkSession, settings: dict[str, str]) -> None:
    changes = Changes(seed=11)
    table = table_of(settings)
    for batch in range(4):
        assert table.apply(rows_of(spark, changes.batch(40)), Mark("q", batch))
        assert {(row["Key"], row["n"], row["text"]) for row in found(settings)} == changes.expected


def test_keys_and_orders_of_several_columns(
    spark: SparkSession, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cometmq.spark.tables.icebergmerge._BRANCHES_MAX", 2)
    ddl = "id int, part string, day date, at timestamp, raw binary"
    days = [datetime.date(2026, 1, day) for day in (1, 2)]
    moments = [datetime.datetime(2026, 1, 1, hour, tzinfo=datetime.UTC) for hour in (1, 2)]
    table = table_of(settings, keys=["id", "part"], newest_by=["day", "at"], deleted="")
    first = [
        (1, "x", days[0], moments[1], b"\0"),
        (1, "y", days[0], None, b"\1"),
        (2, "x", days[0], None, b"kept"),
    ]
    assert table.apply(spark.createDataFrame(first, ddl), Mark("q", 0))
    second = [
        (1, "x", days[0], moments[0], b"late"),
        (1, "y", days[0], moments[0], b"\2"),
        (2, "y", days[0], moments[0], b"new"),
    ]
    assert table.apply(spark.createDataFrame(second, ddl), Mark("q", 1))
    assert table.apply(spark.createDataFrame([(1, "x", days[1], None, b"\3")], ddl), Mark("q", 2))
    assert {(row["id"], row["part"], row["raw"]) for row in found(settings)} == {
        (1, "x", b"\3"), (1, "y", b"\2"), (2, "x", b"kept"), (2, "y", b"new")
    }  # fmt: skip


def test_others_may_commit_meanwhile(
    spark: SparkSession, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another driver of the checkpoint wins a batch; another query changes the row of the next."""
    first, second = table_of(settings), table_of(settings)
    assert first.apply(rows_of(spark, [("a", 1, "one", False)]), Mark("q", 0))
    batch = rows_of(spark, [("a", 2, "two", False)])
    meanwhile = [(rows_of(spark, [("a", 3, "three", False)]), Mark("p", 0)), (batch, Mark("q", 1))]
    is_outer = [True]

    def late(*words: Any) -> None:
        if is_outer[0]:
            is_outer[0] = False
            assert first.apply(*meanwhile.pop())
        merge_into(*words)

    monkeypatch.setattr("cometmq.spark.tables.iceberg.merge_into", late)
    assert not second.write(batch, Mark("q", 1))
    assert found(settings) == [{"Key": "a", "n": 2, "text": "two"}]
    is_outer[0] = True
    assert second.write(rows_of(spark, [("a", 2, "late", False)]), Mark("q", 2))
    assert not meanwhile
    assert found(settings) == [{"Key": "a", "n": 3, "text": "three"}]


def test_a_batch_that_changes_nothing_comes_late(
    spark: SparkSession, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its mark must not replace that of a later batch: that one would be written again."""
    first, second = table_of(settings), table_of(settings)
    assert first.apply(rows_of(spark, [("a", 1, "one", False)]), Mark("q", 0))
    begun: list[bool] = []

    def late(*words: Any) -> None:
        if not begun:
            begun.append(True)
            assert first.apply(rows_of(spark, []), Mark("q", 1))
            assert first.apply(rows_of(spark, [("a", 2, "two", False)]), Mark("q", 2))
        merge_into(*words)

    monkeypatch.setattr("cometmq.spark.tables.iceberg.merge_into", late)
    assert not second.write(rows_of(spark, []), Mark("q", 1))
    assert first.last(spark, "q") == 2
    assert found(settings) == [{"Key": "a", "n": 2, "text": "two"}]


def test_new_columns_and_columns_that_are_left_out(
    spark: SparkSession, settings: dict[str, str]
) -> None:
    check_new_columns(table_of(settings, add_columns=True), lambda: found(settings), spark)
    with pytest.raises(ColumnsDiffer, match="'more' is missing"):
        table_of(settings).apply(rows_of(spark, []), Mark("q", 2))


def test_appended_batches_add_columns_too(spark: SparkSession, settings: dict[str, str]) -> None:
    table = IcebergTable(NAME, properties=settings, add_columns=True)
    assert table.apply(spark.range(1), Mark("q", 0))
    assert table.apply(spark.range(5, 6).selectExpr("'x' as name", "id"), Mark("q", 1))
    assert table.apply(spark.sql("select 'y' as name"), Mark("q", 2))
    assert [(row["id"], row["name"]) for row in found(settings)] == [
        (0, None), (5, "x"), (None, "y")
    ]  # fmt: skip


def test_what_cannot_be_merged(spark: SparkSession, settings: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match="needs newest_by"):
        IcebergTable(NAME, properties=settings, keys=["k"])
    table = table_of(settings)
    rows = rows_of(spark, [(None, 1, "x", False)])
    with pytest.raises(MergeFailed, match="'Key' has nulls"):
        table.apply(rows, Mark("q", 0))
    with pytest.raises(SettingsError, match="no column 'gone'"):
        table.apply(rows.drop("gone"), Mark("q", 0))
