"""Sends: one, one-way, a batch, many."""

from __future__ import annotations

import pytest

from cometmq.client.hooks import SendAttempt
from cometmq.client.producer import Producer
from cometmq.client.sendrequests import SendStatus
from cometmq.core.errors import (
    MessageIllegal,
    RouteNotFound,
)
from cometmq.message.model import Message, MessageQueue, from_record
from cometmq.protocol.codes import RequestCode
from tests.client.fake_broker import FakeCluster, open_session
from tests.client.scripted import eventually

SEND = RequestCode.SEND_MESSAGE_V2


async def test_a_message_is_stored_as_it_was_given(
    cluster: FakeCluster, producer: Producer
) -> None:
    result = await producer.send(Message("t", b"body", tag="up", keys=("k",)))
    broker = next(each for each in cluster.brokers if each.name == result.queue.broker_name)
    stored = from_record(broker.stored("t")[0])
    assert (stored.body, stored.tag, stored.keys) == (b"body", "up", ("k",))
    assert stored.unique_key == result.message_id
    assert (result.status, result.queue_offset) == (SendStatus.OK, 0)
    assert result.queue.queue_id == stored.queue_id
    assert result.offset_id == stored.offset_id
    await eventually(lambda: broker.heartbeats)
    assert broker.heartbeats[-1].producer_data_set[0].group_name == producer.group


async def test_large_messages_are_compressed_off_the_loop(
    cluster: FakeCluster, producer: Producer
) -> None:
    await producer.send(Message("t", b"x" * 1_000_000))
    (stored,) = [each for broker in cluster.brokers for each in broker.stored("t")]
    assert len(stored.body) < 10_000
    assert from_record(stored).body == b"x" * 1_000_000


async def test_limits_stop_a_message_before_it_leaves(
    cluster: FakeCluster, producer: Producer
) -> None:
    with pytest.raises(MessageIllegal):
        await producer.send(Message("no good", b""))
    with pytest.raises(MessageIllegal):
        await producer.send_oneway(Message("t", b"", keys=("a b",)))
    with pytest.raises(RouteNotFound):
        await producer.send(Message("missing", b""))
    assert not any(broker.peer.received(SEND) for broker in cluster.brokers)


async def test_one_way_messages_arrive(cluster: FakeCluster, producer: Producer) -> None:
    await producer.send_oneway(Message("t", b"1"), order_key="k")
    await producer.send_oneway(Message("t", b"2"), queue=MessageQueue("t", "broker-1", 0))
    await eventually(lambda: sum(len(broker.stored("t")) for broker in cluster.brokers) == 2)
    assert all(r.oneway for broker in cluster.brokers for r in broker.peer.received(SEND))
    await eventually(lambda: any(broker.heartbeats for broker in cluster.brokers))


async def test_many_messages_leave_in_few_batches(cluster: FakeCluster, producer: Producer) -> None:
    messages = [Message("t", b"%d" % at, tag="x") for at in range(500)]
    results = await producer.send_many(messages, order_key="k")
    assert len(results) == 500
    assert [result.queue_offset for result in results] == list(range(500))
    (broker,) = [each for each in cluster.brokers if each.stored("t")]
    stored = [from_record(record) for record in broker.stored("t")]
    assert [each.body for each in stored] == [message.body for message in messages]
    assert [each.unique_key for each in stored] == [result.message_id for result in results]
    assert [each.offset_id for each in stored] == [result.offset_id for result in results]
    assert len(broker.peer.received(RequestCode.SEND_BATCH_MESSAGE)) == 1


async def test_many_messages_of_all_kinds_come_back_in_order(
    cluster: FakeCluster, producer: Producer
) -> None:
    cluster.create("u", 1)
    messages = [
        Message(topic, b"%d" % at, tag=tag, delay_level=delay)
        for at, (topic, tag, delay) in enumerate(
            [("t", "a", 0), ("u", "b", 0), ("t", "b", 0), ("t", "a", 2), ("t", "a", 0)] * 3
        )
    ]
    results = await producer.send_many(messages, order_key=lambda message: message.tag)
    stored = {
        record.offset_id: record.body
        for broker in cluster.brokers
        for topic in ("t", "u")
        for record in map(from_record, broker.stored(topic))
        if record.store_address == broker.peer.address
    }
    assert [stored[result.offset_id] for result in results] == [each.body for each in messages]
    assert await producer.send_many([]) == []


async def test_a_batch_is_stored_as_a_whole(cluster: FakeCluster, producer: Producer) -> None:
    messages = [Message("t", b"%d" % at) for at in range(10)]
    results = await producer.send_batch(messages, order_key="k")
    assert [result.queue_offset for result in results] == list(range(10))
    assert len({result.queue for result in results}) == 1
    codes = [request.code for broker in cluster.brokers for request in broker.peer.requests]
    assert codes.count(RequestCode.SEND_BATCH_MESSAGE) == 1
    assert await producer.send_batch([]) == []


@pytest.mark.parametrize(
    "messages",
    [
        [Message("t", b""), Message("u", b"")],
        [Message("t", b"", delay_level=1)],
        [Message("t", b"x" * 600), Message("t", b"y" * 600)],
    ],
)
async def test_what_is_no_batch_is_refused_or_split(
    cluster: FakeCluster, messages: list[Message]
) -> None:
    cluster.create("u", 1)
    async with open_session(cluster, max_message_bytes=1000, max_batch_bytes=1000) as session:
        producer = Producer(session)
        with pytest.raises(MessageIllegal, match="send_many"):
            await producer.send_batch(messages)
        assert not any(
            broker.peer.received(RequestCode.SEND_BATCH_MESSAGE) for broker in cluster.brokers
        )
        assert len(await producer.send_many(messages)) == len(messages)


async def test_nothing_of_many_is_sent_when_one_is_illegal(
    cluster: FakeCluster, producer: Producer
) -> None:
    cluster.create("u", 1)
    with pytest.raises(MessageIllegal, match="blank"):
        await producer.send_many([Message("t", b"good"), Message("u", b"bad", keys=("a b",))])
    assert not any(broker.peer.received(SEND) for broker in cluster.brokers)


async def test_a_namespace_is_the_clients_own_affair(cluster: FakeCluster) -> None:
    cluster.create("ns%t", 1)
    async with open_session(cluster, namespace="ns", producer_group="p") as session:
        producer = Producer(session)
        seen: list[SendAttempt] = []
        producer.forbidden_hooks.append(seen.append)
        result = await producer.send(Message("t", b"1"))
        assert result.queue.topic == "t"
        await producer.send(Message("t", b"2"), queue=result.queue)
        await producer.send(Message("t", b"3"), queue=lambda queues, _: queues[0])
        await producer.send_many([Message("t", b"4"), Message("t", b"5")])
        assert {(each.group, each.queue.topic) for each in seen} == {("p", "t")}
        await eventually(lambda: any(broker.heartbeats for broker in cluster.brokers))
        beat = next(broker.heartbeats[-1] for broker in cluster.brokers if broker.heartbeats)
        assert beat.producer_data_set[0].group_name == "ns%p"
    records = [record for broker in cluster.brokers for record in broker.stored("ns%t")]
    assert sorted(record.body for record in records) == [b"1", b"2", b"3", b"4", b"5"]
    assert all(from_record(each).properties["INSTANCE_ID"] == "ns" for each in records)
