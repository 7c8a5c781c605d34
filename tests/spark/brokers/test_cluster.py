"""Routes, asked of a real cluster and of peers that fail."""

import pytest

from cometmq.client.blocking import Client
from cometmq.core.errors import NotConnected, RouteNotFound
from cometmq.message.model import MessageQueue
from cometmq.spark.brokers import cluster, wire
from cometmq.testing.cluster import Cluster
from tests.spark.scripted import ScriptedCluster, holder
from tests.spark.topics import access, make_topic


def test_topics_may_be_several(cometmq_session_cluster: Cluster) -> None:
    reached = access(cometmq_session_cluster.namesrv)
    with Client(cometmq_session_cluster.namesrv) as client:
        queues = [*make_topic(client, "ClusterOne", 2), *make_topic(client, "ClusterTwo", 1)]
    assert cluster.queues(["ClusterTwo", "ClusterOne"], reached) == queues
    assert cluster.addresses(queues[0], reached) == [cometmq_session_cluster.broker]
    assert cluster.brokers(queues[0], reached) == [(0, cometmq_session_cluster.broker)]


def test_names(cometmq_session_cluster: Cluster) -> None:
    reached = access(cometmq_session_cluster.namesrv)
    with Client(cometmq_session_cluster.namesrv) as client:
        make_topic(client, "ClusterNamed", 1)
    assert {"ClusterNamed", "SELF_TEST_TOPIC"} <= cluster.topic_names(reached)
    assert "broker-a" in cluster.cluster_names(reached)
    assert "ClusterNamed" not in cluster.cluster_names(reached)


def test_an_unknown_topic_is_named(cometmq_session_cluster: Cluster) -> None:
    reached = access(cometmq_session_cluster.namesrv)
    with pytest.raises(RouteNotFound, match=r"'Nowhere'.*create it first"):
        cluster.queues(["Nowhere"], reached)
    with pytest.raises(RouteNotFound, match="'Nowhere'"):
        cluster.addresses(MessageQueue("Nowhere", "broker-a", 0), reached)
    assert cluster.routes(["Nowhere"], reached) == {}


def test_a_dead_name_server_is_passed_over(cometmq_session_cluster: Cluster) -> None:
    with Client(cometmq_session_cluster.namesrv) as client:
        queues = make_topic(client, "ClusterTwoNames", 1)
    both = f"127.0.0.1:1;{cometmq_session_cluster.namesrv}"
    assert cluster.queues(["ClusterTwoNames"], access(both)) == queues
    nobody = access("127.0.0.1:1")
    with pytest.raises(NotConnected, match="no name server answers"):
        cluster.queues(["ClusterTwoNames"], nobody)
    cluster.prefetch(["ClusterTwoNames"], nobody)


def test_routes_are_kept_for_a_while_and_asked_for_in_one_exchange() -> None:
    with ScriptedCluster("T", holder(0, 1)) as peers:
        read = access(peers.namesrv)
        known = cluster.routes(["T", "U", "T"], read)
        assert list(known) == ["T", "U"]
        cluster.prefetch(["T", "V"], read)
        assert peers.routes_asked == ["T", "U", "V"]
        assert cluster.routes(["T"], read)["T"] is known["T"]
        assert cluster.routes(["T"], read, age_max_ms=0)["T"] is not known["T"]


def test_an_unknown_broker_is_named() -> None:
    with ScriptedCluster("T", holder(0, 1)) as peers:
        read = access(peers.namesrv)
        with pytest.raises(NotConnected, match="broker-z: no such broker"):
            cluster.addresses(MessageQueue("T", "broker-z", 0), read)


# --------------------------------------------------------------------- no name server answers


def test_brokers_are_the_last_known_ones_while_no_name_server_answers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cluster, "ROUTE_TTL_MS", 0)
    queue = MessageQueue("T", "broker-a", 0)
    with ScriptedCluster("T", holder(0, 1)) as peers:
        read = access(peers.namesrv)
        found = cluster.brokers(queue, read)
    wire.close_all()
    for fresh in (False, True):
        assert cluster.brokers(queue, read, fresh=fresh) == found
    assert caplog.text.count("name_servers_away") == 1
    with pytest.raises(cluster.NameServersAway):
        cluster.brokers(MessageQueue("U", "broker-a", 0), read)
    # Whoever wants to know what is there now hears that nobody answers.
    with pytest.raises(cluster.NameServersAway):
        cluster.routes(["T"], read, age_max_ms=0)


def test_a_process_that_never_asked_knows_what_its_plan_knew() -> None:
    queue = MessageQueue("Told", "broker-a", 0)
    nobody = access("127.0.0.1:1")
    assert cluster.last_known(queue, nobody) is None
    told = cluster.Replicas("Told", "broker-a", ((0, "127.0.0.1:9"), (1, "127.0.0.1:8")))
    cluster.learn([told], nobody)
    assert cluster.brokers(queue, nobody) == [(0, "127.0.0.1:9"), (1, "127.0.0.1:8")]
    with pytest.raises(cluster.NameServersAway):
        cluster.brokers(MessageQueue("Told", "broker-b", 0), nobody)


def test_name_servers_that_are_back_are_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = MessageQueue("T", "broker-a", 0)
    with ScriptedCluster("T", holder(0, 1)) as peers:
        read = access(peers.namesrv)
        cluster.learn([cluster.Replicas("T", "broker-a", ((0, "127.0.0.1:9"),))], read)
        away = cluster.NameServersAway("x", "gone")
        monkeypatch.setitem(cluster._away, read.nameservers, (1 << 62, away))
        assert cluster.brokers(queue, read) == [(0, "127.0.0.1:9")]
        assert peers.routes_asked == []
        monkeypatch.setitem(cluster._away, read.nameservers, (0, away))
        assert cluster.brokers(queue, read) == [(0, peers.addresses["0"])]
        assert read.nameservers not in cluster._away
