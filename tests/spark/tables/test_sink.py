"""The rule that a batch is applied once, for a table of any kind."""

from types import SimpleNamespace
from typing import cast

from pyspark.sql import DataFrame, SparkSession

from cometmq.spark.tables.sink import NO_BATCH, Mark, TableSink


class Recorded(TableSink):
    """A table that keeps marks."""

    def __init__(self) -> None:
        self.marks: list[Mark] = []

    def last(self, spark: SparkSession, query: str) -> int:
        return max((mark.batch for mark in self.marks if mark.query == query), default=NO_BATCH)

    def write(self, rows: DataFrame, mark: Mark) -> bool:
        self.marks.append(mark)
        return True


def rows(query: str | None) -> DataFrame:
    """What the rule asks of a batch: which query gives it."""
    context = SimpleNamespace(getLocalProperty=lambda key: query if "queryId" in key else None)
    return cast("DataFrame", SimpleNamespace(sparkSession=SimpleNamespace(sparkContext=context)))


def test_each_batch_of_a_query_is_written_once() -> None:
    sink = Recorded()
    for query, batch in (("a", 0), ("a", 0), ("a", 1), ("b", 0), ("a", 0), ("b", 0), ("a", 5)):
        sink(rows(query), batch)
    assert sink.marks == [("a", 0), ("a", 1), ("b", 0), ("a", 5)]


def test_whether_it_was_written() -> None:
    sink = Recorded()
    assert sink.apply(rows("a"), Mark("a", 3))
    assert not sink.apply(rows("a"), Mark("a", 3))


def test_outside_a_query() -> None:
    sink = Recorded()
    sink(rows(None), 0)
    assert sink.marks == [("", 0)]
