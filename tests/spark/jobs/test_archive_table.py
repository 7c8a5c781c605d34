"""What an archive's rows are; its tables are tested with the job."""

from datetime import UTC, datetime

import pytest
from pyspark.sql import SparkSession

from cometmq.spark.jobs.archive import dated, ends, partitions
from cometmq.spark.schema import DDL, NAMES

pytestmark = pytest.mark.spark


def test_days_and_hours_are_utc_whatever_the_session_s_zone(spark: SparkSession) -> None:
    moments = [
        datetime(2026, 1, 31, 23, 30, tzinfo=UTC),
        datetime(2026, 2, 1, 0, 30, tzinfo=UTC),
        datetime(1969, 12, 31, 23, 30, tzinfo=UTC),
    ]
    place = NAMES.index("store_timestamp")
    rows = [tuple(at if n == place else None for n in range(len(NAMES))) for at in moments]
    before = str(spark.conf.get("spark.sql.session.timeZone"))
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        found = dated(spark.createDataFrame(rows, DDL), hours=True).collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    assert [(row.day, row.hour) for row in found] == [
        ("2026-01-31", "23"),
        ("2026-02-01", "00"),
        ("1969-12-31", "23"),
    ]
    assert dated(spark.createDataFrame(rows, DDL), hours=False).columns == [*NAMES, "day"]
    assert partitions(hours=True) == ("topic", "day", "hour")


def test_how_far_each_queue_is_archived(spark: SparkSession) -> None:
    rows = [("t", "b", 0, 5), ("t", "b", 0, 7), ("t", "b", 1, 2), ("u", "b", 0, 9)]
    ddl = "topic string, broker_name string, queue_id int, queue_offset bigint"
    found = ends(spark.createDataFrame(rows, ddl), ["t"]).orderBy("queue_id").collect()
    assert [row.archived_to for row in found] == [7, 2]
