"""The Parquet table: whole batches, once each, and nothing left behind."""

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from cometmq.spark.tables.parquet import ParquetTable
from cometmq.spark.tables.sink import ColumnsDiffer, Mark

pytestmark = pytest.mark.spark


def rows_of(spark: SparkSession, start: int, end: int) -> DataFrame:
    return spark.range(start, end, 1, 2).selectExpr(
        "id", "concat(id % 2, ' =/ü%') as part", "timestamp_micros(id) as at"
    )


def ids(spark: SparkSession, table: ParquetTable) -> list[int]:
    return sorted(row.id for row in table.read(spark).collect())


def attempts(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "data").iterdir())


def test_each_batch_once(spark: SparkSession, tmp_path: Path) -> None:
    table = ParquetTable(str(tmp_path / "t"))
    with pytest.raises(FileNotFoundError):
        table.read(spark)
    assert table.apply(rows_of(spark, 0, 5), Mark("q", 0))
    assert not table.apply(rows_of(spark, 0, 5), Mark("q", 0))
    assert table.apply(rows_of(spark, 5, 5), Mark("q", 1))
    assert table.apply(rows_of(spark, 5, 9), Mark("q", 2))
    assert not table.apply(rows_of(spark, 5, 9), Mark("q", 1))
    assert table.apply(rows_of(spark, 9, 10), Mark("other", 0))
    assert ids(spark, table) == list(range(10))


def test_partitions_and_options(spark: SparkSession, tmp_path: Path) -> None:
    options = {"compression": "gzip"}
    table = ParquetTable(str(tmp_path), partition_by=["part"], options=options)
    table.apply(rows_of(spark, 0, 4), Mark("q", 0))
    table.apply(rows_of(spark, 4, 6), Mark("q", 1))
    assert all(file.endswith(".gz.parquet") and "/part=" in file for file in table.files())
    assert table.files() == table.files(spark)
    before = sorted(tuple(row) for row in rows_of(spark, 0, 6).collect())
    assert sorted(tuple(row) for row in table.read(spark).collect()) == before


def test_what_a_crashed_attempt_left_goes_with_the_next_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = ParquetTable(str(tmp_path))
    table.apply(rows_of(spark, 0, 2), Mark("q", 0))
    committed = attempts(tmp_path)
    # A driver that died before its commit, another's batch under way, and a future of ours.
    for name in ("00000001-q-0badf00d", "00000000-q-0badf00d", "00000001-r-0badf00d"):
        rows_of(spark, 0, 2).write.parquet(str(tmp_path / "data" / f"batch={name}"))
    table = ParquetTable(str(tmp_path))
    assert ids(spark, table) == [0, 1]
    table.apply(rows_of(spark, 2, 4), Mark("q", 1))
    assert ids(spark, table) == [0, 1, 2, 3]
    left = attempts(tmp_path)
    assert left[0] == committed[0]
    assert len(left) == 3
    assert "batch=00000001-r-0badf00d" in left
    assert table.clean() == ["batch=00000001-r-0badf00d"]
    assert ids(spark, table) == [0, 1, 2, 3]


def test_a_driver_that_was_thought_dead_changes_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = ParquetTable(str(tmp_path))
    assert table.write(rows_of(spark, 0, 2), Mark("q", 0))
    assert not table.write(rows_of(spark, 0, 2), Mark("q", 0))
    assert ids(spark, table) == [0, 1]
    assert len(attempts(tmp_path)) == 1


def test_a_batch_that_fails_is_written_when_it_comes_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = ParquetTable(str(tmp_path))
    table.apply(rows_of(spark, 0, 2), Mark("q", 0))
    with pytest.raises(Exception, match="batch 1 fails"):
        table.apply(
            rows_of(spark, 2, 4).selectExpr(
                "if(id = 3, raise_error('batch 1 fails'), id) as id", "part", "at"
            ),
            Mark("q", 1),
        )
    assert table.apply(rows_of(spark, 2, 4), Mark("q", 1))
    assert ids(spark, table) == [0, 1, 2, 3]
    assert len(attempts(tmp_path)) == 2


def test_other_columns_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    table = ParquetTable(str(tmp_path))
    table.apply(rows_of(spark, 0, 2), Mark("q", 0))
    with pytest.raises(ColumnsDiffer, match="column 'id' is string, in the table long"):
        table.apply(rows_of(spark, 2, 4).selectExpr("'2' as id", "part", "at"), Mark("q", 1))
    table.apply(rows_of(spark, 2, 4).select("at", "part", "id"), Mark("q", 1))
    assert ids(spark, table) == [0, 1, 2, 3]


def test_inside_a_query(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "source"
    rows_of(spark, 0, 6).write.parquet(str(source))
    table = ParquetTable(str(tmp_path / "t"))
    for _ in range(2):
        read = spark.readStream.schema(rows_of(spark, 0, 0).schema).parquet(str(source))
        query = (
            read.writeStream.foreachBatch(table)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        assert ids(spark, table) == list(range(6))
        rows_of(spark, 0, 0).write.mode("append").parquet(str(source))
        # The commit is lost with the driver: Spark gives the batch again.
        for path in (tmp_path / "checkpoint" / "commits").iterdir():
            path.unlink()
