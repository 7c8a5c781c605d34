"""Micro-batches of a real broker through Spark."""

import json
import threading
from collections import Counter
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from cometmq.client.blocking import Client
from cometmq.core.errors import NotConnected
from cometmq.message.model import MessageQueue
from cometmq.spark.brokers import offsets
from cometmq.spark.read import discovery
from cometmq.spark.read.checkpoint import from_json
from cometmq.spark.read.losses import DataLoss
from cometmq.spark.read.stream import TopicStreamReader
from cometmq.testing.cluster import Cluster, ProcessCluster
from tests.spark.topics import access, delete_topic, fill_all, make_topic, options

pytestmark = pytest.mark.usefixtures("finds_at_once")
spark_test = pytest.mark.spark


def stream(spark: SparkSession, cluster: Cluster, topic: str, **extra: str) -> DataFrame:
    read = spark.readStream.format("rocketmq").option("nameservers", cluster.namesrv)
    return read.option("topic", topic).options(**extra).load()


def to_parquet(frame: DataFrame, folder: Path) -> int:
    """Read what there is into ``folder``; gives the number of micro-batches that had rows."""
    writer = frame.writeStream.format("parquet").option("path", str(folder / "rows"))
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return sum(progress["numInputRows"] > 0 for progress in query.recentProgress)


def bodies(spark: SparkSession, folder: Path) -> Counter[str]:
    rows = spark.read.parquet(str(folder / "rows")).select("body").collect()
    return Counter(bytes(row[0]).decode() for row in rows)


def expected(queues: int, each: int, start: int = 0) -> Counter[str]:
    return Counter(f"{queue}-{at}" for queue in range(queues) for at in range(start, each))


@spark_test
def test_each_message_once_over_restarts(
    spark: SparkSession, cometmq_session_cluster: Cluster, tmp_path: Path
) -> None:
    with Client(cometmq_session_cluster.namesrv) as client:
        queues = make_topic(client, "StreamOnce", 3)
        fill_all(client, queues, 20)
        frame = stream(
            spark,
            cometmq_session_cluster,
            "StreamOnce",
            startingOffsets="earliest",
            maxOffsetsPerTrigger="25",
        )
        assert to_parquet(frame, tmp_path) == 3
        assert bodies(spark, tmp_path) == expected(3, 20)
        assert to_parquet(frame, tmp_path) == 0
        fill_all(client, queues[:2], 5, start=20)
        assert to_parquet(frame, tmp_path) == 1
    assert bodies(spark, tmp_path) == expected(3, 20) + expected(2, 25, start=20)


@spark_test
def test_a_group_knows_of_every_batch_also_of_the_last(
    spark: SparkSession, cometmq_session_cluster: Cluster, tmp_path: Path
) -> None:
    namesrv = cometmq_session_cluster.namesrv
    with Client(namesrv) as client:
        queues = [
            queue for name in "ab" for queue in make_topic(client, f"StreamPattern-{name}", 2)
        ]
        fill_all(client, queues, 30)
    read = spark.readStream.format("rocketmq").option("nameservers", namesrv)
    frame = read.options(
        subscribePattern="StreamPattern-.*",
        startingOffsets="earliest",
        consumerGroup="stream-pattern",
        maxBytesPerTrigger="12000",
        minOffsetsPerTrigger="1000",
    ).load()
    assert to_parquet(frame, tmp_path) > 1
    assert bodies(spark, tmp_path) == expected(2, 30) + expected(2, 30)
    told = offsets.committed("stream-pattern", queues, access(namesrv))
    assert told == dict.fromkeys(queues, 30)


@spark_test
def test_it_starts_with_what_comes_unless_told(
    spark: SparkSession, cometmq_session_cluster: Cluster, tmp_path: Path
) -> None:
    with Client(cometmq_session_cluster.namesrv) as client:
        queues = make_topic(client, "StreamLatest", 2)
        fill_all(client, queues, 5)
        frame = stream(spark, cometmq_session_cluster, "StreamLatest")
        query = frame.writeStream.format("memory").queryName("latest").start()
        try:
            query.processAllAvailable()
            fill_all(client, queues, 3, start=5)
            query.processAllAvailable()
        finally:
            query.stop()
    rows = spark.sql("select body from latest").collect()
    assert Counter(bytes(row[0]).decode() for row in rows) == expected(2, 8, start=5)


