"""Positions become offsets."""

import pytest

from cometmq.client.blocking import Client
from cometmq.message.model import MessageQueue
from cometmq.spark.brokers import offsets
from cometmq.spark.options import BadOption
from cometmq.spark.read.positions import (
    AtGroup,
    AtOffsets,
    AtTimes,
    Edge,
    NamedPosition,
    Position,
    check_order,
    resolve,
)
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


def resolved(position: Position, cluster: Cluster, queues: list[MessageQueue]) -> list[int]:
    found = resolve(NamedPosition("startingOffsets", position), queues, access(cluster.namesrv))
    return [found[queue] for queue in queues]


def store_times(cluster: Cluster, queue: MessageQueue, count: int) -> list[int]:
    reached = access(cluster.namesrv)
    return [offsets.samples({queue: at}, reached)[queue].store_ms for at in range(count)]


def test_both_ends(cometmq_session_cluster: Cluster, queues: list[MessageQueue]) -> None:
    assert resolved(Edge.EARLIEST, cometmq_session_cluster, queues) == [0, 0, 0]
    assert resolved(Edge.LATEST, cometmq_session_cluster, queues) == [20, 5, 0]


def test_offsets_by_queue(cometmq_session_cluster: Cluster, queues: list[MessageQueue]) -> None:
    position = AtOffsets({queues[0]: 7, queues[1]: -1}, Edge.EARLIEST)
    assert resolved(position, cometmq_session_cluster, queues) == [7, 5, 0]
    position = AtOffsets({queues[1]: -2}, Edge.LATEST)
    assert resolved(position, cometmq_session_cluster, queues) == [20, 0, 0]


def test_a_queue_that_is_not_there(
    cometmq_session_cluster: Cluster, queues: list[MessageQueue]
) -> None:
    absent = MessageQueue("Positions", "broker-a", 9)
    for position in (
        AtOffsets({absent: 1}, Edge.EARLIEST),
        AtTimes(None, {absent: 1}, Edge.EARLIEST),
    ):
        with pytest.raises(BadOption, match=r"startingOffsets.*Positions\|9"):
            resolved(position, cometmq_session_cluster, queues)


def test_times_are_exact_whatever_the_broker_guesses(
    cometmq_session_cluster: Cluster, queues: list[MessageQueue]
) -> None:
    times = store_times(cometmq_session_cluster, queues[0], 20)
    for moment in {0, times[0], times[7], times[7] + 1, times[19], times[19] + 1, 2**42}:
        found = resolved(AtTimes(moment), cometmq_session_cluster, queues)
        assert found[0] == sum(time < moment for time in times)
        assert found[2] == 0


def test_each_queue_may_have_its_own_time(
    cometmq_session_cluster: Cluster, queues: list[MessageQueue]
) -> None:
    times = store_times(cometmq_session_cluster, queues[0], 20)
    position = AtTimes(None, {queues[0]: times[9]}, Edge.LATEST)
    expected = sum(time < times[9] for time in times)
    assert resolved(position, cometmq_session_cluster, queues) == [expected, 5, 0]


def test_a_time_after_the_last_message_may_be_refused(
    cometmq_session_cluster: Cluster, queues: list[MessageQueue]
) -> None:
    last = store_times(cometmq_session_cluster, queues[1], 5)[-1]
    strict = AtTimes(None, {queues[1]: last}, Edge.LATEST, is_strict=True)
    assert resolved(strict, cometmq_session_cluster, queues)[1] <= 4
    strict = AtTimes(None, {queues[1]: last + 1}, Edge.LATEST, is_strict=True)
    with pytest.raises(BadOption, match=r"broker-a\|Positions\|1 .* has no message stored at"):
        resolved(strict, cometmq_session_cluster, queues)


def test_a_group(cometmq_session_cluster: Cluster, queues: list[MessageQueue]) -> None:
    offsets.commit("positions", {queues[0]: 4}, access(cometmq_session_cluster.namesrv))
    earliest, latest = (AtGroup("positions", edge) for edge in Edge)
    assert resolved(earliest, cometmq_session_cluster, queues) == [4, 0, 0]
    assert resolved(latest, cometmq_session_cluster, queues) == [4, 5, 0]


def test_a_start_after_the_end_is_named() -> None:
    queue = MessageQueue("T", "broker-a", 3)
    check_order({queue: 5}, {queue: 5}, "startingOffsets")
    with pytest.raises(BadOption, match=r"broker-a\|T\|3 .* starts at 6, after its end 5"):
        check_order({queue: 6}, {queue: 5}, "startingOffsets")
