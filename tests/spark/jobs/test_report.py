"""The report on changes."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cometmq.spark.jobs.changes import COLUMNS, parsed
from cometmq.spark.jobs.sync import ChangeReport, make_report
from tests.spark.jobs.changing import body

pytestmark = pytest.mark.spark
BORN = datetime(2026, 1, 1, tzinfo=UTC)
HOUR_MS = 3_600_000


def test_counts_lags_and_rate(spark: SparkSession, tmp_path: Path) -> None:
    rows = []
    for at in range(100):
        country = "AD" if at < 70 else "FR"
        found = body("t", str(at), "insert", 1, {"country": country}, at_ms=at // 50 * HOUR_MS)
        born = BORN + timedelta(milliseconds=100 * at)
        rows.append(("broker-a", 0, at, found, born, born + timedelta(milliseconds=at)))
    rows.append(("broker-a", 0, 100, b"no change", BORN, BORN))
    frame = parsed(spark.createDataFrame(rows, COLUMNS), 4)
    frame.write.parquet(str(tmp_path / "changes" / "batch=00000000"))
    report = make_report(spark, tmp_path / "changes", tmp_path / "report", "country")
    assert report == ChangeReport(
        changes=100,
        groups=2,
        busiest=[
            ("AD", "1970-01-01 00:00", 50),
            ("FR", "1970-01-01 01:00", 30),
            ("AD", "1970-01-01 01:00", 20),
        ],
        lag_ms={"p50": 49, "p95": 94, "p99": 98, "max": 99},
        per_s=10.0,
    )
    written = json.loads((tmp_path / "report" / "report.json").read_text())
    assert written["busiest"][0] == ["AD", "1970-01-01 00:00", 50]
    hours = spark.read.parquet(str(tmp_path / "report" / "changes_by_hour"))
    assert sum(row["changes"] for row in hours.collect()) == 100


def test_without_changes_there_is_an_empty_report(spark: SparkSession, tmp_path: Path) -> None:
    empty = ChangeReport(0, 0, [], {}, 0.0)
    assert make_report(spark, tmp_path / "changes", tmp_path / "report", "country") == empty
