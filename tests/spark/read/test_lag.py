"""What a group is told of a query's progress; and that nothing stops for it."""

import logging
from typing import Any

import pytest

from cometmq.client.blocking import Client
from cometmq.message.model import MessageQueue
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.frame import Request
from cometmq.spark.brokers import offsets
from cometmq.spark.read.stream import LagReport
from cometmq.testing.cluster import Cluster
from tests.spark.scripted import Answer, ScriptedCluster
from tests.spark.topics import access, fill_all, make_topic

A, B = (MessageQueue("T", "broker-a", at) for at in range(2))


def test_a_group_follows_a_query(cometmq_session_cluster: Cluster) -> None:
    reached = access(cometmq_session_cluster.namesrv)
    with Client(cometmq_session_cluster.namesrv) as client:
        queues = make_topic(client, "LagTopic", 2)
        fill_all(client, queues, 9)
    lag = LagReport("lag", reached)
    lag.report({queues[0]: 4})
    lag.report({queues[0]: 4, queues[1]: 9})
    assert offsets.committed("lag", queues, reached) == {queues[0]: 4, queues[1]: 9}


class Broker:
    """Takes commits, or does as it is told; knows the group and its retry topic."""

    def __init__(self) -> None:
        self.commits: list[tuple[int, int]] = []
        self.answer: int | None = ResponseCode.SUCCESS

    def __call__(self, request: Request[Any]) -> Answer | None:
        assert request.code == RequestCode.UPDATE_CONSUMER_OFFSET
        self.commits.append((request.header.queue_id, request.header.commit_offset))
        return None if self.answer is None else (self.answer, {}, b"")


def test_only_what_has_changed_is_told() -> None:
    broker = Broker()
    with ScriptedCluster("T", broker) as peers:
        lag = LagReport("g", access(peers.namesrv))
        lag.report({A: 1, B: 2})
        lag.report({A: 1, B: 2})
        lag.report({A: 1, B: 3})
    assert broker.commits == [(0, 1), (1, 2), (1, 3)]


@pytest.mark.parametrize("answer", [None, ResponseCode.SYSTEM_ERROR])
def test_what_could_not_be_told_is_told_next_time(
    answer: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    broker = Broker()
    broker.answer = answer
    with ScriptedCluster("T", broker) as peers, caplog.at_level(logging.WARNING):
        lag = LagReport("g", access(peers.namesrv))
        lag.report({A: 1})
        assert "lag_not_reported group=g" in caplog.text
        broker.answer = ResponseCode.SUCCESS
        broker.commits.clear()
        lag.report({A: 1})
    assert broker.commits == [(0, 1)]


def test_a_broker_may_not_let_groups_be_made(caplog: pytest.LogCaptureFixture) -> None:
    told: list[int] = []

    def broker(request: Request[Any]) -> Answer:
        told.append(request.code)
        if request.code == RequestCode.UPDATE_CONSUMER_OFFSET:
            return 0, {}, b""
        return ResponseCode.NO_PERMISSION, {}, b""

    with ScriptedCluster("T", broker) as peers, caplog.at_level(logging.WARNING):
        peers.unknown.add("%RETRY%g")
        lag = LagReport("g", access(peers.namesrv))
        lag.report({A: 1})
    assert told[-1] == RequestCode.UPDATE_CONSUMER_OFFSET
    assert "group_not_created group=g" in caplog.text


def test_a_broker_that_is_away_does_not_hide_the_others() -> None:
    broker = Broker()
    with ScriptedCluster("T", broker) as peers:
        LagReport("g", access(peers.namesrv)).report({A: 1, MessageQueue("T", "broker-0", 0): 5})
    assert broker.commits == [(0, 1)]
