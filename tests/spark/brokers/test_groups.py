"""A group's offsets on a real broker, and on peers that answer as older ones do."""

from typing import Any

import pytest

from cometmq.client.blocking import Client
from cometmq.core.errors import BrokerRefused, NotConnected
from cometmq.message.model import MessageQueue
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.frame import Request
from cometmq.spark.brokers import cluster, offsets, wire
from cometmq.testing.cluster import Cluster
from tests.spark.scripted import Answer, ScriptedCluster
from tests.spark.topics import access, fill_all, make_topic

QUEUES = [MessageQueue("T", "broker-a", at) for at in range(3)]


def test_what_is_committed_is_found_again(cometmq_session_cluster: Cluster) -> None:
    reached = access(cometmq_session_cluster.namesrv)
    with Client(cometmq_session_cluster.namesrv) as client:
        queues = make_topic(client, "GroupOffsets", 4)
        fill_all(client, queues, 5)
    assert offsets.committed("offsets", queues, reached) == {}
    offsets.commit("offsets", {queues[0]: 3, queues[2]: 0}, reached)
    assert offsets.committed("offsets", queues, reached) == {queues[0]: 3, queues[2]: 0}


def test_a_group_is_made_where_it_is_missing(cometmq_session_cluster: Cluster) -> None:
    reached = access(cometmq_session_cluster.namesrv)
    with Client(cometmq_session_cluster.namesrv) as client:
        queues = make_topic(client, "GroupMade", 2)
        offsets.ensure_group("made", queues, reached)
        offsets.ensure_group("made", queues, reached)
    code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
    answer = wire.call(cometmq_session_cluster.broker, code, None, reached)
    assert b'"made"' in answer.body
    (retry,) = cluster.routes(["%RETRY%made"], reached)["%RETRY%made"].queue_datas
    assert (retry.read_queue_nums, retry.perm) == (1, 6)


def older_broker(request: Request[Any]) -> Answer:
    """As 4.x answers where nothing is committed in a young queue: 0, though its table says else."""
    if request.code == RequestCode.GET_ALL_CONSUMER_OFFSET:
        return 0, {}, b'{"offsetTable":{"T@g":{0:0,2:5}}}'
    if request.header.queue_id == 2:
        return 0, {"offset": "5"}, b""
    return 0, {"offset": "0"}, b""


def test_a_zero_counts_where_it_was_committed() -> None:
    with ScriptedCluster("T", older_broker) as peers:
        found = offsets.committed("g", QUEUES, access(peers.namesrv))
    assert found == {QUEUES[0]: 0, QUEUES[2]: 5}


def test_only_masters_are_told() -> None:
    def refuse(_: Request[Any]) -> Answer:
        return ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, {}, b""

    with ScriptedCluster("T", refuse) as peers:
        with pytest.raises(BrokerRefused, match="26"):
            offsets.commit("g", {QUEUES[0]: 1}, access(peers.namesrv))
        del peers.addresses["0"]
        peers.addresses["1"] = peers.brokers[0].address
        with pytest.raises(NotConnected, match="master is unavailable"):
            offsets.commit("g", {MessageQueue("U", "broker-a", 0): 1}, access(peers.namesrv))
