"""Statistics of a data file, as Delta has them."""

import datetime
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from cometmq.spark.tables.datafiles import HadoopFolder, LocalFolder
from cometmq.spark.tables.delta import statistics_of


def test_statistics(tmp_path: Path) -> None:
    at = datetime.datetime(2026, 3, 1, 7, 8, 9, 123456, tzinfo=datetime.UTC)
    table = pa.table(
        {
            "n": pa.array([3, None, -1], pa.int32()),
            "text": ["b", "a", "ü"],
            "long": ["x" * 65, "a", "b"],
            "at": pa.array([at, at.replace(microsecond=1), None], pa.timestamp("us", "UTC")),
            "plain": pa.array([at.replace(tzinfo=None)] * 3, pa.timestamp("us")),
            "day": pa.array([at.date()] * 3, pa.date32()),
            "share": [1.5, float("nan"), 0.0],
            "sure": [True, False, True],
            "nothing": pa.array([None] * 3, pa.int64()),
            "list": [[1], None, [2, 3]],
            "body": [b"\xff", b"", None],
        }
    )
    path = tmp_path / "x.parquet"
    pq.write_table(table, path, row_group_size=2)
    found = json.loads(statistics_of(LocalFolder(tmp_path), path.name))
    assert found["numRecords"] == 3
    assert found["minValues"] == {
        "n": -1,
        "text": "a",
        "at": "2026-03-01T07:08:09.000Z",
        "plain": "2026-03-01T07:08:09.123",
        "day": "2026-03-01",
    }
    assert found["maxValues"] == {
        "n": 3,
        "text": "ü",
        "at": "2026-03-01T07:08:09.124Z",
        "plain": "2026-03-01T07:08:09.124",
        "day": "2026-03-01",
    }
    assert found["nullCount"]["n"] == 1
    assert found["nullCount"]["nothing"] == 3
    assert "list" not in found["nullCount"]


def test_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"n": pa.array([], pa.int32())}), path)
    found = json.loads(statistics_of(LocalFolder(tmp_path), path.name))
    assert (found["numRecords"], found["minValues"], found["maxValues"]) == (0, {}, {})


@pytest.mark.spark
def test_a_file_that_only_spark_can_read(spark: SparkSession, tmp_path: Path) -> None:
    """Of many columns and rows, so that its end has to be read twice and not the whole."""
    columns = {f"a column with a long name {at}": pa.array(range(1_000)) for at in range(300)}
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    found = json.loads(statistics_of(HadoopFolder(spark, f"file://{tmp_path}"), "x.parquet"))
    assert found == json.loads(statistics_of(LocalFolder(tmp_path), "x.parquet"))
    assert (found["numRecords"], len(found["minValues"])) == (1_000, 300)
    assert set(found["maxValues"].values()) == {999}
