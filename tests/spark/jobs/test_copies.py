"""Typed copies beside the copy: right in any order of changes, each batch once."""

from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession

from cometmq.spark.jobs import sync
from cometmq.spark.jobs.changes import COLUMNS
from cometmq.spark.jobs.inputs import read_archive
from cometmq.spark.jobs.sync import Copies
from cometmq.spark.options import BadOption
from cometmq.spark.tables.mysql import connected, rows_of
from cometmq.testing.postgres import running_postgres
from tests.spark.jobs.changing import Row, body

pytestmark = pytest.mark.spark


def test_late_and_repeated_changes_undo_nothing(
    spark: SparkSession, mysql: str, tmp_path: Path
) -> None:
    def batch(*changes: tuple[str, str, int, Row | None]) -> list[tuple[object, ...]]:
        return [
            ("broker-a", 0, at, body("copied", key, op, change, row), None, None)
            for at, (key, op, change, row) in enumerate(changes)
        ]

    with running_postgres() as conninfo:
        options = sync.SyncOptions("unused:1", "T", tmp_path / "copy", buckets=2)
        delta = str(tmp_path / "delta")
        copies = Copies(
            sync.ChangeTable(options),
            options.table,
            options.changes,
            {"copied": "n int"},
            postgres=conninfo,
            mysql=mysql,
            delta=delta,
        )
        first = batch(("a", "insert", 1, {"n": 1}), ("b", "insert", 1, {"n": 2}))
        second = batch(("a", "delete", 3, None), ("b", "update", 2, {"n": 3}))
        late = batch(("a", "update", 2, {"n": 9}), ("b", "update", 2, {"n": 3}))
        for number, rows in ((0, first), (1, second), (1, second), (2, late)):
            copies(spark.createDataFrame(rows, COLUMNS), number)
        with psycopg.connect(conninfo) as connection:
            held = connection.execute("SELECT _key, _change, n FROM copied ORDER BY 1").fetchall()
    assert held == [("b", 2, 3)]
    with connected(mysql) as server:
        assert rows_of(server, "SELECT _key, _change, n FROM copied") == held
    history = read_archive(spark, f"{delta}/copied").orderBy("_key", "_change").collect()
    assert [(row._key, row._change, row._op, row.n) for row in history] == [
        ("a", 1, "insert", 1),
        ("a", 3, "delete", None),
        ("a", 3, "delete", None),
        ("b", 1, "insert", 2),
        ("b", 2, "update", 3),
        ("b", 2, "update", 3),
    ]


def test_a_typed_copy_needs_columns(spark: SparkSession, tmp_path: Path) -> None:
    options = sync.SyncOptions("unused:1", "T", tmp_path, delta="x")
    with pytest.raises(BadOption, match="columns"):
        sync.start(spark, options)
