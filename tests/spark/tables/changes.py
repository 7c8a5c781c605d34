"""Changes of rows by key, for tables that merge them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import pytest
from pyspark.sql import DataFrame, SparkSession

from cometmq.spark.tables.sink import ColumnsDiffer, Mark, TableSink

SCHEMA = "Key string, n bigint, text string, gone boolean"

Change = tuple[str | None, int, str | None, bool | None]

FIRST: list[Change] = [("a", 1, "one", False), ("a", 2, "two", False), ("b", 5, "five", False)]
SECOND: list[Change] = [
    ("a", 1, "late", False),
    ("b", 6, None, True),
    ("c", 1, "new", None),
    ("d", 1, "deletes what was never there", True),
]
AFTER_BOTH = [{"Key": "a", "n": 2, "text": "two"}, {"Key": "c", "n": 1, "text": "new"}]


def check_merges(table: TableSink, found: Callable[[], object], spark: SparkSession) -> None:
    """Batches with late changes, deletions and repeats; ``found`` returns the table's rows."""
    assert table.apply(rows_of(spark, FIRST), Mark("q", 0))
    assert table.apply(rows_of(spark, SECOND), Mark("q", 1))
    assert not table.apply(rows_of(spark, SECOND), Mark("q", 1))
    assert found() == AFTER_BOTH
    # What changes nothing leaves its mark, too.
    assert table.apply(rows_of(spark, [("a", 0, "late", True)]), Mark("q", 2))
    assert table.apply(rows_of(spark, []), Mark("q", 3))
    assert table.last(spark, "q") == 3
    assert found() == AFTER_BOTH


def check_new_columns(table: TableSink, found: Callable[[], object], spark: SparkSession) -> None:
    """A batch with a new column and without another one; ``table`` adds columns."""
    assert table.apply(rows_of(spark, [("a", 1, "one", False)]), Mark("q", 0))
    more = spark.createDataFrame(
        [("b", 1, False, {"x": 1})], "Key string, n bigint, gone boolean, more struct<x:int>"
    )
    assert table.apply(more, Mark("q", 1))
    expected = [
        {"Key": "a", "n": 1, "text": "one", "more": None},
        {"Key": "b", "n": 1, "text": None, "more": {"x": 1}},
    ]
    assert found() == expected
    with pytest.raises(ColumnsDiffer, match="'n' is string, in the table long"):
        table.apply(more.selectExpr("Key", "'1' as n", "gone", "1 as other"), Mark("q", 2))
    assert found() == expected


def rows_of(spark: SparkSession, changes: Sequence[Change]) -> DataFrame:
    """A batch of changes."""
    return spark.createDataFrame(list(changes), SCHEMA)


class Changes:
    """Batches with repeats, late changes and deletions, and what a table has after them.

    A key that was deleted is not used again: a deletion leaves nothing that a late change could be
    compared with.
    """

    def __init__(self, seed: int) -> None:
        self._chance = Random(seed)
        self._newest: dict[str, tuple[int, str, bool]] = {}
        self._deleted: set[str] = set()

    def batch(self, count: int) -> list[Change]:
        """So many changes."""
        found: list[Change] = []
        for _ in range(count):
            key = f"k{self._chance.randrange(30)}"
            if key in self._deleted:
                continue
            number = self._chance.randrange(1_000_000)
            change = (number, f"{key}-{number}", self._chance.random() < 0.1)
            found.append((key, *change))
            if number > self._newest.get(key, (-1,))[0]:
                self._newest[key] = change
        self._deleted |= {key for key, (_, _, gone) in self._newest.items() if gone}
        self._chance.shuffle(found)
        return found

    @property
    def expected(self) -> set[tuple[str, int, str]]:
        """Key, number and text of each row of the table."""
        return {(key, n, text) for key, (n, text, gone) in self._newest.items() if not gone}
