"""The source against real RocketMQ brokers, 4.9.7 and 5.5.0."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cometmq.client.blocking import Client
from cometmq.message.model import MessageQueue
from cometmq.spark.brokers import cluster, reach, wire
from cometmq.spark.read.points import AtTimes, Named
from cometmq.spark.read.positions import resolve
from cometmq.testing.cluster import Cluster
from tests.compat.anchor import LATEST, VERSION, JavaCluster, fetch_jars
from tests.spark.read.test_stream import bodies, expected, stream, to_parquet
from tests.spark.topics import access, fill, fill_all, make_topic

pytestmark = [pytest.mark.compat, pytest.mark.spark]


@pytest.fixture(scope="module", params=[VERSION, LATEST])
def java(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    with JavaCluster(fetch_jars(request.param), tmp_path_factory.mktemp("java")) as found:
        yield Cluster(found.namesrv, found.broker, found.store)
    wire.close_all()


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
    assert set(reach.latest(queues, reached).values()) == {50}
    assert set(reach.earliest(queues, reached).values()) == {0}


def test_times_are_exact_though_the_broker_only_comes_near(
    java: Cluster, queues: list[MessageQueue]
) -> None:
    reached = access(java.namesrv)
    places = ({queues[0]: offset} for offset in range(50))
    times = [reach.looks(place, reached)[queues[0]].store_ms for place in places]
    for moment in sorted({0, *times, times[20] + 1, times[-1] + 1}):
        found = resolve(Named("startingTimestamp", AtTimes(moment)), queues[:1], reached)
        assert found == {queues[0]: sum(time < moment for time in times)}


def test_a_batch_and_a_filter(
    spark: SparkSession, java: Cluster, queues: list[MessageQueue]
) -> None:
    read = spark.read.format("rocketmq").option("nameservers", java.namesrv)
    frame = read.option("topic", "SparkOnJava").load()
    assert frame.select("queue_id", "queue_offset").distinct().count() == frame.count() == 150
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
