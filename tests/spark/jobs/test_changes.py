"""Change messages as rows, and which of them counts."""

from datetime import UTC, datetime

import pytest
from pyspark.sql import DataFrame, SparkSession

from cometmq.spark.jobs.changes import COLUMNS, newest, parsed, with_group_value
from tests.spark.jobs.changing import body

pytestmark = pytest.mark.spark
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def messages(spark: SparkSession, *bodies: bytes) -> DataFrame:
    rows = [("broker-a", 0, at, found, NOW, NOW) for at, found in enumerate(bodies)]
    return spark.createDataFrame(rows, COLUMNS)


def test_what_is_no_change_is_told_apart(spark: SparkSession) -> None:
    good = [body("t", "k", "update", 2, {"a": [1, {"b": "é"}]}), body("t", "k", "delete", 3, None)]
    bad = [
        b"",
        b"no json",
        b"[]",
        b'{"table": "t"}',
        body("t", "k", "upsert", 2, {}),
        body("t", "k", "update", 2, None),
        body("t", "k", "delete", 2, {}),
        b"\xff\xfe",
    ]
    rows = parsed(messages(spark, *good, *bad), 8).orderBy("queue_offset").collect()
    assert [row.problem is None for row in rows] == [True] * 2 + [False] * 8
    assert rows[0].row == '{"a":[1,{"b":"é"}]}'
    assert rows[1].row is None
    assert {row.bucket for row in rows[:2]} == {rows[0].bucket}
    assert 0 <= rows[0].bucket < 8
    assert [row.text for row in rows[:2]] == [None, None]
    assert rows[3].text == "no json"
    assert all(row.bucket is None for row in rows[2:])


def test_a_row_that_differs_from_its_columns_is_told(spark: SparkSession) -> None:
    rows: list[dict[str, object] | None] = [
        {"code": "AD", "n": 1},
        {"code": None, "n": None},
        {"code": "AD", "n": 1, "new": True},
        {"code": "AD"},
        {"code": "AD", "n": "many"},
        None,
    ]
    bodies = [body("t", "k", "delete" if row is None else "update", 1, row) for row in rows]
    bodies.append(body("other", "k", "update", 1, {"x": 1}))
    found = parsed(messages(spark, *bodies), 8, {"t": "code string, n int"})
    assert [row.problem for row in found.orderBy("queue_offset").collect()] == [
        *(None, None, "row has unknown fields: new", "row lacks fields: n"),
        *("a field of row is of another type", None, None),
    ]


def test_the_highest_change_counts(spark: SparkSession) -> None:
    found = parsed(
        messages(
            spark,
            body("t", "a", "insert", 1, {"n": 1}),
            body("t", "a", "update", 3, {"n": 3}),
            body("t", "a", "update", 2, {"n": 2}),
            body("t", "b", "insert", 1, {"n": 1}),
            body("t", "b", "delete", 2, None),
            body("u", "a", "insert", 1, {"n": 9}),
            body("u", "a", "insert", 1, {"n": 8}),
        ),
        4,
    )
    rows = newest(found).orderBy("table", "key").collect()
    assert [(row.table, row.key, row.op, row.row) for row in rows] == [
        ("t", "a", "update", '{"n":3}'),
        ("t", "b", "delete", None),
        ("u", "a", "insert", '{"n":8}'),
    ]


def test_a_deletion_belongs_to_the_group_of_its_row(spark: SparkSession) -> None:
    found = parsed(
        messages(
            spark,
            body("t", "a", "insert", 1, {"country": "AD"}),
            body("t", "a", "update", 2, {"country": "FR"}),
            body("t", "a", "update", 2, {"country": "FR"}),
            body("t", "a", "delete", 3, None),
            body("t", "b", "delete", 1, None),
        ),
        4,
    )
    rows = with_group_value(found, "country").orderBy("key", "change").collect()
    assert [(row.key, row.change, row.of) for row in rows] == [
        ("a", 1, "AD"),
        ("a", 2, "FR"),
        ("a", 3, "FR"),
        ("b", 1, None),
    ]
