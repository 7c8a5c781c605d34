"""Our ordered consumer and Java's in one group: a queue changes hands between two messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from cometmq.client.client import Client
from cometmq.client.consumer.received import ReceivedMessage
from tests.client.scripted import eventually
from tests.client.shared_broker import fresh_topic
from tests.compat.conftest import Target
from tests.compat.driver import Driver
from tests.compat.groups import Groups

DEADLINE_S = 60
#: Java asks for queues, and for their locks, every second.
SEVERAL_ROUNDS_MS = 3_000


@pytest.fixture
async def client(target: Target) -> AsyncIterator[Client]:
    async with Client(
        target.namesrv, send_timeout_ms=10_000, lock_renewal_interval_ms=1_000
    ) as client:
        yield client


@pytest.mark.runs("4.9.7-cometmq", "5.5.0-cometmq", "4.9.7-java")
async def test_a_queue_in_work_is_nobody_else_s(
    client: Client, driver: Driver, target: Target, groups: Groups
) -> None:
    topic = await fresh_topic(client)
    group = groups.make(topic)
    begun: list[tuple[int, int]] = []
    go_on = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        begun.append((message.queue.queue_id, message.queue_offset))
        await go_on.wait()

    for queue in await client.queues(topic):
        for _ in range(3):
            await client.send(topic, b"x", queue=queue)
    given = client.subscribe(topic, group=f"g-{topic}", ordered=True, start="first")
    running = asyncio.create_task(given.run(handle))
    await eventually(lambda: len(begun) == 4, deadline_s=DEADLINE_S)
    java = await asyncio.to_thread(group.join, orderly=True)
    await eventually(lambda: len(given._consumer.assigned(topic)) == 2, deadline_s=DEADLINE_S)
    waits = {"timeoutMs": SEVERAL_ROUNDS_MS, "settleMs": 0}
    assert await asyncio.to_thread(driver.rows, "received", id=java, count=1, **waits) == []
    go_on.set()
    rows = await asyncio.to_thread(group.received, java, 4)
    theirs = [(int(str(row["queueId"])), int(str(row["queueOffset"]))) for row in rows]
    await eventually(lambda: len(begun) == 8, deadline_s=DEADLINE_S)
    assert sorted([*begun, *theirs]) == [(number, at) for number in range(4) for at in range(3)]
    for number in range(4):
        offsets = [at for queue_id, at in (*begun, *theirs) if queue_id == number]
        assert offsets == [0, 1, 2]
    await given.close()
    await running
