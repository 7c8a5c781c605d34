"""What jobs tell of how far they are."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cometmq.spark.jobs.job import advance, drained, offsets_in, progress_reported, silent

Told = list[tuple[str, int, int]]


def test_how_far_a_stream_is() -> None:
    first = {"a": 10}
    source = {
        "endOffset": {"v": 1, "q": {"a": 15, "b": 2}},
        "latestOffset": '{"v":1,"q":{"a":20,"b":1}}',
    }
    assert advance(first, source) == (7, 12)
    assert advance({}, {"endOffset": None}) == (0, 0)
    assert offsets_in("null") == offsets_in(None) == offsets_in({}) == {}


@pytest.mark.spark
def test_tasks_are_counted_where_somebody_listens(spark: SparkSession) -> None:
    told: Told = []
    with progress_reported(spark, "count", lambda *found: told.append(found)):
        spark.range(10, numPartitions=3).count()
    assert told[-1][0] == "count"
    assert told[-1][1] == told[-1][2] >= 3
    with progress_reported(spark, "count", silent):
        assert spark.sparkContext.getLocalProperty("spark.jobGroup.id") is None


@pytest.mark.spark
def test_a_query_is_waited_for(spark: SparkSession, tmp_path: Path) -> None:
    rows = tmp_path / "rows"
    spark.range(5).write.parquet(str(rows))
    read = spark.readStream.schema("id bigint").parquet(str(rows))
    write = read.writeStream.format("parquet").option("path", str(tmp_path / "copy"))
    write = write.option("checkpointLocation", str(tmp_path / "checkpoint"))
    told: Told = []
    query = write.trigger(availableNow=True).start()
    drained(query, "copy", lambda *found: told.append(found))
    assert not query.isActive
    assert {stage for stage, _, _ in told} <= {"copy"}
