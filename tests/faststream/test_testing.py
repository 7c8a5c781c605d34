"""The broker in memory: handlers are called at once, and raise into the test."""

from __future__ import annotations

from typing import Any
from unittest.mock import call

import pytest
from faststream.exceptions import FeatureNotSupportedException, SetupError, SubscriberNotFound

from cometmq.client.consumer.options import Sql
from cometmq.client.sendrequests import SendResult
from cometmq.faststream import RocketMQBroker, RocketMQMessage, RocketMQResponse, TestRocketMQBroker
from tests.client.scripted import eventually
from tests.client.shared_broker import fresh_name
from tests.faststream.conftest import Make


async def test_handlers_are_called_at_once_and_raise_into_the_test() -> None:
    broker = RocketMQBroker()
    results = broker.publisher("results", tag="t")

    @results
    @broker.subscriber("orders", group="billing")
    async def bill(number: int) -> str:
        return f"number {number}"

    async with TestRocketMQBroker(broker) as tested:
        sent = await tested.publish(5, "orders")
        assert isinstance(sent, SendResult)
        bill.mock.assert_called_once_with(5)
        results.mock.assert_called_once_with("number 5")
        with pytest.raises(ValueError, match="validation error"):
            await tested.publish("five", "orders")


async def test_filters_hold() -> None:
    broker, seen = RocketMQBroker(), list[str]()

    @broker.subscriber("orders", group="a", filter="paid || sent")
    async def by_tag(body: str) -> None:
        seen.append(f"tag {body}")

    @broker.subscriber("orders", group="b", filter=Sql("price > 10 AND TAGS = 'paid'"))
    async def by_property(body: str) -> None:
        seen.append(f"sql {body}")

    async with TestRocketMQBroker(broker) as tested:
        await tested.publish("1", "orders", tag="paid", headers={"price": 11})
        await tested.publish("2", "orders", tag="paid", headers={"price": 9})
        await tested.publish("3", "orders", tag="lost", headers={"price": 11})
    assert sorted(seen) == ["sql 1", "tag 1", "tag 2"]


async def test_batches_and_single_messages() -> None:
    broker, seen = RocketMQBroker(), list[Any]()

    @broker.subscriber("orders", group="a", batch=True)
    async def together(bodies: list[int], message: RocketMQMessage) -> None:
        seen.append(bodies)
        assert [each["a"] for each in message.batch_headers] == ["b"] * len(bodies)
        await message.nack()  # settles nothing here

    @broker.subscriber("orders", group="b")
    async def alone(body: int) -> None:
        seen.append(body)

    async with TestRocketMQBroker(broker) as tested:
        sent = await tested.publish_batch(1, 2, topic="orders", headers={"a": "b"}, keys=("k",))
        assert [each.queue_offset for each in sent] == [0, 1]
        await tested.publish(3, "orders", headers={"a": "b"})
        with pytest.raises(FeatureNotSupportedException, match="leave out delay_s"):
            await tested.publish_batch(1, topic="orders", delay_s=1)
    assert sorted(seen, key=str) == [1, 2, 3, [1, 2], [3]]


async def test_requests() -> None:
    broker = RocketMQBroker()

    @broker.subscriber("sums", group="a")
    async def add(numbers: list[int]) -> RocketMQResponse:
        return RocketMQResponse(sum(numbers), headers={"unit": "m"})

    async with TestRocketMQBroker(broker) as tested:
        reply = await tested.request([1, 2], "sums")
        assert (await reply.decode(), reply.headers["unit"]) == (3, "m")
        with pytest.raises(SubscriberNotFound, match="'nobody'"):
            await tested.request(b"", "nobody")


async def test_the_same_test_on_a_cluster(make: Make) -> None:
    broker, topic = make(), fresh_name()
    publisher = broker.publisher(fresh_name())

    @publisher
    @broker.subscriber(topic, group=fresh_name(), start="first")
    async def handle(body: str) -> str:
        return body * 2

    async with broker:
        await broker.publish("x", topic)
        await broker.publish("x", publisher.topic)
    async with TestRocketMQBroker(broker, with_real=True) as tested:
        await tested.publish("ab", topic)
        await handle.wait_call(timeout=30)
        await eventually(lambda: call("abab") in publisher.mock.mock_calls, deadline_s=30)


async def test_a_publisher_is_seen_although_a_filter_refuses_what_it_sends() -> None:
    broker = RocketMQBroker()
    results = broker.publisher("results", tag="b")

    @results
    @broker.subscriber("orders", group="a")
    async def handle(body: str) -> str:
        return body

    @broker.subscriber("results", group="b", filter="a")
    async def other(body: str) -> None:
        raise AssertionError("it reads other tags")

    async with TestRocketMQBroker(broker) as tested:
        await tested.publish("x", "orders")
        results.mock.assert_called_once_with("x")


async def test_a_group_of_two_subscribers_is_refused_as_on_a_cluster() -> None:
    broker = RocketMQBroker()
    for topic in ("a", "b"):
        broker.subscriber(topic, group="same")(print)
    with pytest.raises(SetupError, match="two subscribers have the group 'same'"):
        await TestRocketMQBroker(broker).__aenter__()
