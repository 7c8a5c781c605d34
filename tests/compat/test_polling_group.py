"""Our consumer that polls and Java's lite pull consumer in one group, on both brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from cometmq.admin.api import Admin
from cometmq.client.client import Client
from cometmq.client.consumer.pullconsumer import PullConsumer
from cometmq.message.model import Message, MessageQueue
from tests.client.scripted import eventually
from tests.client.shared_broker import fresh_name, fresh_topic
from tests.compat.conftest import Target
from tests.compat.driver import Driver, Json
from tests.compat.lines import proves

DEADLINE_S = 60


@pytest.fixture
async def client(target: Target) -> AsyncIterator[Client]:
    async with Client(target.namesrv, send_timeout_ms=10_000) as client:
        yield client


@pytest.fixture
async def topic(client: Client) -> str:
    return await fresh_topic(client)


async def poll_until(consumer: PullConsumer, found: set[bytes], count: int) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while len(found) < count:
            found.update(message.body for message in await consumer.poll(timeout_ms=200))


async def until_committed(client: Client, group: str, topic: str, wanted: dict[int, int]) -> None:
    """Return once the broker has these offsets of the group, by queue."""
    admin = Admin(client.session)
    async with asyncio.timeout(DEADLINE_S):
        while True:
            known = await admin.group_offsets(group, topic)
            found = {queue.queue_id: offset for queue, offset in known.items()}
            if wanted.items() <= found.items():
                return
            await asyncio.sleep(0.05)


@proves("lite pull, subscribed")
async def test_a_group_of_both_shares_its_topic_and_takes_over(
    client: Client, driver: Driver, target: Target, topic: str
) -> None:
    group, java = f"g-{topic}", fresh_name("lite")
    ours: set[bytes] = set()

    async def ask(step: str, **arguments: object) -> Json:
        return await asyncio.to_thread(driver.ask, step, id=java, **arguments)

    async def send(prefix: str) -> set[bytes]:
        messages = [Message(topic, f"{prefix}-{at}".encode()) for at in range(80)]
        await client.send_many(messages, order_key=lambda message: message.body.decode())
        return {message.body for message in messages}

    async with client.pull_consumer(topic, group=group, start="first") as consumer:
        await eventually(lambda: len(consumer.assignment()) == 4, deadline_s=DEADLINE_S)
        await ask("lite", namesrv=target.namesrv, group=group, topic=topic)
        await eventually(lambda: len(consumer.assignment()) == 2, deadline_s=DEADLINE_S)
        mine = {queue.queue_id for queue in consumer.assignment()}
        sent = await send("both")
        rows = await ask("litePoll", count=20, timeoutMs=DEADLINE_S * 1000)
        assert isinstance(rows, list)
        theirs = {str(row["body"]).encode() for row in rows if isinstance(row, dict)}
        assert {row["queueId"] for row in rows if isinstance(row, dict)}.isdisjoint(mine)
        # What it committed is not given again when its queues come to us, the rest is.
        held = [queue for queue in range(4) if queue not in mine]
        place = {"topic": topic, "broker": target.broker_name, "queues": held}
        committed = await ask("liteCommit", **place)
        assert isinstance(committed, list)
        # A Java client does not wait for the answer.
        pairs = zip(held, (int(str(offset)) for offset in committed), strict=True)
        done = {queue: offset for queue, offset in pairs if offset > 0}
        await until_committed(client, group, topic, done)
        await ask("liteStop")
        await eventually(lambda: len(consumer.assignment()) == 4, deadline_s=DEADLINE_S)
        await poll_until(consumer, ours, len(sent - theirs))
        sent |= await send("alone")
        await poll_until(consumer, ours, len(sent - theirs))
    assert ours | theirs == sent
    assert len(ours & theirs) == 0
    offsets = await Admin(client.session).group_offsets(group, topic)
    ends = {queue: await client.puller.max_offset(queue) for queue in offsets}
    assert offsets == ends


@proves("lite pull, assigned; seek and pause")
async def test_queues_are_assigned_moved_in_and_committed(
    client: Client, target: Target, topic: str
) -> None:
    queues = await client.queues(topic)
    for at in range(10):
        await client.send(topic, b"%d" % at, queue=queues[at % 2])
    group = f"g-{topic}"
    async with client.pull_consumer(group=group, start="first", auto_commit=False) as consumer:
        await consumer.assign(queues[:2])
        found: set[bytes] = set()
        await poll_until(consumer, found, 10)
        await consumer.seek(queues[0], 3)
        consumer.pause(queues[1])
        assert [each.body for each in await consumer.poll()] == [b"6", b"8"]
        assert await consumer.poll(timeout_ms=50) == []
        await consumer.commit({queues[0]: 4})
        await consumer.seek_to_begin()
        assert (consumer.position(queues[0]), await consumer.committed(queues[0])) == (0, 4)
    async with client.pull_consumer(group=group, auto_commit=False) as again:
        await again.assign([queues[0]])
        assert again.position(queues[0]) == 4


async def test_moments_are_found_to_the_message(client: Client, topic: str) -> None:
    queue: MessageQueue = (await client.queues(topic))[0]
    now_ms = client.session.clock.wall_ms
    for _ in range(4):  # three at about a moment, then the next ones
        for at in range(3):
            await client.send(topic, b"%d" % at, queue=queue)
        next_ms = now_ms() + 5
        await eventually(lambda moment=next_ms: now_ms() > moment)  # type: ignore[misc]
    stored = [
        message.store_ms
        async for part in client.puller.read_range(queue, 0, 12)
        for message in part
    ]
    for moment in {*stored, stored[0] - 1, stored[-1] + 1, *(each + 1 for each in stored)}:
        expected = next((at for at, ms in enumerate(stored) if ms >= moment), 12)
        assert await client.puller.offset_at(queue, moment) == expected
