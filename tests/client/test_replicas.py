"""A client of a master and its slave: who is asked while one of them cannot be reached."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cometmq.client.client import Client
from cometmq.client.replicas import AVOID_MS
from cometmq.core.errors import NotConnected
from cometmq.message.model import MessageQueue
from tests.broker.replicated import group, hurry, until_copied

QUEUE = MessageQueue("t", "broker-a", 1)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is repeated every few seconds follows at once."""
    hurry(monkeypatch)


async def test_reads_fall_over_to_the_slave_and_come_back(tmp_path: Path) -> None:
    async with group(tmp_path) as made, Client(made.namesrv) as client:
        master = await made.start(0)
        await (await master.connect()).send()
        slave = await made.start(1)
        await until_copied(master, slave)
        await client.session.subscribe_queues("t")
        replicas = client.session.replicas
        assert await replicas.any_of(QUEUE) == f"127.0.0.1:{master.broker.port}"
        master.close_clients()
        await master.broker.stop()
        assert await client.puller.max_offset(QUEUE) == 1
        result = await client.puller.pull(QUEUE, 0)
        assert [message.queue_offset for message in result.messages] == [0]
        # The name server knows by now that it is gone.
        async with asyncio.timeout(10):
            while client.session.master_address("broker-a") is not None:
                await asyncio.sleep(0.01)
        with pytest.raises(NotConnected, match="no route names a master"):
            await client.session.master_of(QUEUE)


async def test_a_pull_that_fails_sends_the_next_one_elsewhere(tmp_path: Path) -> None:
    async with group(tmp_path) as made, Client(made.namesrv) as client:
        master = await made.start(0)
        await (await master.connect()).send()
        slave = await made.start(1)
        await until_copied(master, slave)
        await client.session.subscribe_queues("t")
        master.close_clients()
        await master.broker.stop()
        with pytest.raises(NotConnected):
            await client.puller.pull(QUEUE, 0)
        assert len((await client.puller.pull(QUEUE, 0)).messages) == 1


async def test_who_is_the_last_is_asked_though_it_failed(tmp_path: Path) -> None:
    async with group(tmp_path) as made, Client(made.namesrv) as client:
        master = await made.start(0)
        await (await master.connect()).send()
        await client.session.subscribe_queues("t")
        address = f"127.0.0.1:{master.broker.port}"
        client.session.replicas.failed(address, "t")
        assert await client.session.replicas.any_of(QUEUE) == address
        assert AVOID_MS > 0
        master.close_clients()
        await master.broker.stop()
        with pytest.raises(NotConnected):
            await client.puller.max_offset(QUEUE)


async def test_a_consumer_goes_on_at_the_slave(tmp_path: Path) -> None:
    async with group(tmp_path) as made, Client(made.namesrv) as client:
        master = await made.start(0)
        sender = await master.connect()
        for number in range(5):
            await sender.send(str(number).encode())
        slave = await made.start(1)
        await until_copied(master, slave)
        seen: list[bytes] = []
        async with client.subscribe("t", group="g", start="first") as messages:
            async for message in messages:
                seen.append(message.body)
                message.ack()
                if len(seen) == 1:
                    break
        master.close_clients()
        await master.broker.stop()
        async with (
            asyncio.timeout(20),
            client.subscribe("t", group="g", start="first") as messages,
        ):
            async for message in messages:
                seen.append(message.body)
                message.ack()
                if len(set(seen)) == 5:
                    break
        assert set(seen) == {b"0", b"1", b"2", b"3", b"4"}
