"""Our client and the Java client side by side: in one group, and as each other's peers."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest

from cometmq.admin.api import Admin
from cometmq.client.client import Client
from cometmq.client.consumer.received import ReceivedMessage
from cometmq.message.model import Message
from tests.compat.conftest import Target
from tests.compat.driver import Driver, Json

TIMEOUT_S = 60
TIMEOUT_MS = TIMEOUT_S * 1000


@pytest.fixture
async def client(target: Target) -> AsyncIterator[Client]:
    async with Client(target.namesrv, send_timeout_ms=10_000) as client:
        yield client


@pytest.fixture
async def topic(client: Client) -> str:
    name = f"mixed-{uuid.uuid4().hex[:12]}"
    await Admin(client.session).create_topic(name, queues=4)
    return name


async def until(condition: object) -> None:
    assert callable(condition)
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():
            await asyncio.sleep(0.01)


class Java:
    """One Java consumer; its calls wait in a thread, so that our client goes on."""

    def __init__(self, driver: Driver, target: Target, topic: str, group: str) -> None:
        self._driver = driver
        self._id = f"mixed-{uuid.uuid4().hex[:8]}"
        self._start: dict[str, object] = {
            "id": self._id, "namesrv": target.namesrv, "group": group, "topic": topic,
            "filter": "*",
        }  # fmt: skip

    async def join(self) -> None:
        await asyncio.to_thread(self._driver.ask, "consume", **self._start)

    async def received(self, count: int, timeout_ms: int = TIMEOUT_MS) -> list[dict[str, Json]]:
        def ask() -> list[dict[str, Json]]:
            waits = {"timeoutMs": timeout_ms, "settleMs": 0}
            return self._driver.rows("received", id=self._id, count=count, **waits)

        return await asyncio.to_thread(ask)

    async def leave(self) -> None:
        await asyncio.to_thread(self._driver.ask, "stop", id=self._id)


async def test_a_group_of_both_shares_its_topic(
    client: Client, driver: Driver, target: Target, topic: str
) -> None:
    group = f"g-{topic}"
    ours: set[str] = set()

    async def handle(message: ReceivedMessage) -> None:
        ours.add(message.message_id)

    subscription = client.subscribe(topic, group=group, start="first")
    running = asyncio.create_task(subscription.run(handle))
    java = Java(driver, target, topic, group)
    await java.join()
    queues = subscription._consumer
    await until(lambda: len(queues.assigned(topic)) == 2)
    sent = await client.send_many(
        [Message(topic, b"%d" % at) for at in range(400)],
        order_key=lambda message: message.body.decode(),
    )
    ids = {result.message_id for result in sent}
    theirs: set[str] = set()

    async def complete() -> bool:
        theirs.update(str(row["msgId"]) for row in await java.received(1))
        return ours | theirs >= ids

    async with asyncio.timeout(TIMEOUT_S):
        while not await complete():
            await asyncio.sleep(0.02)
    assert ours
    assert theirs
    # When Java leaves, its queues come to us; what it had committed does not come again.
    await java.leave()
    await until(lambda: len(queues.assigned(topic)) == 4)
    last = await client.send_many([Message(topic, b"last") for _ in range(40)])
    await until(lambda: ours >= {result.message_id for result in last})
    await subscription.close()
    await running


async def test_java_gets_what_we_send(
    client: Client, driver: Driver, target: Target, topic: str
) -> None:
    java = Java(driver, target, topic, f"g-{topic}")
    await java.join()
    sent = [
        await client.send(topic, b"plain", tag="a", keys=["k"], properties={"mine": "é"}),
        await client.send(topic, b"large" * 2_000, tag="b"),
        *await client.send_many([Message(topic, b"batch-1"), Message(topic, b"batch-2")]),
    ]
    rows = {str(row["msgId"]): row for row in await java.received(4)}
    assert set(rows) == {result.message_id for result in sent}
    # Java tells the beginning of a body, and how long it is.
    assert {(row["body"], row["bodySize"]) for row in rows.values()} == {
        ("plain", 5),
        (("large" * 2_000)[:64], 10_000),
        ("batch-1", 7),
        ("batch-2", 7),
    }
    first = rows[sent[0].message_id]
    assert (first["tags"], first["keys"]) == ("a", "k")
    properties = first["properties"]
    assert isinstance(properties, dict)
    assert properties["mine"] == "é"
    await java.leave()


async def test_we_get_what_java_sends(
    client: Client, driver: Driver, target: Target, topic: str
) -> None:
    sent = await asyncio.to_thread(driver.send, target.namesrv, topic, count=20)
    ids = {str(row["msgId"]) for row in sent}
    found: dict[str, ReceivedMessage] = {}
    async with client.subscribe(topic, group=f"g-{topic}", start="first") as subscription:
        async with asyncio.timeout(TIMEOUT_S):
            async for message in subscription:
                async with message.processing():
                    found[message.message_id] = message
                if set(found) == ids:
                    break
    assert {message.body.decode() for message in found.values()} == {
        f"{topic}-{at}" for at in range(20)
    }
