"""Batch reads of a real broker through Spark."""

import json
import pickle
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, LessThan

from cometmq.client.blocking import Client
from cometmq.message.model import MessageQueue
from cometmq.spark.brokers import offsets
from cometmq.spark.read import pushdown
from cometmq.spark.read.planning import Range
from cometmq.spark.read.reader import TopicReader, ranges_of
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
        (queue.queue_id, at, offsets.samples({queue: at}, reached)[queue].store_ms)
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
def test_an_end_behind_the_end_of_a_queue(load: Load) -> None:
    beyond = json.dumps({TOPIC: {"broker-a": {"0": 45}}})
    says = r"'endingOffsets': queue broker-a\|Reader\|0 .*ends at 40, before 45"
    with pytest.raises(PySparkException, match=says):
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


CLAUSES: dict[str, Callable[[int, int], bool]] = {
    "queue_id IN (0, 2) AND queue_offset BETWEEN 5 AND 20": lambda q, at: q != 1 and 5 <= at <= 20,
    "queue_offset IN (3, 30) AND broker_name LIKE 'broker%'": lambda q, at: at in (3, 30),
    "tags = 'even' AND queue_offset >= 10": lambda q, at: at % 3 == 0 and at >= 10,
    "tags IN ('odd', 'x') AND keys LIKE '1-%'": lambda q, at: at % 3 == 1 and q == 1,
    "tags IS NULL OR queue_id = 5": lambda q, at: at % 3 == 2,
    "topic = 'Nowhere'": lambda q, at: False,
    "store_timestamp >= '2020-01-01' AND queue_id <> 0": lambda q, at: q != 0,
}
"""What holds of a queue and an offset of those below."""


@pytest.fixture(scope="module")
def tagged(cometmq_session_cluster: Cluster) -> list[MessageQueue]:
    """Three queues of 40 messages, with tags or without."""
    with Client(cometmq_session_cluster.namesrv) as client:
        found = make_topic(client, "ReaderPushed", 3)
        for queue in found:
            for at in range(40):
                tag = ["even", "odd", ""][at % 3]
                fill(client, queue, [f"{queue.queue_id}-{at}"], tag)
    return found


Messages = Callable[..., DataFrame]


@pytest.fixture
def messages(
    spark: SparkSession, cometmq_session_cluster: Cluster, tagged: list[MessageQueue]
) -> Messages:
    """A frame of those queues, a new one at each call."""

    def of(**extra: str) -> DataFrame:
        read = spark.read.format("rocketmq").option("topic", "ReaderPushed").options(**extra)
        return read.option("nameservers", cometmq_session_cluster.namesrv).load()

    return of


@spark_test
def test_filters_give_equal_rows_whether_they_are_pushed_or_not(
    spark: SparkSession, messages: Messages
) -> None:
    switch = "spark.sql.python.filterPushdown.enabled"
    before = str(spark.conf.get(switch))
    try:
        for is_on, clauses in (("true", list(CLAUSES)), ("false", list(CLAUSES)[:1])):
            spark.conf.set(switch, is_on)
            for clause in clauses:
                assert places(messages(pushFilters="true").where(clause)) == [
                    (q, at) for q in range(3) for at in range(40) if CLAUSES[clause](q, at)
                ], (clause, is_on)
    finally:
        spark.conf.set(switch, before)


@spark_test
def test_pushed_filters_make_a_smaller_plan(messages: Messages) -> None:
    def tasks(clause: str, **extra: str) -> int:
        frame = messages(maxRowsPerPartition="10", **extra)
        return frame.where(clause).rdd.getNumPartitions()

    assert tasks("queue_id = 1 AND queue_offset < 10") == 12
    assert tasks("queue_id = 1 AND queue_offset < 10", pushFilters="true") == 1
    assert tasks("queue_offset < 10", pushFilters="true") == 1 * 3


@spark_test
def test_a_frame_is_used_again_only_where_nothing_is_pushed(messages: Messages) -> None:
    """The second count is a fault of Spark 4.3. Where a later version counts 120, pushing may be
    the default."""
    counts = []
    for frame in (messages(), messages(pushFilters="true")):
        assert frame.where("queue_id = 1").count() == 40
        counts.append(frame.count())
    assert counts == [120, 40]


def test_pushed_filters_spare_messages(
    cometmq_session_cluster: Cluster, tagged: list[MessageQueue]
) -> None:
    read = options(cometmq_session_cluster.namesrv, "ReaderPushed", pushFilters="true")
    reader = TopicReader(read, ("tags",))
    rest = list(
        reader.pushFilters(
            [
                EqualTo(("queue_id",), 1),
                LessThan(("queue_offset",), 30),
                EqualTo(("tags",), "odd"),
                EqualTo(("keys",), "1-4"),
            ]
        )
    )
    assert rest == [EqualTo(("keys",), "1-4")]
    again = pickle.loads(pickle.dumps(reader))
    (part,) = reader.partitions()
    assert ranges_of(part) == (Range(tagged[1], 0, 30),)
    (rows,) = again.read(part)
    assert rows.column(0).to_pylist() == ["odd"] * 10


def test_times_spare_messages(
    cometmq_session_cluster: Cluster, tagged: list[MessageQueue], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pushdown, "CLOCK_SLACK_MS", 0)
    reached = access(cometmq_session_cluster.namesrv)
    times = [offsets.samples({tagged[1]: at}, reached)[tagged[1]].store_ms for at in range(40)]
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=times[20])
    read = options(cometmq_session_cluster.namesrv, "ReaderPushed", pushFilters="true")
    reader = TopicReader(read, ("tags",))
    pushed = [GreaterThanOrEqual(("store_timestamp",), moment), EqualTo(("queue_id",), 1)]
    assert list(reader.pushFilters(pushed)) == pushed[:1]
    (part,) = reader.partitions()
    assert ranges_of(part) == (Range(tagged[1], times.index(times[20]), 40),)
