"""Source and sink against real RocketMQ brokers, 4.9.7 and 5.5.0."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cometmq.client.blocking import Client
from cometmq.message.model import MessageQueue, StoredMessage
from cometmq.spark.brokers import cluster, offsets
from cometmq.spark.read.positions import AtTimes, NamedPosition, resolve
from cometmq.spark.tiers.holdings import Tier
from cometmq.spark.tiers.options import parse
from cometmq.spark.tiers.planning import plan
from cometmq.testing.cluster import Cluster
from tests.compat.anchor import LATEST, VERSION, JavaCluster, fetch_jars
from tests.spark.read.test_stream import bodies, expected, stream, to_parquet
from tests.spark.tiers import tiered
from tests.spark.topics import access, fill, fill_all, make_topic, read_whole

pytestmark = [pytest.mark.compat, pytest.mark.spark]

WRITTEN = 600


@pytest.fixture(scope="module", params=[VERSION, LATEST])
def java(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    made = JavaCluster(fetch_jars(request.param), tmp_path_factory.mktemp("java"))
    with made.until_killed():
        yield Cluster(made.namesrv, made.broker, made.store)


@pytest.fixture(scope="module")
def queues(java: Cluster) -> list[MessageQueue]:
    """Three queues of 50 messages."""
    with Client(java.namesrv) as client:
        found = make_topic(client, "SparkOnJava", 3)
        fill_all(client, found, 50)
    return found


def test_offsets(java: Cluster, queues: list[MessageQueue]) -> None:
    reached = access(java.namesrv)
    assert cluster.queues(["SparkOnJava"], reached) == queues
    assert set(offsets.latest(queues, reached).values()) == {50}
    assert set(offsets.earliest(queues, reached).values()) == {0}


def test_times_are_exact_though_the_broker_only_comes_near(
    java: Cluster, queues: list[MessageQueue]
) -> None:
    reached = access(java.namesrv)
    places = ({queues[0]: offset} for offset in range(50))
    times = [offsets.samples(place, reached)[queues[0]].store_ms for place in places]
    for moment in sorted({0, *times, times[20] + 1, times[-1] + 1}):
        found = resolve(NamedPosition("startingTimestamp", AtTimes(moment)), queues[:1], reached)
        assert found == {queues[0]: sum(time < moment for time in times)}


def test_a_batch_and_a_filter(
    spark: SparkSession, java: Cluster, queues: list[MessageQueue]
) -> None:
    read = spark.read.format("rocketmq").option("nameservers", java.namesrv)
    frame = read.option("topic", "SparkOnJava").load()
    places = [tuple(row) for row in frame.select("queue_id", "queue_offset").collect()]
    assert sorted(places) == [(queue_id, at) for queue_id in range(3) for at in range(50)]
    (row,) = frame.where("keys = '2-33'").collect()
    assert (row.queue_id, row.queue_offset, bytes(row.body)) == (2, 33, b"2-33")
    with Client(java.namesrv) as client:
        (queue,) = make_topic(client, "SparkTagsOnJava", 1)
        for at in range(40):
            fill(client, queue, [str(at)], ["Aa", "BB"][at % 2])
    tagged = read.option("topic", "SparkTagsOnJava").option("filter", "BB").load()
    assert {row.keys for row in tagged.select("keys").collect()} == {
        str(at) for at in range(1, 40, 2)
    }


def test_a_stream(
    spark: SparkSession, java: Cluster, queues: list[MessageQueue], tmp_path: Path
) -> None:
    frame = stream(
        spark, java, "SparkOnJava", startingOffsets="earliest", maxOffsetsPerTrigger="100"
    )
    assert to_parquet(frame, tmp_path) == 2
    assert bodies(spark, tmp_path) == expected(3, 50)


def write(frame: DataFrame, java: Cluster, topic: str) -> None:
    writer = frame.write.format("rocketmq").mode("append")
    writer.option("nameservers", java.namesrv).option("topic", topic).save()


def whole(client: Client, topic: str) -> list[StoredMessage]:
    return [each for queue in client.queues(topic) for each in read_whole(client, queue)]


def test_rows_arrive_with_all_that_they_say_and_repeats_have_the_same_ids(
    spark: SparkSession, java: Cluster
) -> None:
    topic = "SparkWritesJava"
    with Client(java.namesrv) as client:
        make_topic(client, topic, 3)
        frame = spark.range(0, WRITTEN, numPartitions=2).select(
            F.concat(F.lit("body-"), F.col("id")).alias("body"),
            F.when(F.col("id") % 2 == 0, "even").alias("tags"),
            F.array(F.lit("all"), F.concat(F.lit("key-"), F.col("id"))).alias("keys"),
            F.create_map(F.lit("number"), F.col("id").cast("string")).alias("properties"),
            F.col("id").cast("int").alias("flag"),
            F.lit("a broker").alias("broker_name"),
            F.lit(0).alias("queue_id"),
            F.col("id").alias("queue_offset"),
        )
        write(frame, java, topic)
        first = whole(client, topic)
        assert sorted(each.body for each in first) == sorted(
            f"body-{at}".encode() for at in range(WRITTEN)
        )
        for each in first:
            number = int(each.body.removeprefix(b"body-"))
            assert (each.tag, each.flag) == ("" if number % 2 else "even", number)
            assert each.keys == ("all", f"key-{number}")
            assert each.properties["number"] == str(number)
        assert len({each.queue_id for each in first}) == 3
        write(frame, java, topic)
        again = whole(client, topic)
        # At least once: a Java broker keeps repeats, and their ids tell that they are some.
        assert len(again) == 2 * WRITTEN
        assert {each.unique_key for each in again} == {each.unique_key for each in first}
        assert len({each.unique_key for each in first}) == WRITTEN


def test_delay_levels_and_keys_in_order(spark: SparkSession, java: Cluster) -> None:
    topic = "SparkDelaysJava"
    with Client(java.namesrv) as client:
        make_topic(client, topic, 3)
        frame = spark.range(0, 90, numPartitions=1).select(
            F.col("id").cast("string").alias("body"),
            (F.col("id") % 5).cast("string").alias("order_key"),
            F.when(F.col("id") == 7, 16).otherwise(0).alias("delay_level"),
        )
        write(frame, java, topic)
        by_key: dict[int, list[int]] = {}
        for each in whole(client, topic):
            by_key.setdefault(int(each.body) % 5, []).append(int(each.body))
        assert by_key == {
            key: [at for at in range(90) if at % 5 == key and at != 7] for key in range(5)
        }


def test_an_archive_a_store_and_a_java_broker_as_one(java: Cluster, tmp_path: Path) -> None:
    topic = "TiersOnJava"
    with Client(java.namesrv) as client:
        queues = make_topic(client, topic, 2)
        fill_all(client, queues, 20)
        archived = tiered.archive(tmp_path / "archive", tiered.live_rows(java.namesrv, topic))
        fill_all(client, queues, 9, start=20)
        for folder in ("commitlog", "consumequeue"):
            shutil.copytree(java.store / folder, tmp_path / "store" / folder)
        fill_all(client, queues, 6, start=29)
    options = {"topic": topic, "nameservers": java.namesrv, "archive": archived,
               "store": tmp_path / "store", "brokerName": queues[0].broker_name}  # fmt: skip
    planned = plan(parse(tiered.texts(options)))
    assert planned.rows == {Tier.ARCHIVE: 40, Tier.STORE: 18, Tier.LIVE: 12}
    assert tiered.rows(options) == tiered.live_rows(java.namesrv, topic)
