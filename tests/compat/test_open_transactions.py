"""Open transactions go with their store: from a killed CometMQ to a Java broker, and from that,
killed, back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from cometmq.admin.api import Admin
from cometmq.client.client import Client
from cometmq.client.consumer.received import MessageView
from cometmq.testing.cluster import ProcessCluster
from tests.client.scripted import eventually
from tests.client.shared_broker import fresh_topic, read_all
from tests.compat import anchor
from tests.compat.conftest import EAGER_CHECKS, SharedPeers

GROUP = "moving"


@pytest.fixture
def clusters(
    jars: Path, peers: SharedPeers, tmp_path: Path
) -> Iterator[tuple[ProcessCluster, anchor.JavaCluster]]:
    """Both kinds of brokers over one store directory."""
    peers.stop_java()
    ours = ProcessCluster(tmp_path, **EAGER_CHECKS)
    java = anchor.JavaCluster(jars, tmp_path / "java", EAGER_CHECKS, store=ours.store)
    yield ours, java
    ours.kill()
    java.kill()


class Watcher:
    """A client of the producer group that knows how some transactions ended."""

    def __init__(self, committed: set[bytes]) -> None:
        self.committed = committed
        self.asked: list[bytes] = []

    async def check(self, message: MessageView) -> bool | None:
        """Commit what is known to be committed; of the rest nothing is known."""
        self.asked.append(message.body)
        return True if message.body in self.committed else None


async def connect(stack: AsyncExitStack, namesrv: str, watcher: Watcher | None = None) -> Client:
    client = await stack.enter_async_context(Client(namesrv, send_timeout_ms=10_000))
    if watcher is not None:
        client.transaction_checker(GROUP)(watcher.check)
    return client


async def bodies(client: Client, topic: str, count: int) -> set[bytes]:
    return {message.body for message in await read_all(client, topic, count)}


async def stored(client: Client, topic: str) -> int:
    """How many messages the topic has."""
    stats = await Admin(client.session).topic_stats(topic)
    return sum(offset.max_offset for offset in stats.values())


async def test_open_transactions_move_to_a_java_broker_and_back(
    clusters: tuple[ProcessCluster, anchor.JavaCluster],
) -> None:
    ours, java = clusters
    await asyncio.to_thread(ours.start)
    async with AsyncExitStack() as stack:
        client = await connect(stack, ours.namesrv)
        topic = await fresh_topic(client)
        for body in (b"first", b"early", b"second", b"late"):
            async with client.transaction(topic, body, group=GROUP) as tx:
                if body in (b"early", b"late"):
                    tx.leave_open()
        assert await bodies(client, topic, 2) == {b"first", b"second"}
    await asyncio.to_thread(ours.kill)
    await asyncio.to_thread(java.start)
    async with AsyncExitStack() as stack:
        watcher = Watcher({b"early"})
        client = await connect(stack, java.namesrv, watcher)
        assert await bodies(client, topic, 3) == {b"first", b"second", b"early"}
        await eventually(lambda: b"late" in watcher.asked, deadline_s=30)
        assert not {b"first", b"second"} & set(watcher.asked)
        assert await stored(client, topic) == 3
    await asyncio.to_thread(java.kill)
    await asyncio.to_thread(ours.start)
    async with AsyncExitStack() as stack:
        watcher = Watcher({b"late"})
        client = await connect(stack, ours.namesrv, watcher)
        assert await bodies(client, topic, 4) == {b"first", b"second", b"early", b"late"}
        assert set(watcher.asked) == {b"late"}
        assert await stored(client, topic) == 4
        runtime = await Admin(client.session).broker_runtime(ours.broker)
        assert runtime["transactionHalfMessages"] == "0"
