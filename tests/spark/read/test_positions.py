"""Named points become offsets."""

import pytest

from cometmq.client.blocking import Client
from cometmq.message.model import MessageQueue
from cometmq.spark.brokers import offsets
from cometmq.spark.options import BadOption
from cometmq.spark.read.points import AtGroup, AtOffsets, AtTimes, Edge, Named, Point
from cometmq.spark.read.positions import check_order, resolve
from cometmq.testing.cluster import Cluster
from tests.spark.topics import access, fill, make_topic


@pytest.fixture(scope="module")
def queues(cometmq_session_cluster: Cluster) -> list[MessageQueue]:
    """Three queues with 20, 5 and no messages."""
    with Client(cometmq_session_cluster.namesrv) as client:
        found = make_topic(client, "Positions", 3)
        fill(client, found[0], map(str, range(20)))
        fill(client, found[1], map(str, range(5)))
    return found


def vector(point: Point, cluster: Cluster, queues: list[MessageQueue]) -> list[int]:
    found = resolve(Named("startingOffsets", point), queues, access(cluster.namesrv))
    return [found[queue] for queue in queues]


def store_times(cluster: Cluster, queue: MessageQueue, count: int) -> list[int]:
    reached = access(cluster.namesrv)
    return [offsets.samples({queue: at}, reached)[queue].store_ms for at in range(count)]


def test_both_ends(cometmq_session_cluster: Cluster, queues: list[MessageQueue]) -> None:
    assert vector(Edge.EARLIEST, cometmq_session_cluster, queues) == [0, 0, 0]
    assert vector(Edge.LATEST, cometmq_session_cluster, queues) == [20, 5, 0]


def test_offsets_by_queue(cometmq_session_cluster: Cluster, queues: list[MessageQueue]) -> None:
    point = AtOffsets({queues[0]: 7, queues[1]: -1}, Edge.EARLIEST)
    assert vector(point, cometmq_session_cluster, queues) == [7, 5, 0]
    point = AtOffsets({queues[1]: -2}, Edge.LATEST)
    assert vector(point, cometmq_session_cluster, queues) == [20, 0, 0]


def test_a_queue_that_is_not_there(
    cometmq_session_cluster: Cluster, queues: list[MessageQueue]
) -> None:
    absent = MessageQueue("Positions", "broker-a", 9)
    for point in (
        AtOffsets({absent: 1}, Edge.EARLIEST),
        AtTimes(None, {absent: 1}, Edge.EARLIEST),
    ):
        with pytest.raises(BadOption, match=r"startingOffsets.*Positions\|9"):
            vector(point, cometmq_session_cluster, queues)


def test_times_are_exact_whatever_the_broker_guesses(
    cometmq_session_cluster: Cluster, queues: list[MessageQueue]
) -> None:
    times = store_times(cometmq_session_cluster, queues[0], 20)
    for moment in {0, times[0], times[7], times[7] + 1, times[19], times[19] + 1, 2**42}:
        found = vector(AtTimes(moment), cometmq_session_cluster, queues)
        assert found[0] == sum(time < moment for time in times)
        assert found[2] == 0


def test_each_queue_may_have_its_own_time(
    cometmq_session_cluster: Cluster, queues: list[MessageQueue]
) -> None:
    times = store_times(cometmq_session_cluster, queues[0], 20)
    point = AtTimes(None, {queues[0]: times[9]}, Edge.LATEST)
    expected = sum(time < times[9] for time in times)
    assert vector(point, cometmq_session_cluster, queues) == [expected, 5, 0]


def test_a_time_after_the_last_message_may_be_refused(
    cometmq_session_cluster: Cluster, queues: list[MessageQueue]
) -> None:
    last = store_times(cometmq_session_cluster, queues[1], 5)[-1]
    strict = AtTimes(None, {queues[1]: last}, Edge.LATEST, is_strict=True)
    assert vector(strict, cometmq_session_cluster, queues)[1] <= 4
    strict = AtTimes(None, {queues[1]: last + 1}, Edge.LATEST, is_strict=True)
    with pytest.raises(BadOption, match=r"broker-a\|Positions\|1 .* has no message stored at"):
        vector(strict, cometmq_session_cluster, queues)


def test_a_group(cometmq_session_cluster: Cluster, queues: list[MessageQueue]) -> None:
    offsets.commit("positions", {queues[0]: 4}, access(cometmq_session_cluster.namesrv))
    earliest, latest = (AtGroup("positions", edge) for edge in Edge)
    assert vector(earliest, cometmq_session_cluster, queues) == [4, 0, 0]
    assert vector(latest, cometmq_session_cluster, queues) == [4, 5, 0]


def test_a_start_after_the_end_is_named() -> None:
    queue = MessageQueue("T", "broker-a", 3)
    check_order({queue: 5}, {queue: 5}, "startingOffsets")
    with pytest.raises(BadOption, match=r"broker-a\|T\|3 .* starts at 6, after its end 5"):
        check_order({queue: 6}, {queue: 5}, "startingOffsets")
