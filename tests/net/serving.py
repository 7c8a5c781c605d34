"""A server on a free loopback port with a few handlers, and a raw client that speaks bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import trustme

from cometmq.core.clock import SystemClock
from cometmq.net.router import Handler, Router
from cometmq.net.server import Server
from cometmq.net.tasks import Tasks
from cometmq.net.tls import TlsMode, TlsSettings
from cometmq.protocol.frame import Head, decode_head, encode_head
from cometmq.protocol.framer import Framer
from cometmq.protocol.registry import Side


class RawClient:
    """Writes what it is told and reads whole frames, with a deadline on every read."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._framer = Framer()
        self._frames: list[tuple[Head, bytes]] = []

    def send(self, code: int, *, opaque: int = 0, flag: int = 0, **ext: str) -> None:
        self.writer.write(encode_head(code=code, opaque=opaque, flag=flag, ext=ext))

    async def frame(self) -> tuple[Head, bytes]:
        """The next frame. Raises EOFError when the server closes instead."""
        while not self._frames:
            async with asyncio.timeout(60):
                data = await self.reader.read(1 << 16)
            if not data:
                raise EOFError("closed by the server")
            self._framer.receive_data(data)
            self._frames += [
                (decode_head(raw.codec, raw.header), raw.body) for raw in self._framer.take(1000)
            ]
        return self._frames.pop(0)

    async def closed(self) -> bool:
        """True once the server has closed this connection."""
        try:
            await self.frame()
        except (EOFError, ConnectionError):
            return True
        return False


class Served:
    """A running server and what a test needs of it."""

    def __init__(self, server: Server, router: Router, tasks: Tasks, port: int) -> None:
        self.server = server
        self.router = router
        self.tasks = tasks
        self.port = port
        self._clients: list[RawClient] = []

    async def connect(self) -> RawClient:
        client = RawClient(*await asyncio.open_connection("127.0.0.1", self.port))
        self._clients.append(client)
        return client

    async def close(self) -> None:
        for client in self._clients:
            client.writer.close()
        await self.server.close()
        await self.tasks.close()


@asynccontextmanager
async def serving(
    handlers: Mapping[int, Handler], side: Side = Side.BROKER, **options: Any
) -> AsyncIterator[Served]:
    """Serve ``handlers`` on a free port until the block ends."""
    tasks = Tasks()
    router = Router(side, handlers, tasks=tasks, remote_admin=options.pop("remote_admin", False))
    server = Server(router, clock=SystemClock(), tasks=tasks, **options)
    served = Served(server, router, tasks, await server.listen("127.0.0.1", 0))
    try:
        yield served
    finally:
        await served.close()


async def until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


async def until_still(value: Callable[[], int]) -> None:
    """Wait until a number has not changed for a while."""
    same, last = 0, value()
    async with asyncio.timeout(60):
        while same < 50:
            await asyncio.sleep(0.002)
            now = value()
            same, last = (same + 1 if now == last else 0), now


def tls_settings(folder: Path, authority: trustme.CA, **changes: Any) -> TlsSettings:
    """Write a certificate for 127.0.0.1 and return settings with it: plain connections are served,
    too, unless ``changes`` say otherwise."""
    issued = authority.issue_cert("127.0.0.1")
    cert, key, trust = (folder / name for name in ("server.pem", "server.key", "ca.pem"))
    issued.cert_chain_pems[0].write_to_path(cert)
    issued.private_key_pem.write_to_path(key)
    authority.cert_pem.write_to_path(trust)
    found = TlsSettings(TlsMode.PERMISSIVE, str(cert), str(key), str(trust))
    return replace(found, **changes)
