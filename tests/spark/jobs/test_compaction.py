"""Which files are joined; the joining itself is tested with the archive."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cometmq.spark.jobs.archive import CountDiffers, compact, joined_together, partition_of
from cometmq.spark.options import BadOption
from cometmq.spark.tables.parquet import DataFile


def file(batch: int, day: str, size_bytes: int) -> DataFile:
    return DataFile(f"data/batch={batch}-q-x/topic=%25RETRY%25g/day={day}/p.parquet", size_bytes)


def test_a_partition_is_named_by_its_folders() -> None:
    assert partition_of(file(1, "2026-01-31", 1).name) == ("topic=%RETRY%g", "day=2026-01-31")


def test_only_small_files_that_are_not_alone_are_joined() -> None:
    files = [file(1, "a", 10), file(2, "a", 70), file(3, "a", 80), file(1, "b", 10)]
    found = joined_together(files, 100)
    assert list(found.values()) == [[files[0], files[1]]]


@pytest.mark.spark
def test_nothing_to_join(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="no archive"):
        compact(spark, str(tmp_path), 100)
    assert "nothing is changed" in str(CountDiffers("x", 2, 1))
