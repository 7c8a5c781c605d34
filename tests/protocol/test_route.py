"""Routes as name servers write them."""

import pytest

from cometmq.protocol.bodies import BrokerData, QueueData, TopicRoute, readable, writable
from cometmq.protocol.fastjson import encode_json, parse_json


@pytest.mark.parametrize(
    ("perm", "can_read", "can_write"),
    [(0, False, False), (2, False, True), (4, True, False), (6, True, True), (7, True, True)],
)
def test_permission_bits(perm: int, can_read: bool, can_write: bool) -> None:
    assert (readable(perm), writable(perm)) == (can_read, can_write)


def test_a_route_survives_its_json() -> None:
    route = TopicRoute(
        [BrokerData("a", {"0": "h:1", "1": "h:2"}, "c")],
        [QueueData("a", 4, 8, 6, 1)],
        {"h:1": ["f:1"]},
        "a:4",
    )
    assert parse_json(encode_json(route), TopicRoute) == route


def test_a_route_is_written_as_upstream_does() -> None:
    route = TopicRoute([BrokerData("a", {"0": "h:1"}, "c")], [QueueData("a", 4, 8, 6)])
    assert encode_json(route) == (
        b'{"brokerDatas":[{"brokerAddrs":{"0":"h:1"},"brokerName":"a","cluster":"c"}],'
        b'"filterServerTable":{},"queueDatas":[{"brokerName":"a","perm":6,"readQueueNums":4,'
        b'"topicSysFlag":0,"writeQueueNums":8}]}'
    )


def test_an_old_name_servers_route_is_read() -> None:
    body = (
        b'{"brokerDatas":[{"brokerAddrs":{0:"h:1",1:"h:2"},"brokerName":"a","cluster":"c"}],'
        b'"filterServerTable":{},"queueDatas":[{"brokerName":"a","perm":6,"readQueueNums":4,'
        b'"topicSynFlag":0,"writeQueueNums":4}]}'
    )
    (broker,) = parse_json(body, TopicRoute).broker_datas
    assert broker.broker_addrs == {"0": "h:1", "1": "h:2"}
    assert broker.master() == "h:1"
    assert BrokerData("a", {"1": "h:2"}).master() is None
