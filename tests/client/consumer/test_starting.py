"""Where a member begins: at what is stored, or at what its options say of each queue."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from cometmq.client.consumer.offsets import RemoteOffsets
from cometmq.client.consumer.starting import StartPositions
from cometmq.client.pull import Puller
from cometmq.client.session import Session
from cometmq.core.errors import BrokerRefused
from cometmq.message.model import MessageQueue
from cometmq.protocol.codes import RequestCode
from tests.client.consumer.test_options import options
from tests.client.fake_broker import FakeBroker, FakeCluster
from tests.client.scripted import Answer

OLD = MessageQueue("t", "broker-0", 0)
NEW = MessageQueue("t", "broker-0", 1)


async def joined(session: Session, **changes: Any) -> StartPositions:
    wanted = options(**changes)
    starts = StartPositions(session, wanted, RemoteOffsets(session, "g"), Puller(session))
    await starts.joining()
    return starts


def fill(broker: FakeBroker, queue_id: int, *times_ms: int) -> None:
    for store_ms in times_ms:
        broker.put("t", queue_id, b"x", store_ms=store_ms)


async def test_what_is_stored_comes_first(session: Session, broker: FakeBroker) -> None:
    fill(broker, 0, 1, 2, 3)
    broker.offsets["g", "t", 0] = 2
    for start in ("first", "last", 3):
        assert await (await joined(session, start=start)).of(OLD) == 2


@pytest.mark.parametrize(("start", "expected"), [("first", 0), ("last", 4), (20, 1), (21, 3)])
async def test_a_new_group_begins_where_it_wants(
    session: Session, broker: FakeBroker, start: Any, expected: int
) -> None:
    fill(broker, 0, 10, 20, 20, 30)
    assert await (await joined(session, start=start)).of(OLD) == expected


async def test_retried_messages_are_all_read(session: Session, broker: FakeBroker) -> None:
    retried = MessageQueue("%RETRY%g", "broker-0", 0)
    broker.put("%RETRY%g", 0, b"x")
    assert await (await joined(session, start="last")).of(retried) == 0


async def test_of_a_queue_that_comes_later_everything_since_the_join_is_read(
    session: Session, cluster: FakeCluster, broker: FakeBroker
) -> None:
    starts = await joined(session, start="last")
    cluster.create("t", 2)
    await session.refresh("t")
    now_ms = session.clock.wall_ms()
    fill(broker, 1, 10, 20, now_ms + 1, now_ms + 2)
    fill(broker, 0, 10, now_ms + 1)
    assert await starts.of(NEW) == 2
    assert await starts.of(OLD) == 2


async def test_of_a_topic_that_is_not_there_yet_everything_is_read(
    session: Session, cluster: FakeCluster, broker: FakeBroker
) -> None:
    starts = await joined(session, topics="later", start="last")
    cluster.create("later", 1)
    await session.refresh("later")
    broker.put("later", 0, b"x", store_ms=session.clock.wall_ms() + 1)
    assert await starts.of(MessageQueue("later", "broker-0", 0)) == 0


async def test_without_name_servers_nobody_knows_what_is_new(
    session: Session, cluster: FakeCluster, broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    script = cluster.namesrv.scripts[RequestCode.GET_ROUTEINFO_BY_TOPIC]
    cluster.namesrv.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, Answer(1, remark="not now"))
    with caplog.at_level(logging.WARNING):
        starts = await joined(session, start="last")
    assert "queues_unavailable_at_join topic=t" in caplog.text
    cluster.namesrv.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, script)
    fill(broker, 0, session.clock.wall_ms() + 1)
    assert await starts.of(OLD) == 1


async def test_a_broker_that_does_not_say_is_an_error(session: Session, broker: FakeBroker) -> None:
    starts = await joined(session)
    broker.peer.on(RequestCode.QUERY_CONSUMER_OFFSET, Answer(1, remark="no"))
    with pytest.raises(BrokerRefused):
        await starts.of(OLD)


async def test_brokers_are_told_not_to_begin_at_zero(session: Session, broker: FakeBroker) -> None:
    await (await joined(session)).of(OLD)
    (asked,) = broker.peer.received(RequestCode.QUERY_CONSUMER_OFFSET)
    assert asked.header.set_zero_if_not_found == "false"