@spark_test
def test_a_lost_tail_stops_the_query(
    spark: SparkSession, cometmq_session_cluster: Cluster, tmp_path: Path
) -> None:
    with Client(cometmq_session_cluster.namesrv) as client:
        fill_all(client, make_topic(client, "StreamAnew", 1), 9)
        frame = stream(spark, cometmq_session_cluster, "StreamAnew", startingOffsets="earliest")
        to_parquet(frame, tmp_path)
        delete_topic(client, "StreamAnew")
        fill_all(client, make_topic(client, "StreamAnew", 1), 4)
        with pytest.raises(StreamingQueryException, match="offsets 4 to 8 of queue 0"):
            to_parquet(frame, tmp_path)


def reader(cluster: Cluster, topic: str, **extra: str) -> TopicStreamReader:
    return TopicStreamReader(options(cluster.namesrv, topic, **extra), ("queue_offset",))


def filled(cluster: Cluster, topic: str, queues: int, each: int, **extra: str) -> TopicStreamReader:
    """A reader, from the earliest message on, of a new topic with so many in every queue."""
    with Client(cluster.namesrv) as client:
        fill_all(client, make_topic(client, topic, queues), each)
    return reader(cluster, topic, startingOffsets="earliest", **extra)


def read(found: TopicStreamReader, start: dict[str, object], end: dict[str, object]) -> list[int]:
    return sorted(
        offset
        for part in found.partitions(start, end)
        for batch in found.read(part)
        for offset in batch.column(0).to_pylist()
    )


def test_a_new_query_may_die_in_its_first_batch(cometmq_session_cluster: Cluster) -> None:
    with Client(cometmq_session_cluster.namesrv) as client:
        queues = make_topic(client, "StreamFirst", 1)
        fill_all(client, queues, 3)
        before = reader(cometmq_session_cluster, "StreamFirst")
        start = before.initialOffset()
        fill_all(client, queues, 4, start=3)
        assert before.initialOffset() == start
        end = before.latestOffset(start, ReadAllAvailable())
        fill_all(client, queues, 2, start=7)
    # Spark logs only the end of a batch; a restart asks again where to start.
    after = reader(cometmq_session_cluster, "StreamFirst")
    again = after.initialOffset()
    assert again != start
    assert read(after, again, json.loads(json.dumps(end))) == [3, 4, 5, 6]
    following = after.latestOffset(end, ReadAllAvailable())
    assert read(after, end, following) == [7, 8]
    assert from_json(following).origin is None


def test_nothing_new_is_the_same_offset(cometmq_session_cluster: Cluster) -> None:
    found = filled(cometmq_session_cluster, "StreamSame", 2, 3)
    start = found.initialOffset()
    end = found.latestOffset(start, ReadAllAvailable())
    assert json.dumps(found.latestOffset(end, ReadAllAvailable())) == json.dumps(end)
    assert found.reportLatestOffset() == {"v": 1, "q": end["q"]}
    idle = reader(cometmq_session_cluster, "StreamSame")
    assert idle.latestOffset(idle.initialOffset(), ReadAllAvailable()) == idle.initialOffset()


def test_limits(cometmq_session_cluster: Cluster) -> None:
    found = filled(cometmq_session_cluster, "StreamLimit", 2, 30, maxOffsetsPerTrigger="7")
    assert found.getDefaultReadLimit() == ReadMaxRows(7)
    start = found.initialOffset()

    def taken(end: dict[str, object]) -> int:
        return sum(from_json(end).queues.values())

    assert taken(found.latestOffset(start, ReadMaxRows(7))) == 7
    # Spark asks for everything when an AvailableNow query must finish, whatever the option says.
    assert taken(found.latestOffset(start, ReadAllAvailable())) == 60
    assert taken(found.latestOffset(start, ReadMaxBytes(1))) == 2


def test_available_now_is_fixed_when_asked(cometmq_session_cluster: Cluster) -> None:
    with Client(cometmq_session_cluster.namesrv) as client:
        queues = make_topic(client, "StreamNow", 2)
        fill_all(client, queues, 3)
        found = reader(cometmq_session_cluster, "StreamNow", startingOffsets="earliest")
        start = found.initialOffset()
        found.prepareForTriggerAvailableNow()
        fill_all(client, queues, 3, start=3)
    end = found.latestOffset(start, ReadAllAvailable())
    assert read(found, start, end) == [0, 0, 1, 1, 2, 2]
    assert found.latestOffset(end, ReadAllAvailable()) == end


