"""Two masters with a slave each: one master dies under load."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path

import pytest

from cometmq.admin.api import Admin
from cometmq.client.client import Client
from cometmq.core.clock import SystemClock
from tests.cluster.load import Load, names, until
from tests.cluster.logs import log_end
from tests.cluster.servers import BrokerProcess, NamesrvProcess

TOPIC = "orders"
RESUMED_WITHIN_MS = 3_000
READ_WITHIN_MS = 5_000


@pytest.mark.parametrize("role", ["SYNC_MASTER", "ASYNC_MASTER"])
async def test_a_master_dies_and_its_messages_are_read_from_its_slave(
    tmp_path: Path, role: str
) -> None:
    clock = SystemClock()
    with ExitStack() as stack:
        namesrv = NamesrvProcess(tmp_path)
        namesrv.start()
        stack.callback(namesrv.kill)
        brokers: dict[tuple[str, int], BrokerProcess] = {}
        for name in ("broker-a", "broker-b"):
            for number in (0, 1):
                settings = {"brokerRole": role} if number == 0 else {}
                broker = BrokerProcess(
                    tmp_path, namesrv.namesrv, name=name, number=number, settings=settings
                )
                broker.start()
                stack.callback(broker.kill)
                brokers[name, number] = broker
        async with Client(namesrv.namesrv, send_timeout_ms=10_000) as client:
            await Admin(client.session).create_topic(TOPIC, queues=4)
            load = Load(TOPIC)
            await load.send(client, 500)
            await until(lambda: log_end(brokers["broker-a", 1].store) > 0, "a copy")
            sending = asyncio.create_task(load.send(client, 6_000))
            await until(lambda: load.has_acked(2_000), "some sends")
            acked = set(load.acked)
            brokers["broker-a", 0].kill()
            killed_ms, had = clock.monotonic_ms(), len(load.acked)
            # Those that were on their way come back at once; what follows is the other master's.
            await until(lambda: load.has_acked(had + 64), "sends to the other master")
            assert clock.monotonic_ms() - killed_ms < RESUMED_WITHIN_MS
            if role == "SYNC_MASTER":
                await heard_all(namesrv.namesrv, acked)
                assert clock.monotonic_ms() - killed_ms < READ_WITHIN_MS
            await sending
        if role == "ASYNC_MASTER":
            # What the slave did not have yet when its master died is there when that is back.
            brokers["broker-a", 0].start()
        async with Client(namesrv.namesrv) as client:
            if role == "ASYNC_MASTER":
                await until_master(client)
            assert load.acked <= set(await names(client, TOPIC))


async def heard_all(name_servers: str, wanted: set[str]) -> None:
    """A consumer that comes now, and begins with the first message, is given all of these."""
    left = set(wanted)
    async with (
        Client(name_servers) as client,
        client.subscribe(TOPIC, group="late", start="first") as subscription,
        asyncio.timeout(30),
    ):
        async for message in subscription:
            left.discard(message.body[:9].decode())
            message.ack()
            if not left:
                return


async def until_master(client: Client) -> None:
    """Returns once both masters are in the route."""
    async with asyncio.timeout(30):
        while True:
            route = await client.session.route(TOPIC)
            if sum("0" in data.broker_addrs for data in route.broker_datas) == 2:
                return
            await asyncio.sleep(0.05)
