"""Our member and Java's share a topic by each strategy that both know by name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import pytest

from cometmq.client.client import Client
from cometmq.client.consumer.options import Allocation
from tests.client.scripted import eventually
from tests.client.shared_broker import fresh_topic
from tests.compat.conftest import Target
from tests.compat.driver import Driver
from tests.compat.groups import Groups

DEADLINE_S = 60


@pytest.fixture
async def client(target: Target) -> AsyncIterator[Client]:
    async with Client(target.namesrv, rebalance_interval_ms=1_000) as client:
        yield client


@pytest.mark.runs("4.9.7-cometmq", "5.5.0-cometmq")
@pytest.mark.parametrize(
    ("theirs", "ours"), [("AVG_BY_CIRCLE", "circle"), ("CONSISTENT_HASH", "consistent-hash")]
)
async def test_shares_are_disjoint_and_whole(
    client: Client, driver: Driver, target: Target, groups: Groups, theirs: str, ours: str
) -> None:
    topic = await fresh_topic(client, queues=16)
    java = await asyncio.to_thread(groups.make(topic).join, strategy=theirs)
    allocation = cast("Allocation", ours)
    async with client.subscribe(topic, group=f"g-{topic}", allocation=allocation) as given:
        consumer = given._consumer
        await eventually(lambda: 0 < len(consumer.assigned(topic)) < 16, deadline_s=DEADLINE_S)
        async with asyncio.timeout(DEADLINE_S):
            while True:
                mine = sorted(queue.queue_id for queue in consumer.assigned(topic))
                held = await asyncio.to_thread(driver.ask, "assigned", id=java)
                if sorted([*mine, *cast("list[int]", held)]) == list(range(16)):
                    break
        if ours == "circle":
            assert len(mine) == 8
        assert held
