"""What commands become: bodies, headers and send options, on a cluster and in memory."""

from __future__ import annotations

import asyncio
import enum
from typing import Any

import pytest
from faststream import AckPolicy
from faststream.exceptions import FeatureNotSupportedException
from faststream.message import StreamMessage

from cometmq.client.client import Client
from cometmq.core.errors import MessageIllegal, WrongArgument
from cometmq.faststream import (
    RocketMQBroker,
    RocketMQMessage,
    RocketMQResponse,
    TestRocketMQBroker,
)
from tests.client.shared_broker import fresh_name
from tests.faststream.conftest import Make
from tests.faststream.test_broker import DEADLINE_S, Seen, dead_letters


class Region(str, enum.Enum):  # noqa: UP042  (its str() is not its value)
    NORTH = "north"


async def test_no_message_of_a_batch_is_lost(make: Make, topic: str) -> None:
    broker, source, seen = make(), fresh_name(), Seen()

    @broker.subscriber(source, group=fresh_name(), start="first")
    @broker.publisher(topic, batch=True)
    async def split(text: str) -> list[str | None]:
        return [None, text]

    @broker.subscriber(topic, group=fresh_name(), start="first")
    async def handle(message: RocketMQMessage) -> None:
        seen.add(message.body)

    async with broker:
        assert len(await broker.publish_batch(None, b"a", topic=topic, order_key="one")) == 2
        await broker.publish("b", source)
        await broker.start()
        assert await seen.wait(4) == [b"", b"a", b"", b"b"]
        with pytest.raises(TypeError, match="one message at a time"):
            await broker.publisher(topic).publish("a", "b")


async def test_headers_are_texts(make: Make, topic: str) -> None:
    broker, seen = make(), Seen()

    @broker.subscriber(topic, group=fresh_name(), start="first")
    async def handle(message: RocketMQMessage) -> None:
        seen.add((message.headers, message.correlation_id))

    given: dict[str, Any] = {"none": None, "empty": "", "count": 0, "region": Region.NORTH}
    async with broker:
        await broker.publish("a", topic, headers=given, correlation_id=7)  # type: ignore[arg-type]
        await broker.start()
        ((headers, correlation_id),) = await seen.wait(1)
        assert (headers.pop("correlation_id"), correlation_id) == ("7", "7")
        assert headers == {"count": "0", "region": "north", "content-type": "text/plain"}


async def test_keys_of_all_messages_and_unknown_options(make: Make, topic: str) -> None:
    broker, seen = make(), Seen()

    @broker.subscriber(topic, group=fresh_name(), start="first")
    async def handle(message: RocketMQMessage) -> None:
        seen.add(message.raw_message.keys)

    async with broker:
        await broker.publish_batch("a", "b", topic=topic, keys=(str(each) for each in (1, 2)))
        await broker.start()
        assert await seen.wait(2) == [("1", "2"), ("1", "2")]
        with pytest.raises(TypeError, match=r"publish\(\) got an unexpected .* 'key'"):
            await broker.publish_batch("a", topic=topic, key="1")  # type: ignore[call-arg]
        with pytest.raises(TypeError, match=r"RocketMQResponse\(\) got an unexpected .* 'key'"):
            RocketMQResponse("a", key="1")  # type: ignore[call-arg]
        with pytest.raises(FeatureNotSupportedException, match="leave out delay_s"):
            broker.publisher(topic, batch=True, delay_s=1)


class Reversed:
    """A codec of texts, last character first."""

    async def encode(self, msg: Any, serializer: Any = None) -> tuple[bytes, str | None]:
        return msg[::-1].encode(), None

    async def decode(self, msg: StreamMessage[Any]) -> Any:
        return msg.body.decode()[::-1]


@pytest.mark.parametrize("real", [True, False])
async def test_the_codec_of_a_broker_decodes_replies(make: Make, topic: str, real: bool) -> None:
    broker = make(codec=Reversed())

    @broker.subscriber(topic, group=fresh_name(), start="first")
    async def double(text: str) -> str:
        return text + "!"

    async with TestRocketMQBroker(broker, with_real=real) as tested:
        reply = await tested.request("abc", topic, timeout=DEADLINE_S)
        assert (reply.body, await reply.decode()) == (b"!cba", "abc!")


@pytest.mark.parametrize("real", [True, False])
async def test_what_the_client_does_not_send_is_refused_in_memory_too(
    make: Make, topic: str, real: bool
) -> None:
    broker = make({"max_message_bytes": 1_000})
    async with TestRocketMQBroker(broker, with_real=real) as tested:
        for header, error in (
            ({"KEYS": "a"}, "reserved"),
            ({"a": "b\x01"}, "control character"),
            ({"a": b"b"}, "must be str, not bytes"),
        ):
            with pytest.raises(MessageIllegal, match=error):
                await tested.publish("a", topic, headers=header)
        for options, error in (
            ({"tag": "a||b"}, "no consumer could subscribe"),
            ({"keys": "a b"}, "contains a blank"),
            ({"delay_s": 1, "delay_level": 2}, "only one of"),
        ):
            with pytest.raises(MessageIllegal, match=error):
                await tested.publish("a", topic, **options)
        with pytest.raises(MessageIllegal, match="the limit is 1000"):
            await tested.publish("a" * 1_001, topic)
        with pytest.raises(MessageIllegal):
            await tested.publish("a", "")
        with pytest.raises(WrongArgument):
            await tested.publish("a", topic, keys=None)  # type: ignore[arg-type]


async def test_requests_and_batches_in_memory() -> None:
    broker, seen = RocketMQBroker(), list[Any]()

    @broker.subscriber("silent", group="a", no_reply=True)
    async def silent(body: str) -> str:
        return body

    @broker.subscriber("asked", group="b", batch=True, max_records=2)
    async def together(bodies: list[str]) -> str:
        seen.append(bodies)
        return "batch"

    async with TestRocketMQBroker(broker) as tested:
        for topic in ("silent", "asked"):
            with pytest.raises(TimeoutError, match="no replier"):
                await tested.request("a", topic)
        await tested.publish_batch("b", "c", "d", topic="asked")
    assert seen == [["a"], ["b", "c"], ["d"]]


async def test_an_answer_with_the_headers_of_its_request_wants_no_answer() -> None:
    broker, seen = RocketMQBroker(), list[str]()

    @broker.subscriber("answers", group="a")
    async def echo(body: str, message: RocketMQMessage) -> RocketMQResponse:
        seen.append(body)
        assert len(seen) < 10
        return RocketMQResponse(body, headers=message.headers)

    async with TestRocketMQBroker(broker) as tested:
        await tested.publish("a", "answers", reply_to="answers")
    assert seen == ["a", "a"]


async def test_a_reply_with_an_illegal_header_is_an_error_of_the_handler(
    make: Make, client: Client, topic: str
) -> None:
    broker, group = make(), fresh_name()

    @broker.subscriber(topic, group=group, ack_policy=AckPolicy.REJECT_ON_ERROR, start="first")
    async def answer(body: str) -> RocketMQResponse:
        return RocketMQResponse(body, headers={"KEYS": "a"})

    async with broker:
        await broker.start()
        with pytest.raises(TimeoutError):
            await broker.request("a", topic, timeout=3)
        async with asyncio.timeout(DEADLINE_S):
            while not await dead_letters(client, group):
                await asyncio.sleep(0.05)
