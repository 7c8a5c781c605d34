"""Operations on running consumers, on a real broker with our own consumers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from cometmq.admin.api import Admin, held, read_running_info
from cometmq.client.client import Client
from cometmq.core.errors import BrokerRefused
from cometmq.protocol.frame import Response
from cometmq.testing.cluster import Cluster
from tests.client.remembering import Consumer
from tests.client.shared_broker import fresh_topic


@pytest.fixture
async def client(cometmq_session_cluster: Cluster) -> AsyncIterator[Client]:
    async with Client(cometmq_session_cluster.namesrv, offset_persist_interval_ms=50) as client:
        yield client


async def test_a_running_group_is_reset(client: Client, admin: Admin) -> None:
    topic = await fresh_topic(client, queues=2)
    sent = [await client.send(topic, b"%d" % at) for at in range(6)]
    async with Consumer(client, topic) as consumer:
        first = list(await consumer.got(6, deadline_s=30))
        moved = await admin.consumers.reset(consumer.group, topic, 0)
        assert moved == {each.queue: 0 for each in sent}
        assert sorted(await consumer.got(12, deadline_s=30)) == sorted(first * 2)
        end = await admin.consumers.reset(consumer.group, topic)
        assert sorted(end.values()) == [3, 3]
        await client.send(topic, b"new")
        assert sorted(await consumer.got(13, deadline_s=30))[-1] == b"new"
        assert len(consumer.seen) == 13


async def test_a_group_without_members_is_reset(client: Client, admin: Admin) -> None:
    topic = await fresh_topic(client, queues=1)
    sent = [await client.send(topic, b"%d" % at) for at in range(3)]
    queue = sent[0].queue
    await admin.commit_group_offsets("g-off", {queue: 1})
    assert await admin.consumers.reset("g-off", topic, force=False) == {queue: 1}
    assert await admin.consumers.reset("g-off", topic) == {queue: 3}
    assert await admin.group_offset("g-off", queue) == 3
    assert await admin.consumers.reset("g-off", topic, 0, force=False) == {queue: 0}
    assert await admin.consumers.reset("g-new", topic, force=False) == {queue: 3}


async def test_what_members_say_of_themselves(client: Client, admin: Admin) -> None:
    topic = await fresh_topic(client, queues=1)
    sent = await client.send(topic, b"body")
    async with Consumer(client, topic) as consumer:
        await consumer.got(1, deadline_s=30)
        where = await admin.consumers.positions(consumer.group, topic)
        assert where == {client.client_id: {sent.queue: 1}}
        assert await admin.consumers.positions(consumer.group, topic, "nobody") == {}
        info = await admin.consumers.running_info(consumer.group, client.client_id, stacks=True)
        assert held(info)[sent.queue].commit_offset == 1
        assert info.properties["consumerGroup"] == consumer.group
        assert info.status_table[topic].consume_ok_tps > 0
        assert info.jstack is not None
        assert f"handler {consumer.group}" in info.jstack
        with pytest.raises(BrokerRefused, match="not online"):
            await admin.consumers.running_info(consumer.group, "nobody")


def test_a_member_that_has_nothing_to_say_is_quoted() -> None:
    remark = "json marshal error: json: unsupported value: NaN"
    with pytest.raises(
        BrokerRefused,
        match="with code 0: json marshal",
    ):
        read_running_info(Response(0, 1, remark, {}, b""), "go@1")
    assert read_running_info(Response(0, 1, "", {}, b"{}"), "go@1").mq_table == {}


@pytest.mark.cometmq_handler_errors(raises=ValueError)
async def test_a_message_is_consumed_directly(client: Client, admin: Admin) -> None:
    topic = await fresh_topic(client, queues=1)
    sent = await client.send(topic, b"body")
    async with Consumer(client, topic) as consumer:
        await consumer.got(1, deadline_s=30)
        ask = admin.consumers.consume_directly
        result = await ask(consumer.group, client.client_id, sent.offset_id)
        assert (result.consume_result, result.order) == ("CR_SUCCESS", False)
        consumer.fails = True
        result = await ask(consumer.group, client.client_id, sent.offset_id)
        assert result.consume_result == "CR_THROW_EXCEPTION"
        assert result.remark == "ValueError: as asked"
        assert consumer.seen == [b"body"] * 3
        where = await admin.consumers.positions(consumer.group, topic)
        assert where == {client.client_id: {sent.queue: 1}}
        with pytest.raises(ValueError, match="characters"):
            await ask(consumer.group, client.client_id, "x")


async def test_progress_is_copied_and_told_in_time(client: Client, admin: Admin) -> None:
    topic = await fresh_topic(client, queues=1)
    sent = [await client.send(topic, b"%d" % at) for at in range(2)]
    queue = sent[0].queue
    await admin.commit_group_offsets("g-source", {queue: 1})
    await admin.consumers.clone("g-source", "g-target", topic)
    assert await admin.group_offset("g-target", queue) == 1
    span = (await admin.consumers.time_span("g-target", topic))[queue]
    assert span.min_time_stamp <= span.consume_time_stamp <= span.max_time_stamp
    assert span.delay_time >= 0
