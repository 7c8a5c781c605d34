"""Our client and the Java client on one broker: each reads what the other wrote."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator

import pytest

from cometmq.client.client import Client
from cometmq.client.config import ClientConfig, parse_name_servers
from cometmq.client.consumer.pushconsumer import Subscription
from cometmq.client.consumer.received import ReceivedMessage
from cometmq.message.model import Message
from tests.client.shared_broker import fresh_name
from tests.compat.conftest import Target
from tests.compat.driver import Driver
from tests.compat.test_producer import props, pull_all

TIMEOUT_S = 60


@pytest.fixture
async def client(target: Target) -> AsyncIterator[Client]:
    intervals = ClientConfig(
        parse_name_servers(target.namesrv),
        route_poll_interval_ms=2_000,
        rebalance_interval_ms=1_000,
    )
    async with Client(target.namesrv, config=intervals) as opened:
        yield opened


async def take(subscription: Subscription, number: int) -> list[ReceivedMessage]:
    """The next messages of a subscription, each acknowledged."""
    taken: list[ReceivedMessage] = []
    async with asyncio.timeout(TIMEOUT_S):
        async for message in subscription:
            message.ack()
            taken.append(message)
            if len(taken) == number:
                break
    return taken


async def test_what_it_sends_java_reads(client: Client, driver: Driver, target: Target) -> None:
    topic = fresh_name("ours-send")
    results = [
        await client.send(
            topic, f"one {number}".encode(), tag="a", keys=[f"k{number}"],
            properties={"colour": "grün"},
        )
        for number in range(10)
    ]  # fmt: skip
    batch = [Message(topic, f"many {n}".encode(), "b", (f"m{n}",)) for n in range(20)]
    await client.send_many(batch)
    await client.send_oneway(topic, b"oneway", keys=["o"])
    async with asyncio.timeout(TIMEOUT_S):
        while len(pull_all(driver, target, topic)) < 31:
            await asyncio.sleep(0.1)
    rows = {row["keys"]: row for row in pull_all(driver, target, topic)}
    assert len(rows) == 31
    for number, result in enumerate(results):
        row = rows[f"k{number}"]
        assert (row["body"], row["tags"]) == (f"one {number}", "a")
        assert (row["queueId"], row["queueOffset"]) == (result.queue.queue_id, result.queue_offset)
        assert props(row)["UNIQ_KEY"] == result.message_id
        assert props(row)["colour"] == "grün"
    for number in range(20):
        assert rows[f"m{number}"]["body"] == f"many {number}"


async def test_a_large_body_survives(client: Client, driver: Driver, target: Target) -> None:
    body = b"0123456789" * 30_000
    topic = fresh_name("ours-large")
    await client.send(topic, body)
    [row] = pull_all(driver, target, topic)
    assert row["bodySize"] == len(body)
    subscription = client.subscribe(topic, group=f"g-{topic}", start="first")
    [message] = await take(subscription, 1)
    assert message.body == body


async def test_it_reads_what_java_sends(client: Client, driver: Driver, target: Target) -> None:
    topic = fresh_name("ours-read")
    tags = ["a", "b", "c"]
    driver.send(target.namesrv, topic, prefix="p-", count=30, tags=tags)
    driver.send(target.namesrv, topic, mode="batch", prefix="b-", count=9, tags=tags)
    subscription = client.subscribe(topic, group=f"g-{topic}", filter="a || c", start="first")
    messages = await take(subscription, 26)
    expected = {f"p-{n}" for n in range(30) if n % 3 != 1} | {
        f"b-{n}" for n in range(9) if n % 3 != 1
    }
    assert {message.body.decode() for message in messages} == expected
    assert {message.tag for message in messages} == {"a", "c"}


async def test_order_is_kept(client: Client, target: Target) -> None:
    topic = fresh_name("ours-order")
    keys = ["x", "y", "z"]
    for number in range(30):
        await client.send(topic, f"{keys[number % 3]}{number}".encode(), order_key=keys[number % 3])
    subscription = client.subscribe(topic, group=f"g-{topic}", ordered=True, start="first")
    got: dict[str, list[int]] = defaultdict(list)
    for message in await take(subscription, 30):
        body = message.body.decode()
        got[body[0]].append(int(body[1:]))
    assert got == {key: list(range(place, 30, 3)) for place, key in enumerate(keys)}
