"""Rows for people."""

from __future__ import annotations

import pytest
from msgspec import structs

from cometmq.admin import views
from cometmq.admin.api import Broker
from cometmq.message.ids import pack_host
from cometmq.message.model import MessageQueue
from cometmq.protocol.bodies import (
    BrokerData,
    ClientConnection,
    ConsumeOffset,
    ConsumerConnections,
    ProcessQueueInfo,
    QueueData,
    TopicOffset,
    TopicRoute,
)
from tests.client.consumer.test_inflight import message

ONE, TWO = MessageQueue("t", "a", 0), MessageQueue("t", "b", 1)


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, ""),
        (-1, ""),
        (1_700_000_000_123, "2023-11-14 22:13:20.123+00:00"),
        (4_837_492_869_153_907_061, "4837492869153907061"),
    ],
)
def test_moments(ms: int, text: str) -> None:
    assert views.moment(ms) == text


@pytest.mark.parametrize(("put", "expected"), [("12.345 2 3", 12.35), ("", 0.0), ("nonsense", 0.0)])
def test_a_broker(put: str, expected: float) -> None:
    runtime = {"brokerVersionDesc": "V4_9_7", "putTps": put} if put else {}
    row = views.broker_row(Broker("c", "a", 0, "h:1"), runtime)
    assert (row.cluster, row.broker, row.id, row.address) == ("c", "a", 0, "h:1")
    assert row.put_per_second == expected


def test_queues() -> None:
    rows = views.queue_rows({TWO: TopicOffset(0, 0, 0), ONE: TopicOffset(3, 10, 1000)})
    assert [(row.broker, row.queue, row.messages) for row in rows] == [("a", 0, 7), ("b", 1, 0)]
    assert rows[0].last_stored.startswith("1970-01-01")


def test_progress() -> None:
    progress = {ONE: ConsumeOffset(10, 4, 0), TWO: ConsumeOffset(3, 5, 0)}
    rows = views.progress_rows(progress)
    assert [(row.topic, row.lag) for row in rows] == [("t", 6), ("t", -2)]
    assert views.total_lag(progress.values()) == 6


@pytest.mark.parametrize(("perm", "text"), [(6, "RW"), (4, "R-"), (2, "-W"), (1, "--")])
def test_permissions(perm: int, text: str) -> None:
    assert views.permissions(perm) == text


def test_routes() -> None:
    route = TopicRoute(
        [BrokerData("a", {"1": "h:2", "0": "h:1"}, "c")],
        [QueueData("gone", 1, 1, 4), QueueData("a", 4, 2, 6)],
    )
    first, second = views.route_rows(route)
    assert (first.broker, first.cluster, first.addresses) == ("a", "c", "0=h:1, 1=h:2")
    assert (first.read_queues, first.write_queues, first.permissions) == (4, 2, "RW")
    assert (second.broker, second.addresses) == ("gone", "")


def test_messages() -> None:
    host = pack_host("10.0.0.1", 10911)
    stored = structs.replace(
        message(7),
        body=b"\xff" + b"x" * 300,
        properties={"TAGS": "up", "KEYS": "a b", "UNIQ_KEY": "ID"},
        born_host=host,
        store_host=host,
    )
    row = views.message_row(stored)
    assert (row.message_id, row.tag, row.keys, row.offset) == ("ID", "up", "a b", 7)
    assert row.offset_id == "0A00000100002A9F0000000000000007"
    assert (row.born_at, row.stored_at) == ("10.0.0.1:10911", "10.0.0.1:10911")
    assert row.body.endswith("x... (301 bytes)")
    assert views.message_row(structs.replace(stored, body=b"short")).body == "short"


def test_consumers_and_what_they_hold() -> None:
    connected = [ClientConnection(name, "h:1", "JAVA", 407) for name in ("b", "a")]
    found = ConsumerConnections(connected, {}, "CONSUME_PASSIVELY", "CLUSTERING", "x")
    rows = views.member_rows(found)
    assert [(row.client_id, row.version) for row in rows] == [("a", "V4_9_7"), ("b", "V4_9_7")]
    queues = {MessageQueue("t", "a", number): number for number in (1, 0)}
    assert [row.offset for row in views.position_rows(queues)] == [0, 1]
    held = ProcessQueueInfo(commit_offset=3, cached_msg_count=2, last_pull_timestamp=1_000)
    (row,) = views.held_rows({MessageQueue("t", "a", 0): held})
    assert (row.offset, row.held, row.last_consumed) == (3, 2, "")
    assert row.last_pulled.startswith("1970-01-01 00:00:01")
