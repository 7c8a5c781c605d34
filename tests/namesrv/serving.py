"""A name server on a free loopback port, and a client that asks it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from cometmq.core.clock import Clock, SystemClock, VirtualClock
from cometmq.namesrv.app import NameServer
from cometmq.namesrv.config import NamesrvConfig
from cometmq.net.client import Remoting
from cometmq.net.tasks import Tasks
from cometmq.protocol.bodies import DataVersion, TopicConfig, TopicConfigTable
from cometmq.protocol.frame import JSON, Response
from cometmq.protocol.headers import BrokerIdentity, Header, RegisterBroker
from cometmq.protocol.registerbody import body_crc32
from tests.protocol.registering import encode


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition, at most a minute."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


def topics(*names: str, version: int = 1, queues: int = 4, **flags: int) -> TopicConfigTable:
    """A topic table; topics of `flags` have a `topicSysFlag`."""
    table = {name: TopicConfig(name, queues, queues) for name in names}
    table |= {name: TopicConfig(name, topic_sys_flag=flag) for name, flag in flags.items()}
    return TopicConfigTable(DataVersion(version, 1), table)


BROKER = BrokerIdentity("broker-a", "a:1", "c", 0)


class Asker:
    """One client of a name server."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._tasks = Tasks()
        self.remoting = Remoting(clock=SystemClock(), tasks=self._tasks)

    async def ask(
        self, code: int, header: Header | None = None, body: bytes = b"", codec: int = JSON
    ) -> Response:
        return await self.remoting.request(
            self.address, code, header, body, timeout_ms=10_000, codec=codec
        )

    async def register(
        self,
        table: TopicConfigTable,
        *,
        name: str = "broker-a",
        address: str = "a:1",
        broker_id: int = 0,
        cluster: str = "c",
        compressed: bool = False,
        filter_servers: tuple[str, ...] = (),
    ) -> Response:
        broker = BrokerIdentity(name, address, cluster, broker_id)
        header, body = self.prepare(
            table, broker, compressed=compressed, filter_servers=filter_servers
        )
        return await self.ask(103, header, body)

    @staticmethod
    def prepare(
        table: TopicConfigTable,
        broker: BrokerIdentity = BROKER,
        *,
        compressed: bool = False,
        filter_servers: tuple[str, ...] = (),
    ) -> tuple[RegisterBroker, bytes]:
        """What a registration sends."""
        body = encode(table, filter_servers, compressed=compressed)
        header = RegisterBroker(
            broker.broker_name,
            broker.broker_addr,
            broker.cluster_name,
            f"ha-{broker.broker_addr}",
            broker.broker_id,
            compressed=compressed,
            body_crc32=body_crc32(body),
        )
        return header, body

    async def close(self) -> None:
        await self.remoting.close()
        await self._tasks.close()


class Served:
    """A running name server with its virtual clock."""

    def __init__(self, server: NameServer, clock: VirtualClock, port: int) -> None:
        self.server = server
        self.clock = clock
        self.port = port
        self.address = f"127.0.0.1:{port}"
        self.askers: list[Asker] = []

    def asker(self) -> Asker:
        """Another client with a connection of its own."""
        asker = Asker(self.address)
        self.askers.append(asker)
        return asker


@asynccontextmanager
async def name_server(
    folder: Path,
    config: NamesrvConfig | None = None,
    *,
    port: int = 0,
    clock: Clock | None = None,
) -> AsyncIterator[Served]:
    """Serve on a free port, or on ``port``, until the block ends."""
    moved = VirtualClock()
    clock = clock or moved
    path = str(folder / "kvConfig.json")
    config = replace(config or NamesrvConfig(), listen_port=port, kv_config_path=path)
    server = NameServer(config, clock)
    served = Served(server, moved, await server.start())
    try:
        yield served
    finally:
        for asker in served.askers:
            await asker.close()
        await server.stop()
