"""Batch reads of a real broker through Spark."""

import json
import pickle
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from cometmq.client.blocking import Client
from cometmq.message.model import MessageQueue
from cometmq.spark.brokers import reach, wire
from cometmq.spark.read.batch import TopicReader
from cometmq.testing.cluster import Cluster
from tests.spark.topics import access, fill, fill_all, make_topic, options

spark_test = pytest.mark.spark
TOPIC = "Reader"
Load = Callable[..., DataFrame]


@pytest.fixture(scope="module")
def queues(cometmq_session_cluster: Cluster) -> list[MessageQueue]:
    """Three queues of 40 messages and an empty one."""
    with Client(cometmq_session_cluster.namesrv) as client:
        found = make_topic(client, TOPIC)
        fill_all(client, found[:3], 40)
    return found


@pytest.fixture
def load(spark: SparkSession, cometmq_session_cluster: Cluster, queues: list[MessageQueue]) -> Load:
    def of(**extra: str) -> DataFrame:
        read = spark.read.format("rocketmq").option("topic", TOPIC).options(**extra)
        return read.option("nameservers", cometmq_session_cluster.namesrv).load()

    return of


def places(frame: DataFrame) -> list[tuple[int, int]]:
    return sorted((row[0], row[1]) for row in frame.select("queue_id", "queue_offset").collect())


@spark_test
def test_every_message_once(load: Load) -> None:
    frame = load()
    assert places(frame) == [(queue, at) for queue in range(3) for at in range(40)]
    bodies = {bytes(row[0]).decode() for row in frame.select("body").collect()}
    assert bodies == {f"{queue}-{at}" for queue in range(3) for at in range(40)}


@spark_test
def test_all_columns(load: Load, cometmq_session_cluster: Cluster) -> None:
    (row,) = load().where("keys = '1-7'").collect()
    assert (row.topic, row.broker_name, row.queue_id, row.queue_offset) == (TOPIC, "broker-a", 1, 7)
    assert bytes(row.body) == b"1-7"
    assert row.properties["KEYS"] == "1-7"
    assert row.msg_id == row.properties["UNIQ_KEY"]
    assert row.tags is None
    assert row.store_host == cometmq_session_cluster.broker
    assert row.born_host.startswith("127.0.0.1:")
    assert row.reconsume_times == row.flag == row.prepared_offset == 0
    assert row.size_bytes > 91
    assert row.body_crc > 0


@spark_test
def test_offsets_by_queue(load: Load) -> None:
    start = json.dumps({TOPIC: {"broker-a": {"0": 38, "1": -1}}})
    end = json.dumps({TOPIC: {"broker-a": {"2": 2}}})
    assert places(load(startingOffsets=start, endingOffsets=end)) == [
        *((0, 38), (0, 39)),
        *((2, 0), (2, 1)),
    ]
    assert places(load(startingOffsets="latest")) == []


@spark_test
def test_times(load: Load, cometmq_session_cluster: Cluster, queues: list[MessageQueue]) -> None:
    reached = access(cometmq_session_cluster.namesrv)
    times = [
        (queue.queue_id, at, reach.looks({queue: at}, reached)[queue].store_ms)
        for queue in queues[:3]
        for at in range(40)
    ]
    middle = times[60][2]
    iso = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=middle)).isoformat()
    before = [(queue, at) for queue, at, store_ms in times if store_ms < middle]
    after = [(queue, at) for queue, at, store_ms in times if store_ms >= middle]
    assert places(load(endingTimestamp=str(middle))) == before
    assert places(load(startingTimestamp=iso)) == after


@spark_test
def test_more_tasks_when_asked(load: Load) -> None:
    assert load().rdd.getNumPartitions() == 1
    assert load(minPartitions="6").rdd.getNumPartitions() >= 6
    assert load(maxRowsPerPartition="20").rdd.getNumPartitions() == 6
    assert places(load(maxRowsPerPartition="7")) == places(load())


@spark_test
def test_a_tag_filter(
    spark: SparkSession, cometmq_session_cluster: Cluster, queues: list[MessageQueue]
) -> None:
    with Client(cometmq_session_cluster.namesrv) as client:
        (queue,) = make_topic(client, "ReaderTags", 1)
        for at in range(30):
            fill(client, queue, [str(at)], ["insert", "update", "delete"][at % 3])
    read = spark.read.format("rocketmq").option("topic", "ReaderTags")
    read = read.option("nameservers", cometmq_session_cluster.namesrv)
    counts = read.option("filter", "insert || delete").load().groupBy("tags").count().collect()
    assert {row["tags"]: row["count"] for row in counts} == {"insert": 10, "delete": 10}


@spark_test
def test_what_is_gone_is_reported(load: Load) -> None:
    beyond = json.dumps({TOPIC: {"broker-a": {"0": 45}}})
    with pytest.raises(PySparkException, match="offsets 40 to 44 of queue 0 of topic 'Reader'"):
        load(endingOffsets=beyond).collect()
    assert len(places(load(endingOffsets=beyond, failOnDataLoss="false"))) == 120


def test_the_plan_without_spark(
    cometmq_session_cluster: Cluster, queues: list[MessageQueue]
) -> None:
    read = options(cometmq_session_cluster.namesrv, TOPIC, maxRowsPerPartition="15")
    reader = TopicReader(read, ("queue_id", "queue_offset"))
    plan = reader.partitions()
    assert len(plan) == 9
    found = [
        (batch.column(0)[at].as_py(), batch.column(1)[at].as_py())
        for part in pickle.loads(pickle.dumps(plan))
        for batch in pickle.loads(pickle.dumps(reader)).read(part)
        for at in range(batch.num_rows)
    ]
    assert found == [(queue, at) for queue in range(3) for at in range(40)]
    wire.close_all()
