"""Named points become offsets."""

from collections.abc import Iterator

import pytest

from cometmq.client.blocking import Client
from cometmq.message.model import MessageQueue
from cometmq.spark.brokers import wire
from cometmq.spark.options import BadOption
from cometmq.spark.read.points import Kind, Point
from cometmq.spark.read.positions import resolve
from cometmq.spark.read.pull import QueuePuller
from cometmq.testing.cluster import Cluster
from tests.spark.topics import fill, make_topic, options


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    wire.close_all()


@pytest.fixture(scope="module")
def queues(cometmq_session_cluster: Cluster) -> list[MessageQueue]:
    """Three queues with 20, 5 and no messages."""
    with Client(cometmq_session_cluster.namesrv) as client:
        found = make_topic(client, "Positions", 3)
        fill(client, found[0], map(str, range(20)))
        fill(client, found[1], map(str, range(5)))
    return found


def vector(point: Point, cluster: Cluster, queues: list[MessageQueue]) -> list[int]:
    read = options(cluster.namesrv, "Positions")
    return list(resolve(point, "startingOffsets", queues, read).values())


def test_both_ends(cometmq_session_cluster: Cluster, queues: list[MessageQueue]) -> None:
    assert vector(Point(Kind.EARLIEST), cometmq_session_cluster, queues) == [0, 0, 0]
    assert vector(Point(Kind.LATEST), cometmq_session_cluster, queues) == [20, 5, 0]


def test_offsets_by_queue(cometmq_session_cluster: Cluster, queues: list[MessageQueue]) -> None:
    named = {queues[0]: 7, queues[1]: -1}
    point = Point(Kind.OFFSETS, named)
    read = options(cometmq_session_cluster.namesrv, "Positions")
    assert resolve(point, "startingOffsets", queues, read) == dict(
        zip(queues, [7, 5, 0], strict=True)
    )
    point = Point(Kind.OFFSETS, {queues[1]: -2}, otherwise=Kind.LATEST)
    assert resolve(point, "endingOffsets", queues, read) == dict(
        zip(queues, [20, 0, 0], strict=True)
    )


def test_a_queue_that_is_not_there(
    cometmq_session_cluster: Cluster, queues: list[MessageQueue]
) -> None:
    point = Point(Kind.OFFSETS, {MessageQueue("Positions", "broker-a", 9): 1})
    with pytest.raises(BadOption, match=r"startingOffsets.*Positions\|9"):
        vector(point, cometmq_session_cluster, queues)


def test_times_are_exact_whatever_the_broker_guesses(
    cometmq_session_cluster: Cluster, queues: list[MessageQueue]
) -> None:
    read = options(cometmq_session_cluster.namesrv, "Positions")
    puller = QueuePuller(queues[0], read)
    times = [puller.store_ms(offset) for offset in range(20)]
    for moment in {0, times[0], times[7], times[7] + 1, times[19], times[19] + 1, 2**42}:
        found = vector(Point(Kind.TIME, moment_ms=moment), cometmq_session_cluster, queues)
        assert found[0] == sum(time < moment for time in times)
        assert found[2] == 0
