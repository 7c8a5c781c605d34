"""Routes and offsets, asked of a real cluster and of peers that fail."""

from collections.abc import Iterator
from typing import Any

import pytest

from cometmq.client.blocking import Client
from cometmq.core.errors import BrokerRefused, NotConnected, RouteNotFound
from cometmq.message.model import MessageQueue
from cometmq.protocol.frame import Request
from cometmq.spark.brokers import cluster, wire
from cometmq.testing.cluster import Cluster
from tests.spark.scripted import Answer, ScriptedCluster, holder
from tests.spark.topics import access, fill, make_topic, options


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    wire.close_all()


def test_queues_and_their_ends(cometmq_session_cluster: Cluster) -> None:
    with Client(cometmq_session_cluster.namesrv) as client:
        queues = make_topic(client, "ClusterEnds", 3)
        fill(client, queues[1], "abc")
    read = options(cometmq_session_cluster.namesrv, "ClusterEnds")
    assert cluster.queues(read.topics, read.access) == queues
    assert list(cluster.latest(queues, read.access).values()) == [0, 3, 0]
    assert list(cluster.earliest(queues, read.access).values()) == [0, 0, 0]
    assert cluster.near_time(queues, 0, read.access)[queues[1]] == 0
    assert cluster.addresses(queues[0], read.access) == [cometmq_session_cluster.broker]


def test_topics_may_be_several(cometmq_session_cluster: Cluster) -> None:
    with Client(cometmq_session_cluster.namesrv) as client:
        queues = [*make_topic(client, "ClusterOne", 1), *make_topic(client, "ClusterTwo", 1)]
    read = options(cometmq_session_cluster.namesrv, "ClusterTwo, ClusterOne")
    assert cluster.queues(read.topics, read.access) == queues


def test_an_unknown_topic_is_named(cometmq_session_cluster: Cluster) -> None:
    with pytest.raises(RouteNotFound, match=r"'Nowhere'.*create it first"):
        cluster.queues(["Nowhere"], access(cometmq_session_cluster.namesrv))


def test_a_dead_name_server_is_passed_over(cometmq_session_cluster: Cluster) -> None:
    with Client(cometmq_session_cluster.namesrv) as client:
        queues = make_topic(client, "ClusterTwoNames", 1)
    both = f"127.0.0.1:1;{cometmq_session_cluster.namesrv}"
    assert cluster.queues(["ClusterTwoNames"], access(both)) == queues
    with pytest.raises(NotConnected, match="no name server answers"):
        cluster.queues(["ClusterTwoNames"], access("127.0.0.1:1"))


def offset_of(request: Request[Any]) -> Answer:
    return 0, {"offset": "7"}, b""


def test_a_dead_master_is_passed_over() -> None:
    queue = MessageQueue("T", "broker-a", 0)
    with ScriptedCluster("T", lambda _: None, offset_of) as peers:
        assert cluster.latest([queue], access(peers.namesrv)) == {queue: 7}
    with ScriptedCluster("T", lambda _: None) as peers, pytest.raises(NotConnected):
        cluster.latest([queue], access(peers.namesrv))


def test_a_refusal_is_raised() -> None:
    queue = MessageQueue("T", "broker-a", 0)
    with (
        ScriptedCluster("T", lambda _: (1, {}, b"")) as peers,
        pytest.raises(BrokerRefused, match="code 1"),
    ):
        cluster.earliest([queue], access(peers.namesrv))


def test_a_route_is_kept_for_a_while() -> None:
    with ScriptedCluster("T", holder(0, 1)) as peers:
        read = access(peers.namesrv)
        known = cluster.route("T", read)
        assert cluster.route("T", read) is known
        assert cluster.route("T", read, fresh=True) is not known


def test_an_unknown_broker_is_named() -> None:
    with ScriptedCluster("T", holder(0, 1)) as peers:
        read = access(peers.namesrv)
        with pytest.raises(NotConnected, match="broker-z: no such broker"):
            cluster.addresses(MessageQueue("T", "broker-z", 0), read)
