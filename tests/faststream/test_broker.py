"""The broker on a cluster: what handlers get, what becomes of it, and how it ends."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

import pydantic
import pytest
from faststream import AckPolicy, FastStream, Header, TestApp
from faststream.exceptions import (
    FeatureNotSupportedException,
    IncorrectState,
    NackMessage,
    RejectMessage,
    SetupError,
    StopConsume,
)

from cometmq.admin.api import Admin
from cometmq.client.client import Client
from cometmq.client.consumer.options import Sql
from cometmq.client.consumer.received import ReceivedMessage
from cometmq.client.sendrequests import SendResult
from cometmq.core.errors import RouteNotFound
from cometmq.faststream import (
    RocketMQBroker,
    RocketMQMessage,
    RocketMQPublisherRoute,
    RocketMQResponse,
    RocketMQRoute,
    RocketMQRouter,
)
from cometmq.message.names import DLQ_PREFIX
from tests.client.scripted import eventually
from tests.client.shared_broker import fresh_name
from tests.faststream.conftest import Make

DEADLINE_S = 60


class Order(pydantic.BaseModel):
    number: int
    item: str = "tea"


class Seen:
    """What handlers saw, in order."""

    def __init__(self) -> None:
        self.found: list[Any] = []

    def add(self, value: Any) -> int:
        self.found.append(value)
        return len(self.found)

    async def wait(self, count: int) -> list[Any]:
        await eventually(lambda: len(self.found) >= count, deadline_s=DEADLINE_S)
        return self.found


async def test_a_handler_gets_a_value_and_publishes_its_result(make: Make, topic: str) -> None:
    broker, invoices, seen = make(), fresh_name(), Seen()

    @broker.subscriber(topic, group=fresh_name("bill"), start="first")
    @broker.publisher(invoices, tag="new", headers={"by": "bill"})
    async def bill(
        order: Order, message: RocketMQMessage, region: Annotated[str, Header()]
    ) -> dict[str, Any]:
        assert isinstance(message.raw_message, ReceivedMessage)
        assert message.raw_message.tag == "paid"
        assert message.raw_message.keys == ("17",)
        return {"number": order.number, "item": order.item, "region": region}

    @broker.subscriber(invoices, group=fresh_name("mail"), filter="new", start="first")
    async def mail(invoice: dict[str, Any], message: RocketMQMessage) -> None:
        seen.add((invoice, message.headers["by"], message.correlation_id))

    async with broker:
        await broker.publish({}, invoices, tag="other")
        await broker.start()
        sent = await broker.publish(
            Order(number=17), topic, tag="paid", keys=17, headers={"region": "AD"},
            correlation_id="c-17",
        )  # fmt: skip
        assert isinstance(sent, SendResult)
        assert await seen.wait(1) == [
            ({"number": 17, "item": "tea", "region": "AD"}, "bill", "c-17")
        ]


async def test_values_of_typed_topics_are_read(make: Make, client: Client, topic: str) -> None:
    @dataclass
    class Sold:
        number: int

    broker, seen = make(), Seen()

    @broker.subscriber(topic, group=fresh_name(), start="first")
    async def handle(sold: Order) -> None:
        seen.add(sold.number)

    for number, serializer in enumerate(("json", "msgpack")):
        await client.topic(topic, Sold, serializer=serializer).send(Sold(number))  # type: ignore[arg-type]
    async with broker:
        await broker.start()
        assert await seen.wait(2) == [0, 1]


async def test_a_failed_message_comes_again(make: Make, topic: str) -> None:
    broker, seen = make(), Seen()

    @broker.subscriber(topic, group=fresh_name(), start="first")
    async def handle(body: str, message: RocketMQMessage) -> None:
        if seen.add((body, message.raw_message.reconsume_times)) == 1:
            raise NackMessage(delay_level=1)

    async with broker:
        await broker.start()
        await broker.publish("once more", topic)
        assert await seen.wait(2) == [("once more", 0), ("once more", 1)]


@pytest.mark.parametrize("policy", [None, AckPolicy.NACK_ON_ERROR])
async def test_an_error_has_an_ordered_message_repeated_in_its_place(
    make: Make, topic: str, policy: AckPolicy | None
) -> None:
    broker, seen = make(ack_policy=policy) if policy else make(), Seen()

    @broker.subscriber(topic, group=fresh_name(), ordered=True, start="first")
    async def handle(body: str) -> None:
        if seen.add(body) == 1:
            raise ValueError(body)

    async with broker:
        await broker.publish_batch("a", "b", "c", topic=topic, order_key="one")
        await broker.start()
        assert await seen.wait(4) == ["a", "a", "b", "c"]


@pytest.mark.parametrize(
    ("policy", "error"),
    [(AckPolicy.REJECT_ON_ERROR, ValueError), (AckPolicy.NACK_ON_ERROR, RejectMessage)],
)
async def test_a_rejected_message_is_a_dead_letter(
    make: Make, client: Client, topic: str, policy: AckPolicy, error: type[Exception]
) -> None:
    broker, group = make(), fresh_name()

    @broker.subscriber(topic, group=group, ack_policy=policy, start="first")
    async def handle(body: str) -> None:
        raise error()

    async with broker:
        await broker.start()
        await broker.publish("bad", topic)
        async with asyncio.timeout(DEADLINE_S):
            while not await dead_letters(client, group):
                await asyncio.sleep(0.05)


async def dead_letters(client: Client, group: str) -> int:
    try:
        queues = await Admin(client.session).topic_stats(DLQ_PREFIX + group)
    except RouteNotFound:
        return 0
    return sum(each.max_offset for each in queues.values())


@pytest.mark.parametrize("policy", [AckPolicy.ACK, AckPolicy.ACK_FIRST])
async def test_a_policy_that_acknowledges_errors(
    make: Make, client: Client, topic: str, policy: AckPolicy
) -> None:
    broker, group, seen = make(), fresh_name(), Seen()

    @broker.subscriber(topic, group=group, ack_policy=policy, start="first")
    async def handle(body: str) -> None:
        seen.add(body)
        raise ValueError(body)

    async with broker:
        await broker.start()
        await broker.publish("lost", topic)
        await seen.wait(1)
    progress = await Admin(client.session).consumer_progress(group, topic)
    assert [each.consumer_offset for each in progress.values()] == [1]


async def test_a_message_that_nobody_settles_is_delivered_again(make: Make, topic: str) -> None:
    group, seen = fresh_name(), Seen()

    async def hold(body: str) -> None:
        seen.add(body)

    async def settle(body: str, message: RocketMQMessage) -> None:
        seen.add(body)
        await message.ack()

    for handler, sent, count in ((hold, "held", 1), (settle, "", 2), (settle, "after", 3)):
        broker = make()
        subscriber = broker.subscriber(
            topic, group=group, ack_policy=AckPolicy.MANUAL, start="first"
        )
        subscriber(handler)
        async with broker:
            await broker.start()
            if sent:
                await broker.publish(sent, topic)
            await seen.wait(count)
    assert seen.found == ["held", "held", "after"]


async def test_a_batch(make: Make, topic: str) -> None:
    broker, seen = make(), Seen()

    @broker.subscriber(
        topic, group=fresh_name(), batch=True, max_records=3, batch_timeout_s=1, start="first"
    )
    async def handle(bodies: list[int], message: RocketMQMessage) -> None:
        assert len(message.raw_messages) == len(bodies)
        if seen.add(bodies) == 1:
            raise NackMessage(delay_level=1)

    async with broker:
        sent = await broker.publish_batch(*range(7), topic=topic, headers={"a": "b"})
        assert [each.queue_offset for each in sent] == list(range(7))
        assert await broker.publish_batch(topic=topic) == []
        await broker.start()
        # The three of the first batch come again.
        await eventually(lambda: sum(map(len, seen.found)) == 10, deadline_s=DEADLINE_S)
    assert seen.found[0] == [0, 1, 2]
    assert max(map(len, seen.found)) == 3
    assert sorted(each for batch in seen.found for each in batch) == [0, 0, 1, 1, 2, 2, 3, 4, 5, 6]


async def test_a_publisher_of_batches(make: Make, topic: str) -> None:
    broker, source, seen = make(), fresh_name(), Seen()
    publisher = broker.publisher(topic, batch=True, tag="part", keys=("k",))

    @publisher
    @broker.subscriber(source, group=fresh_name(), start="first")
    async def split(text: str) -> list[str]:
        return text.split()

    @broker.subscriber(topic, group=fresh_name(), filter="part", start="first")
    async def handle(part: str) -> None:
        seen.add(part)

    async with broker:
        await broker.publish("", source)  # no part, no message
        await broker.publish("a b c", source)
        await broker.start()
        assert await seen.wait(3) == ["a", "b", "c"]
        await publisher.publish("d", "e")
        assert await seen.wait(5) == ["a", "b", "c", "d", "e"]


async def test_filters_by_tag_and_property(make: Make, topic: str) -> None:
    broker, tagged, cheap = make(), Seen(), Seen()

    @broker.subscriber(topic, group=fresh_name(), filter="a || b", start="first")
    async def by_tag(body: str) -> None:
        tagged.add(body)

    @broker.subscriber(topic, group=fresh_name(), filter=Sql("price < 10"), start="first")
    async def by_property(body: str) -> None:
        cheap.add(body)

    async with broker:
        for tag, price in (("a", 5), ("c", 20), ("b", 30), ("c", 6)):
            await broker.publish(f"{tag}{price}", topic, tag=tag, headers={"price": price})
        await broker.start()
        assert await tagged.wait(2) == ["a5", "b30"]
        assert await cheap.wait(2) == ["a5", "c6"]


async def test_a_delayed_message(make: Make, topic: str) -> None:
    broker, seen = make(), Seen()

    @broker.subscriber(topic, group=fresh_name(), start="first")
    async def handle(body: str) -> RocketMQResponse | None:
        seen.add((body, datetime.now(UTC).timestamp()))
        return None

    async with broker:
        await broker.start()
        begun = datetime.now(UTC).timestamp()
        await broker.publish("later", topic, delay_s=6)
        await broker.publish("now", topic)
        (first, _), (second, at) = await seen.wait(2)
        assert (first, second) == ("now", "later")
        assert at - begun >= 5.9
        for refused in (broker.publish_batch("a", topic=topic, delay_s=1),
                        broker.request("a", topic, delay_level=1)):  # fmt: skip
            with pytest.raises(FeatureNotSupportedException, match="cannot be delayed"):
                await refused


async def test_requests_are_answered_both_ways(make: Make, client: Client, topic: str) -> None:
    broker, plain = make(), fresh_name()

    @broker.subscriber(topic, group=fresh_name(), start="first")
    async def add(numbers: list[int]) -> RocketMQResponse:
        return RocketMQResponse(sum(numbers), headers={"unit": "m"})

    async with broker:
        await broker.start()
        reply = await broker.request([1, 2, 3], topic, correlation_id="7", timeout=DEADLINE_S)
        assert await reply.decode() == 6
        assert (reply.headers["unit"], reply.correlation_id) == ("m", "7")
        assert await (await broker.publisher(topic).request([4], timeout=DEADLINE_S)).decode() == 4
        # A client that does not know FastStream asks, and one answers.
        assert (await client.request(topic, b"[5, 6]", timeout_ms=DEADLINE_S * 1000)).body == b"11"
        await client.send(plain, b"")

        @client.replier(plain, group=fresh_name(), start="first")
        async def double(message: ReceivedMessage) -> bytes:
            return message.body * 2

        reply = await broker.request("ab", plain, timeout=DEADLINE_S)
        assert reply.body == b"abab"
        with pytest.raises(TimeoutError, match="no replier of topic"):
            await broker.request(b"", fresh_name(), timeout=3)


async def test_a_result_goes_to_the_topic_that_the_message_names(make: Make, topic: str) -> None:
    broker, answers, seen = make(), fresh_name(), Seen()

    @broker.subscriber(topic, group=fresh_name(), start="first")
    async def add(numbers: list[int]) -> int:
        return sum(numbers)

    @broker.subscriber(answers, group=fresh_name(), start="first")
    async def handle(number: int, message: RocketMQMessage) -> None:
        seen.add((number, message.correlation_id))

    async with broker:
        await broker.publish(0, answers)
        await broker.start()
        await broker.publish([1, 2], topic, reply_to=answers, correlation_id="x")
        assert (3, "x") in await seen.wait(2)


async def test_messages_are_taken_one_by_one(make: Make, topic: str) -> None:
    group = fresh_name()
    broker = make()
    async with broker:
        await broker.publish_batch("a", "b", "c", "d", topic=topic)
        subscriber = broker.subscriber(topic, group=group, start="first", persistent=False)
        await subscriber.start()
        first = await subscriber.get_one(timeout=DEADLINE_S)
        assert first is not None
        assert await first.decode() == "a"
        async for message in subscriber:
            if await message.decode() == "c":
                break  # it is not settled: nothing came after it
        await subscriber.stop()
    broker = make()
    async with broker:
        batches = broker.subscriber(topic, group=group, start="first", batch=True)
        await batches.start()
        batch = await batches.get_one(timeout=DEADLINE_S)
        assert batch is not None
        assert await batch.decode() == ["c", "d"]
        await batch.ack()
        assert await batches.get_one(timeout=0.1) is None


async def test_a_stop_waits_for_handlers(make: Make, topic: str) -> None:
    entered, group, seen = asyncio.Event(), fresh_name(), Seen()

    async def hang(body: str) -> None:
        entered.set()
        await asyncio.Event().wait()

    async def work(body: str) -> None:
        entered.set()
        await eventually(lambda: not broker.subscribers[0].running, deadline_s=DEADLINE_S)
        seen.add(body)

    for handler, graceful_s in ((hang, 0.2), (work, DEADLINE_S)):
        broker = make(graceful_timeout=graceful_s)
        broker.subscriber(topic, group=group, start="first")(handler)
        await broker.start()
        if handler is hang:
            await broker.publish("slow", topic)
        async with asyncio.timeout(DEADLINE_S):
            await entered.wait()
            entered.clear()
            await broker.stop()
    # The first broker gave up, and the message came again; the second one waited.
    assert seen.found == ["slow"]


async def test_stop_consume_ends_one_subscriber(make: Make, topic: str) -> None:
    broker, other, seen = make(), fresh_name(), Seen()

    @broker.subscriber(topic, group=fresh_name(), start="first")
    async def first(body: str) -> None:
        seen.add(body)
        raise StopConsume

    @broker.subscriber(other, group=fresh_name(), start="first")
    async def second(body: str) -> None:
        seen.add(body)

    async with broker:
        await broker.publish("other", other)
        await broker.start()
        await broker.publish("a", topic)
        await eventually(lambda: not broker.subscribers[0].running or
                         not broker.subscribers[1].running, deadline_s=DEADLINE_S)  # fmt: skip
        await broker.publish("b", topic)
        await broker.publish("last", other)
        assert sorted(await seen.wait(3)) == ["a", "last", "other"]


async def test_several_topics_and_workers(make: Make) -> None:
    broker, topics = make(), [fresh_name(), fresh_name()]
    together, both = asyncio.Event(), Seen()

    @broker.subscriber(*topics, group=fresh_name(), max_workers=2, start="first")
    async def handle(body: str, message: RocketMQMessage) -> None:
        if both.add((message.raw_message.topic, body)) == 2:
            together.set()
        await together.wait()

    async with broker:
        for topic in topics:
            await broker.publish(topic[-1], topic)
        await broker.start()
        assert sorted(await both.wait(2)) == sorted((topic, topic[-1]) for topic in topics)


async def test_an_application_with_routers(make: Make) -> None:
    prefix, seen = fresh_name("shop"), Seen()

    async def routed(body: str) -> str:
        return body.upper()

    route = RocketMQRoute(
        routed, "-in", group=fresh_name(), start="first",
        publishers=[RocketMQPublisherRoute("-out", tag="up")],
    )  # fmt: skip
    router = RocketMQRouter(prefix, handlers=[route])

    @router.subscriber("-out", group=fresh_name(), filter="up", start="first")
    async def handle(body: str) -> None:
        seen.add(body)

    broker = make(routers=[router])
    async with broker:
        for end in ("-in", "-out"):
            await broker.publish("x", prefix + end)
        async with TestApp(FastStream(broker)):
            await broker.publish("hello", f"{prefix}-in")
            assert sorted(await seen.wait(2)) == ["HELLO", "X"]


async def test_ping_says_whether_the_cluster_answers(make: Make) -> None:
    broker = make()
    assert not await broker.ping()
    async with broker:
        assert await broker.ping(timeout=DEADLINE_S)
    away = RocketMQBroker("127.0.0.1:1")
    async with away:
        assert not await away.ping(timeout=0.3)


async def test_mistakes_are_named(make: Make, topic: str) -> None:
    broker = make()
    for wrong, sentence in (
        ({"filter": len}, "filter is a tag expression"),
        ({"batch": True, "ordered": True}, "exclude each other"),
        ({"max_workers": 0}, "1 or more"),
    ):
        with pytest.raises(SetupError, match=sentence):
            broker.subscriber(topic, group="g", **wrong)
    with pytest.raises(SetupError, match="needs a topic"):
        broker.subscriber(group="g")
    with pytest.raises(TypeError, match="unexpected keyword argument 'taag'"):
        broker.subscriber(topic, group="g", taag="x")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'taag'"):
        broker.publisher(topic, taag="x")  # type: ignore[call-arg]
    for build in (RocketMQBroker, RocketMQRouter):
        with pytest.raises(TypeError, match="unexpected keyword argument 'graceful'"):
            build(graceful=1)  # type: ignore[call-arg]
    with pytest.raises(IncorrectState, match="not connected"):
        await broker.publish("x", topic)
    group = fresh_name()
    for _ in range(2):
        broker.subscriber(topic, group=group)(print)
    with pytest.raises(SetupError, match="two subscribers have the group"):
        await broker.start()
    await broker.stop()
