"""Request-reply of our client on a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from cometmq.client.client import Client
from cometmq.client.consumer.received import ReceivedMessage
from cometmq.client.requestreply import reply_address
from cometmq.core.errors import RequestTimedOut
from cometmq.message import properties as props
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers import PushReply
from cometmq.testing.cluster import Cluster
from tests.client.fake_broker import fake_cluster
from tests.client.scripted import eventually
from tests.client.shared_broker import fresh_topic


@pytest.fixture
async def client(cometmq_session_cluster: Cluster) -> AsyncIterator[Client]:
    async with Client(cometmq_session_cluster.namesrv) as client:
        yield client


async def test_a_request_is_answered(client: Client, cometmq_session_cluster: Cluster) -> None:
    topic = await fresh_topic(client)
    async with Client(cometmq_session_cluster.namesrv) as other:

        @other.replier(topic, group=f"g-{topic}", start="first")
        async def answer(message: ReceivedMessage) -> bytes | None:
            return message.body.upper() * 5_000

        found = await asyncio.gather(
            *(client.request(topic, b"%d a" % at, tag="x", timeout_ms=20_000) for at in range(5))
        )
        assert [reply.body[:3] for reply in found] == [b"%d A" % at for at in range(5)]
        assert {len(reply.body) for reply in found} == {15_000}
        assert found[0].topic == "DefaultCluster_REPLY_TOPIC"
        assert found[0].stored.born_address.startswith("127.0.0.1:")
        assert found[0].properties[props.MSG_TYPE] == "reply"


async def test_a_request_that_nobody_answers_times_out(client: Client) -> None:
    topic = await fresh_topic(client)
    heard: list[bytes] = []

    @client.replier(topic, group=f"g-{topic}", start="first")
    async def answer(message: ReceivedMessage) -> bytes | None:
        heard.append(message.body)
        return None

    told = f"^no replier of topic '{topic}' answered within 3000 ms$"
    with pytest.raises(RequestTimedOut, match=told):
        await client.request(topic, b"quiet", timeout_ms=3_000)
    await eventually(lambda: heard == [b"quiet"])


async def test_an_answer_that_comes_too_late_harms_nobody(client: Client) -> None:
    topic = await fresh_topic(client)
    late = asyncio.Event()

    @client.replier(topic, group=f"g-{topic}", start="first")
    async def answer(message: ReceivedMessage) -> bytes | None:
        if message.body == b"slow":
            await late.wait()
        return message.body

    with pytest.raises(RequestTimedOut):
        await client.request(topic, b"slow", timeout_ms=500)
    late.set()
    assert (await client.request(topic, b"next", timeout_ms=20_000)).body == b"next"


async def test_replies_that_cannot_be_read_are_answered_all_the_same() -> None:
    async with fake_cluster() as fake:
        fake.create("t", 1)
        peer = fake.brokers[0].peer
        async with Client(fake.namesrv.address) as client:
            asking = asyncio.create_task(client.request("t", b"x", timeout_ms=1_000))
            await eventually(lambda: fake.brokers[0].stored("t"))
            (asked,) = fake.brokers[0].stored("t")
            correlation = props.decode(asked.properties)[props.CORRELATION_ID]
            for sys_flag, text in ((1, f"CORRELATION_ID\x01{correlation}"), (0, "")):
                header = PushReply(
                    producer_group="g", topic="r", default_topic="TBW102",
                    default_topic_queue_nums=4, queue_id=0, sys_flag=sys_flag, born_timestamp=1,
                    flag=0, born_host="nowhere", store_host="127.0.0.1:1", store_timestamp=2,
                    properties=text,
                )  # fmt: skip
                code = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
                assert (await peer.connections[-1].ask(code, header, b"junk")).code == 0
            with pytest.raises(RequestTimedOut):
                await asking


@pytest.mark.parametrize("missing", ["CLUSTER", "REPLY_TO_CLIENT", "CORRELATION_ID"])
def test_a_message_that_wants_no_answer(missing: str) -> None:
    asked = {"CLUSTER": "c", "REPLY_TO_CLIENT": "me", "CORRELATION_ID": "1", "TTL": "500"}
    assert reply_address(asked) == (
        "c_REPLY_TOPIC",
        {"MSG_TYPE": "reply", "CORRELATION_ID": "1", "REPLY_TO_CLIENT": "me", "TTL": "500"},
    )
    del asked[missing]
    assert reply_address(asked) is None
