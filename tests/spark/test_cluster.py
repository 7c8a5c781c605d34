"""Routes and offsets, asked of a real cluster and of peers that fail."""

from collections.abc import Iterator
from typing import Any

import pytest

from cometmq.client.blocking import Client
from cometmq.core.errors import BrokerRefused, NotConnected, RouteNotFound
from cometmq.message.model import MessageQueue
from cometmq.protocol.frame import Request
from cometmq.spark import cluster, wire
from cometmq.testing.cluster import Cluster
from tests.spark.scripted import Answer, ScriptedCluster, holder
from tests.spark.topics import fill, make_topic, options


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    wire.close_all()


def test_queues_and_their_ends(cometmq_session_cluster: Cluster) -> None:
    with Client(cometmq_session_cluster.namesrv) as client:
        queues = make_topic(client, "ClusterEnds", 3)
        fill(client, queues[1], "abc")
    read = options(cometmq_session_cluster.namesrv, "ClusterEnds")
    assert cluster.queues(read) == queues
    assert list(cluster.latest(read, queues).values()) == [0, 3, 0]
    assert list(cluster.earliest(read, queues).values()) == [0, 0, 0]
    assert cluster.near_time(read, queues, 0)[queues[1]] == 0
    assert cluster.addresses(queues[0], read) == [cometmq_session_cluster.broker]


def test_topics_may_be_several(cometmq_session_cluster: Cluster) -> None:
    with Client(cometmq_session_cluster.namesrv) as client:
        queues = [*make_topic(client, "ClusterOne", 1), *make_topic(client, "ClusterTwo", 1)]
    read = options(cometmq_session_cluster.namesrv, "ClusterTwo, ClusterOne")
    assert cluster.queues(read) == queues


def test_an_unknown_topic_is_named(cometmq_session_cluster: Cluster) -> None:
    with pytest.raises(RouteNotFound, match=r"'Nowhere'.*create it first"):
        cluster.queues(options(cometmq_session_cluster.namesrv, "Nowhere"))


def test_a_dead_name_server_is_passed_over(cometmq_session_cluster: Cluster) -> None:
    with Client(cometmq_session_cluster.namesrv) as client:
        queues = make_topic(client, "ClusterTwoNames", 1)
    both = f"127.0.0.1:1;{cometmq_session_cluster.namesrv}"
    assert cluster.queues(options(both, "ClusterTwoNames")) == queues
    with pytest.raises(NotConnected, match="no name server answers"):
        cluster.queues(options("127.0.0.1:1", "ClusterTwoNames"))


def offset_of(request: Request[Any]) -> Answer:
    return 0, {"offset": "7"}, b""


def test_a_dead_master_is_passed_over() -> None:
    queue = MessageQueue("T", "broker-a", 0)
    with ScriptedCluster("T", lambda _: None, offset_of) as peers:
        assert cluster.latest(options(peers.namesrv, "T"), [queue]) == {queue: 7}
    with ScriptedCluster("T", lambda _: None) as peers, pytest.raises(NotConnected):
        cluster.latest(options(peers.namesrv, "T"), [queue])


def test_a_refusal_is_raised() -> None:
    queue = MessageQueue("T", "broker-a", 0)
    with (
        ScriptedCluster("T", lambda _: (1, {}, b"")) as peers,
        pytest.raises(BrokerRefused, match="code 1"),
    ):
        cluster.earliest(options(peers.namesrv, "T"), [queue])


def test_a_route_is_kept_for_a_while() -> None:
    with ScriptedCluster("T", holder(0, 1)) as peers:
        read = options(peers.namesrv, "T")
        known = cluster.route("T", read)
        assert cluster.route("T", read) is known
        assert cluster.route("T", read, fresh=True) is not known


def test_an_unknown_broker_is_named() -> None:
    with ScriptedCluster("T", holder(0, 1)) as peers:
        read = options(peers.namesrv, "T")
        with pytest.raises(NotConnected, match="broker-z: no such broker"):
            cluster.addresses(MessageQueue("T", "broker-z", 0), read)