def test_new_queues_join_and_absent_ones_stay(cometmq_session_cluster: Cluster) -> None:
    found = filled(cometmq_session_cluster, "StreamGrows", 1, 2)
    start = found.initialOffset()
    end = found.latestOffset(start, ReadAllAvailable())
    with Client(cometmq_session_cluster.namesrv) as client:
        fill_all(client, make_topic(client, "StreamGrows", 3)[1:2], 4)
        grown = found.latestOffset(end, ReadAllAvailable())
        assert sorted(from_json(grown).queues.values()) == [2, 4]
        assert read(found, end, grown) == [0, 1, 2, 3]
        assert from_json(grown).origin == {MessageQueue("StreamGrows", "broker-a", 1): 0}
        delete_topic(client, "StreamGrows")
    assert found.latestOffset(grown, ReadAllAvailable()) == grown


def test_a_lost_tail_may_be_passed_over(cometmq_session_cluster: Cluster) -> None:
    strict = filled(cometmq_session_cluster, "StreamShrinks", 1, 9)
    start = strict.latestOffset(strict.initialOffset(), ReadAllAvailable())
    with Client(cometmq_session_cluster.namesrv) as client:
        delete_topic(client, "StreamShrinks")
        fill_all(client, make_topic(client, "StreamShrinks", 1), 4)
    with pytest.raises(DataLoss, match="offsets 4 to 8"):
        strict.latestOffset(start, ReadAllAvailable())
    lax = reader(cometmq_session_cluster, "StreamShrinks", failOnDataLoss="false")
    end = lax.latestOffset(start, ReadAllAvailable())
    assert list(from_json(end).queues.values()) == [4]
    assert read(lax, start, end) == []
    lax.commit(end)
    lax.stop()


@pytest.mark.parametrize("available_now", [False, True])
def test_limits_hold_in_the_batch_that_passes_over_a_loss(
    cometmq_session_cluster: Cluster, available_now: bool
) -> None:
    topic = f"StreamShort{available_now}"
    before = filled(cometmq_session_cluster, topic, 1, 50)
    start = before.latestOffset(before.initialOffset(), ReadAllAvailable())
    with Client(cometmq_session_cluster.namesrv) as client:
        delete_topic(client, topic)
        queues = make_topic(client, topic, 3)
        fill_all(client, queues, 30)
    extra = {"failOnDataLoss": "false", "maxOffsetsPerTrigger": "7", "minOffsetsPerTrigger": "7"}
    lax = reader(cometmq_session_cluster, topic, **extra)
    if available_now:
        lax.prepareForTriggerAvailableNow()
    end = lax.latestOffset(start, lax.getDefaultReadLimit())
    assert from_json(end).queues[queues[0]] == 30
    assert len(read(lax, start, end)) == 7
    taken = 7
    while (following := lax.latestOffset(end, lax.getDefaultReadLimit())) != end:
        taken += len(read(lax, end, following))
        end = following
        if taken > 53 and not available_now:
            break
    assert taken == 60 if available_now else taken == 56


def test_a_broker_may_be_away_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ProcessCluster(tmp_path) as node:
        with Client(node.namesrv) as client:
            queues = make_topic(client, "StreamAway", 2)
            fill_all(client, queues, 3)
        read_options = options(node.namesrv, "StreamAway", startingOffsets="earliest")
        found = TopicStreamReader(read_options, ("queue_offset",))
        start = found.initialOffset()
        end = found.latestOffset(start, ReadAllAvailable())
        node.kill()
        assert found.latestOffset(end, ReadAllAvailable()) == end
        monkeypatch.setattr(discovery, "OUTAGE_MS", 0)
        with pytest.raises(NotConnected):
            found.latestOffset(end, ReadAllAvailable())
        with pytest.raises(NotConnected):
            found.prepareForTriggerAvailableNow()
        monkeypatch.undo()
        restart = threading.Timer(0.5, node.start)
        restart.start()
        assert read(found, start, end) == [0, 0, 1, 1, 2, 2]
        restart.join()
        with Client(node.namesrv) as client:
            fill_all(client, queues, 2, start=3)
        following = found.latestOffset(end, ReadAllAvailable())
        assert read(found, end, following) == [3, 3, 4, 4]
