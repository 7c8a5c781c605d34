"""The sink on real RocketMQ brokers, 4.9.7 and 5.5.0: all columns, batches, ids that stay."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cometmq.client.blocking import Client
from cometmq.message.model import StoredMessage
from cometmq.spark.brokers import wire
from cometmq.testing.cluster import Cluster
from tests.compat.anchor import LATEST, VERSION, JavaCluster, fetch_jars
from tests.spark.topics import make_topic, read_whole

pytestmark = [pytest.mark.compat, pytest.mark.spark]

COUNT = 600


@pytest.fixture(scope="module", params=[VERSION, LATEST])
def java(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    with JavaCluster(fetch_jars(request.param), tmp_path_factory.mktemp("java")) as found:
        yield Cluster(found.namesrv, found.broker, found.store)
    wire.close_all()


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
        frame = spark.range(0, COUNT, numPartitions=2).select(
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
            f"body-{at}".encode() for at in range(COUNT)
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
        assert len(again) == 2 * COUNT
        assert {each.unique_key for each in again} == {each.unique_key for each in first}
        assert len({each.unique_key for each in first}) == COUNT


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
