"""Exactly once: processes are killed at any point, and each message is one row."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random

import psycopg
import pytest

from cometmq.client.client import Client
from cometmq.message.model import Message
from cometmq.testing.cluster import Cluster
from examples.services import exactly_once
from tests.client.scripted import eventually
from tests.client.shared_broker import fresh_topic
from tests.examples.services.conftest import service, terminate

EACH_ROUND = 300


def payments(conninfo: str) -> Counter[int]:
    """How often each payment is in the database."""
    with psycopg.connect(conninfo) as database:
        return Counter(n for (n,) in database.execute("SELECT number FROM payments"))


@pytest.fixture
def bank(postgres: str) -> str:
    with psycopg.connect(postgres) as database:
        database.execute("DROP TABLE IF EXISTS positions; DROP TABLE IF EXISTS payments;")
        database.execute(exactly_once.TABLES)
    return postgres


async def kill_rounds(rounds: int, namesrv: str, bank: str) -> None:
    """Kill one of two members in each round, at any moment, while messages are sent."""
    random = Random()
    async with Client(namesrv, send_timeout_ms=10_000) as client:
        topic = await fresh_topic(client)
        words = ("examples.services.exactly_once", namesrv, topic, bank)
        sent = 0
        with service(*words) as steady:
            for _ in range(rounds):
                before = payments(bank).total()
                with service(*words) as member:
                    await client.send_many(
                        [Message(topic, b"%d" % n) for n in range(sent, sent + EACH_ROUND)]
                    )
                    sent += EACH_ROUND
                    share = before + random.randrange(EACH_ROUND)
                    await eventually(lambda at=share: payments(bank).total() >= at, deadline_s=60)  # type: ignore[misc]
                    (steady if random.random() < 0.3 else member).kill()
                    if steady.poll() is not None or random.random() < 0.3:
                        member.kill()
            steady.kill()
            steady.wait()
        # One that nobody but the last can write: it handles SIGTERM by then.
        await client.send(Message(topic, b"%d" % sent))
        sent += 1
        with service(*words) as last:
            await eventually(lambda: len(payments(bank)) == sent, deadline_s=60)
            assert terminate(last) == (0, "")
    assert payments(bank) == Counter(range(sent))


async def test_kills_change_nothing(cometmq_session_cluster: Cluster, bank: str) -> None:
    await kill_rounds(5, cometmq_session_cluster.namesrv, bank)


@pytest.mark.deep
async def test_many_kills_change_nothing(cometmq_session_cluster: Cluster, bank: str) -> None:
    await kill_rounds(25, cometmq_session_cluster.namesrv, bank)


async def test_two_that_think_that_the_queues_are_theirs(
    cometmq_session_cluster: Cluster, bank: str
) -> None:
    await fenced(cometmq_session_cluster.namesrv, bank)


async def fenced(namesrv: str, bank: str) -> None:
    """Let three consumers read all queues side by side, as after a rebalance that two of them
    missed."""
    count = 400
    stopping = asyncio.Event()
    async with Client(namesrv, send_timeout_ms=10_000) as client:
        topic = await fresh_topic(client)
        queues = await client.queues(topic)
        await client.send_many([Message(topic, b"%d" % number) for number in range(count)])
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                consumer = client.pull_consumer(
                    group=f"{topic}-bank", start="first", auto_commit=False
                )
                await consumer.assign(queues)
                group.create_task(exactly_once.consume(consumer, bank, stopping))
            await eventually(lambda: payments(bank).total() >= count, deadline_s=60)
            stopping.set()
    assert payments(bank) == Counter(range(count))
