"""Listening: busy ports, idle connections, TLS and plain remoting on one port."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import pytest
import trustme

from cometmq.core.clock import VirtualClock
from cometmq.net.peer import IDLE_LIMIT_MS, Peer
from cometmq.net.router import Reply, Router
from cometmq.net.server import IDLE_SCAN_MS, Server
from cometmq.net.tasks import Tasks
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.frame import Request
from cometmq.protocol.registry import Side
from tests.net.serving import RawClient, serving

BEAT = RequestCode.HEART_BEAT


def beat(peer: Peer, request: Request[Any]) -> Reply | None:
    return Reply(body=peer.address.encode())


async def test_a_port_in_use_is_an_error_at_once() -> None:
    async with serving({BEAT: beat}) as served:
        with pytest.raises(OSError, match="in use"):
            await served.server.listen("127.0.0.1", served.port)


async def test_idle_connections_are_closed() -> None:
    clock, tasks = VirtualClock(), Tasks()
    server = Server(Router(Side.BROKER, {BEAT: beat}, tasks=tasks), clock=clock, tasks=tasks)
    port = await server.listen("127.0.0.1", 0)
    idle = RawClient(*await asyncio.open_connection("127.0.0.1", port))
    busy = RawClient(*await asyncio.open_connection("127.0.0.1", port))
    for _ in range(IDLE_LIMIT_MS // IDLE_SCAN_MS + 2):
        busy.send(BEAT)
        await busy.frame()
        clock.advance(IDLE_SCAN_MS)
    assert await idle.closed()
    busy.send(BEAT)
    await busy.frame()
    idle.writer.close()
    busy.writer.close()
    await server.close()
    await tasks.close()


async def test_one_port_serves_tls_and_plain() -> None:
    authority = trustme.CA()
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(server_context)
    client_context = ssl.create_default_context()
    authority.configure_trust(client_context)
    async with serving({BEAT: beat}, tls=server_context) as served:
        plain = await served.connect()
        secure = RawClient(
            *await asyncio.open_connection("127.0.0.1", served.port, ssl=client_context)
        )
        for client in (plain, secure):
            client.send(BEAT, opaque=2)
            head, body = await client.frame()
            assert (head.opaque, body[:10]) == (2, b"127.0.0.1:")
        secure.writer.close()


async def test_a_silent_socket_does_not_stop_others_from_being_accepted() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    async with serving({BEAT: beat}, tls=context) as served:
        await served.connect()
        client = await served.connect()
        client.send(BEAT, opaque=1)
        assert (await client.frame())[0].opaque == 1
