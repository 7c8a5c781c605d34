"""What a client tells the trace topic, and that nobody is held up or failed by it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from cometmq.client import tracing
from cometmq.client.client import Client
from cometmq.message import properties as props
from cometmq.message.model import Message, MessageView
from cometmq.protocol import headers as h
from cometmq.protocol.codes import RequestCode as Code
from cometmq.protocol.frame import Request
from tests.client.fake_broker import FakeBroker, FakeCluster, quick_config
from tests.client.scripted import Answer, eventually
from tests.client.test_traceformat import java_fields

TOPIC = "RMQ_SYS_TRACE_TOPIC"


@pytest.fixture
def broker(cluster: FakeCluster) -> FakeBroker:
    """The broker that has the topics, and tells its region with every answer."""
    broker, other = cluster.brokers
    other.registered = False
    cluster.create(TOPIC, 1)
    in_region(broker, "true")
    return broker


def in_region(broker: FakeBroker, trace_on: str) -> None:
    for code in (Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE):
        stored = broker.peer.scripts[code]

        def answer(request: Request[Any], stored: Any = stored) -> Answer:
            header: h.SendMessageResponse = stored(request).header
            header.region, header.trace_on = "north", trace_on
            return Answer(header=header)

        broker.peer.on(code, answer)


@asynccontextmanager
async def tracing_client(cluster: FakeCluster, **changes: Any) -> AsyncIterator[Client]:
    config = quick_config(cluster, trace=True, **changes)
    async with Client(config=config) as client:
        yield client


def traced(broker: FakeBroker, topic: str = TOPIC) -> list[list[str]]:
    """All records so far, each as its fields."""
    return [
        fields for record in broker.stored(topic) for fields in java_fields(record.body.decode())
    ]


async def test_sends_are_traced(cluster: FakeCluster, broker: FakeBroker) -> None:
    async with tracing_client(cluster) as client:
        one = await client.send("t", b"body", tag="red", keys=["k1", "k2"])
        late = await client.send("t", b"late", delay_level=3)
        batch = await client.send_batch([Message("t", b"a"), Message("t", b"bb", keys=("k3",))])
        await client.send_oneway("t", b"unknown")
    found = traced(broker)
    assert [fields[0] for fields in found] == ["Pub"] * 4
    assert [fields[5] for fields in found] == [each.message_id for each in (one, late, *batch)]
    kind, _, region, group, topic, _, tag, keys, address, size, _, number, offset_id, ok = found[0]
    assert (kind, region, group, topic) == ("Pub", "north", "COMETMQ_PRODUCER", "t")
    assert (tag, keys, address, size) == ("red", "k1 k2", broker.peer.address, "4")
    assert (number, offset_id, ok) == ("0", one.offset_id, "true")
    assert found[1][11] == "3"
    assert [fields[12] for fields in found[2:]] == [each.offset_id for each in batch]
    (message,) = broker.stored(TOPIC)
    words = props.decode(message.properties)[props.KEYS].split(" ")
    assert {one.message_id, "k1", "k2", "k3", batch[1].message_id} <= set(words)
    producers = {data.group_name for beat in broker.heartbeats for data in beat.producer_data_set}
    assert "COMETMQ_PRODUCER" in producers


async def test_consuming_is_traced(cluster: FakeCluster, broker: FakeBroker) -> None:
    broker.put("t", 0, b"good", "UNIQ_KEY\x01ID1\x02KEYS\x01k")
    broker.put("t", 1, b"bad", "UNIQ_KEY\x01ID2")
    broker.put("t", 0, b"silent", "UNIQ_KEY\x01ID3\x02TRACE_ON\x01false")
    async with (
        tracing_client(cluster) as client,
        client.subscribe("t", group="g", start="first", max_reconsume_times=0) as given,
    ):
        left = 3
        async for message in given:
            async with message.processing():
                left -= 1
                if message.body == b"bad":
                    raise ValueError("bad")
            if not left:
                break
    found = traced(broker)
    begun = {fields[5]: fields for fields in found if fields[0] == "SubBefore"}
    ended = {fields[2]: fields for fields in found if fields[0] == "SubAfter"}
    assert set(begun) == set(ended) == {"ID1", "ID2"}
    assert begun["ID1"][2:4] == ["null", "g"]
    assert begun["ID1"][6:] == ["0", "k"]
    assert begun["ID1"][4] == ended["ID1"][1]
    assert ended["ID1"][4:7] == ["true", "k", "0"]
    assert ended["ID2"][4:7] == ["false", "null", "2"]
    assert ended["ID2"][8] == "g"


async def test_ends_of_transactions_are_traced(cluster: FakeCluster, broker: FakeBroker) -> None:
    async with tracing_client(cluster) as client:

        @client.transaction_checker("shop")
        async def check(message: MessageView) -> bool | None:
            return None

        async with client.transaction("t", b"half", keys=["k"], group="shop") as tx:
            pass
        half = broker.queues["t", tx.result.queue.queue_id][0]
        header = h.CheckTransactionState(0, 0)
        await eventually(lambda: "shop" in str(broker.heartbeats))
        connection = broker.peer.connections[0]
        connection.tell(Code.CHECK_TRANSACTION_STATE, header, half)
        await eventually(lambda: len(broker.peer.received(Code.END_TRANSACTION)) == 2)
        found: list[list[str]] = []

        def all_traced() -> bool:
            found[:] = traced(broker)
            return len(found) == 3

        await eventually(all_traced)
    sent, committed, checked = found
    assert (sent[0], sent[11], sent[3]) == ("Pub", "1", "shop")
    assert committed[0] == checked[0] == "EndTransaction"
    assert committed[5] == checked[5] == tx.message_id
    assert (committed[4], committed[7], committed[11:]) == ("t", "k", ["COMMIT_MESSAGE", "false"])
    assert checked[11:] == ["UNKNOW", "true"]


async def test_a_broker_that_wants_no_traces_gets_none(
    cluster: FakeCluster, broker: FakeBroker
) -> None:
    in_region(broker, "false")
    async with tracing_client(cluster) as client:
        await client.send("t", b"body")
    assert traced(broker) == []


async def test_traces_are_not_traced_and_may_go_elsewhere(
    cluster: FakeCluster, broker: FakeBroker
) -> None:
    cluster.create("my-traces", 1)
    async with tracing_client(cluster, trace_topic="my-traces") as client:
        await client.send("my-traces", b"\x02")
        await client.send("t", b"body")
    (own, told) = broker.stored("my-traces")
    assert own.body == b"\x02"
    assert len(java_fields(told.body.decode())) == 1
    assert broker.stored(TOPIC) == []


async def test_a_trace_topic_that_is_not_there_fails_nothing(
    cluster: FakeCluster, broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    del cluster.topics[TOPIC]
    async with tracing_client(cluster) as client:
        assert (await client.send("t", b"body")).queue_offset == 0
    assert "trace_not_sent" in caplog.text


async def test_too_many_notes_are_dropped_and_counted(
    cluster: FakeCluster,
    broker: FakeBroker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(tracing, "MAX_WAITING", 3)
    async with tracing_client(cluster) as client:
        assert client._tracer is not None
        for _ in range(5):
            await client.send("t", b"body")
        assert client._tracer.dropped == 2
    assert len(traced(broker)) == 3
    assert caplog.text.count("traces_dropped") == 1


async def test_a_silent_broker_does_not_hold_up_the_close(
    cluster: FakeCluster, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "CLOSE_TIMEOUT_MS", 50)
    async with tracing_client(cluster) as client:
        await client.send("t", b"body")
        broker.peer.on(Code.SEND_MESSAGE_V2, None)
    assert traced(broker) == []


async def test_a_client_that_opens_again_traces_once(
    cluster: FakeCluster, broker: FakeBroker
) -> None:
    client = Client(config=quick_config(cluster, trace=True))
    for _ in range(2):
        await client.start()
        await client.send("t", b"body")
        await client.close()
    assert client.consume_hooks == []
    assert len(traced(broker)) == 2


async def test_two_may_close_a_client_at_once(cluster: FakeCluster, broker: FakeBroker) -> None:
    async with tracing_client(cluster) as client:
        await client.send("t", b"")
        await asyncio.gather(client.close(), client.close())
        assert not client.consume_hooks
    assert len(traced(broker)) == 1
