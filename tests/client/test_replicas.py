"""A client of a master and its slave: who is asked while one of them cannot be reached."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from cometmq.client.client import Client
from cometmq.client.session import AVOID_MS
from cometmq.core.errors import NotConnected
from cometmq.message.model import MessageQueue
from tests.broker.replicated import group, hurry, until_copied
from tests.broker.serving import RunningBroker

QUEUE = MessageQueue("t", "broker-a", 1)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is repeated every few seconds follows at once."""
    hurry(monkeypatch)


@dataclass(frozen=True, slots=True)
class Replicated:
    """A client of a master and, where there is one, its slave, which has every message."""

    client: Client
    master: RunningBroker

    @property
    def address(self) -> str:
        """Where the master is."""
        return f"127.0.0.1:{self.master.broker.port}"

    async def lose_master(self) -> None:
        """Stop the master."""
        self.master.close_clients()
        await self.master.broker.stop()


@asynccontextmanager
async def replicated(
    root: Path, *, messages: int = 1, has_slave: bool = True
) -> AsyncIterator[Replicated]:
    """So many messages in QUEUE, with the numbers from 0 as bodies."""
    async with group(root) as made, Client(made.namesrv) as client:
        master = await made.start(0)
        sender = await master.connect()
        for number in range(messages):
            await sender.send(str(number).encode())
        if has_slave:
            await until_copied(master, await made.start(1))
        await client.session.subscribe_queues("t")
        yield Replicated(client, master)


async def test_reads_fall_over_to_the_slave_and_come_back(tmp_path: Path) -> None:
    async with replicated(tmp_path) as made:
        client = made.client
        assert await client.session.replicas.any_of(QUEUE) == made.address
        await made.lose_master()
        assert await client.puller.max_offset(QUEUE) == 1
        result = await client.puller.pull(QUEUE, 0)
        assert [message.queue_offset for message in result.messages] == [0]
        # The name server knows by now that it is gone.
        async with asyncio.timeout(60):
            while client.session.master_address("broker-a") is not None:
                await asyncio.sleep(0.01)
        with pytest.raises(NotConnected, match="no route contains a master"):
            await client.session.master_of(QUEUE)


async def test_a_pull_that_fails_sends_the_next_one_elsewhere(tmp_path: Path) -> None:
    async with replicated(tmp_path) as made:
        await made.lose_master()
        with pytest.raises(NotConnected):
            await made.client.puller.pull(QUEUE, 0)
        assert len((await made.client.puller.pull(QUEUE, 0)).messages) == 1


async def test_who_is_the_last_is_asked_though_it_failed(tmp_path: Path) -> None:
    async with replicated(tmp_path, has_slave=False) as made:
        replicas = made.client.session.replicas
        replicas.failed(made.address, "t")
        assert await replicas.any_of(QUEUE) == made.address
        assert AVOID_MS > 0
        await made.lose_master()
        with pytest.raises(NotConnected):
            await made.client.puller.max_offset(QUEUE)


async def test_a_consumer_goes_on_at_the_slave(tmp_path: Path) -> None:
    async with replicated(tmp_path, messages=5) as made:
        seen: list[bytes] = []
        async with made.client.subscribe("t", group="g", start="first") as messages:
            async for message in messages:
                seen.append(message.body)
                message.ack()
                if len(seen) == 1:
                    break
        await made.lose_master()
        async with (
            asyncio.timeout(60),
            made.client.subscribe("t", group="g", start="first") as messages,
        ):
            async for message in messages:
                seen.append(message.body)
                message.ack()
                if len(set(seen)) == 5:
                    break
        assert set(seen) == {b"0", b"1", b"2", b"3", b"4"}
