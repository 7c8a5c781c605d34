"""Where a job's messages come from."""

from datetime import UTC, datetime

import pytest
from pyspark.sql import SparkSession

from cometmq.spark.jobs.inputs import IDENTITY, InputOptions, between, chosen, once
from cometmq.spark.options import BadOption


def test_inputs_and_topics() -> None:
    everywhere = InputOptions(nameservers="a:1", stores=("x",), archive="y", topics=("t", "u"))
    assert everywhere.named() == ("live", "store", "archive")
    assert chosen(everywhere) == {"topic": "t,u"}
    assert chosen(InputOptions(pattern="a.*")) == {"subscribePattern": "a.*"}
    assert chosen(InputOptions(read_options={"assign": "{}"})) == {}
    with pytest.raises(BadOption, match="no input is given"):
        InputOptions().named()
    with pytest.raises(BadOption, match="give a topic"):
        chosen(InputOptions())
    with pytest.raises(BadOption, match="together"):
        chosen(InputOptions(topics=("t",), pattern="p"))


@pytest.mark.spark
def test_the_first_place_counts_and_all_are_told(spark: SparkSession) -> None:
    at = datetime(2026, 1, 31, tzinfo=UTC)

    def row(offset: int, broker: str | None, place: str) -> tuple[object, ...]:
        return ("t", 0, offset, 100, at, "h:1", "id", broker, place)

    ddl = (
        "topic string, queue_id int, queue_offset bigint, physical_offset bigint, "
        "store_timestamp timestamp, store_host string, msg_id string, broker_name string, "
        "place string"
    )
    rows = [row(1, None, "archive"), row(1, "b", "live"), row(2, "c", "store")]
    found = once(spark.createDataFrame(rows, ddl)).orderBy("queue_offset").collect()
    assert [(each.broker_name, each.places) for each in found] == [
        ("b", ["archive", "live"]),
        ("c", ["store"]),
    ]
    assert [name for name in IDENTITY if name not in found[0]] == []


@pytest.mark.spark
def test_a_time_range_is_exact_in_every_time_zone(spark: SparkSession) -> None:
    seconds = spark.range(10).selectExpr("timestamp_millis(id * 1000) as store_timestamp", "id")
    inside = seconds.where(between(3_000, 6_000))
    assert [row.id for row in inside.collect()] == [3, 4, 5]
    assert seconds.where(between(None, None)).count() == 10
