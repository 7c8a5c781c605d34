"""Listening: busy ports, idle connections, TLS and plain remoting on one port."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trustme
import uvloop

from cometmq.core.clock import SystemClock, VirtualClock
from cometmq.net import server as server_module
from cometmq.net.eventloop import Watchdog
from cometmq.net.peer import Peer
from cometmq.net.resources import Connections, MemoryBudget
from cometmq.net.router import Router
from cometmq.net.server import IDLE_SCAN_MS, Server
from cometmq.net.tasks import Tasks
from cometmq.net.tls import ServerTls
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.frame import FLAG_RESPONSE, Reply, Request, encode_head
from cometmq.protocol.registry import Side
from tests.net.serving import RawClient, serving, tls_settings, until

BEAT = RequestCode.HEART_BEAT
#: Its handlers are coroutines.
INFO = RequestCode.GET_BROKER_RUNTIME_INFO


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
    for _ in range(120_000 // IDLE_SCAN_MS + 2):
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


async def test_a_drained_server_answers_what_it_received_and_reads_no_more() -> None:
    going_on = asyncio.Event()

    async def slow(peer: Peer, request: Request[Any]) -> Reply:
        await going_on.wait()
        return Reply(body=b"late")

    async with serving({INFO: slow}) as served:
        client, other = await served.connect(), await served.connect()
        client.send(INFO, opaque=1)
        await until(lambda: any(peer.is_serving for peer in served.server.peers))
        draining = asyncio.create_task(served.server.drain(lambda: True, 10_000))
        await until(lambda: not any(peer.is_reading for peer in served.server.peers))
        other.send(INFO, opaque=2)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", served.port)
        assert not draining.done()
        going_on.set()
        assert await draining
        head, body = await client.frame()
        assert (head.opaque, body) == (1, b"late")
        await served.server.close()
        assert await other.closed()


async def test_a_drained_server_waits_for_a_client_that_reads_late() -> None:
    size = 12 << 20  # more than the system keeps between the two

    def large(peer: Peer, request: Request[Any]) -> Reply:
        return Reply(body=bytes(size))

    async with serving({BEAT: large}) as served:
        client = await served.connect()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.send(BEAT, opaque=1)
        (peer,) = await connected(served.server)
        await until(lambda: peer.buffered_bytes and not peer.is_receiving)
        assert not await served.server.drain(lambda: True, 300)
        draining = asyncio.create_task(served.server.drain(lambda: True, 20_000))
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        head, body = await client.frame()
        assert await draining
        assert (head.opaque, len(body)) == (1, size)


async def connected(server: Server) -> list[Peer]:
    """Wait for a peer and return all."""
    await until(lambda: server.peers)
    return list(server.peers)


async def test_a_drain_ends_at_its_limit() -> None:
    async def never(peer: Peer, request: Request[Any]) -> Reply | None:
        await asyncio.Event().wait()
        return None

    async with serving({INFO: never}) as served:
        assert await served.server.drain(lambda: True, 0)
        assert not await served.server.drain(lambda: False, 20)
    async with serving({INFO: never}) as served:
        client = await served.connect()
        client.send(INFO)
        await until(lambda: any(peer.is_serving for peer in served.server.peers))
        assert not await served.server.drain(lambda: True, 20)


def test_a_socket_of_a_drained_server_is_given_up_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The number of the listening socket may belong to another connection at once."""

    async def run() -> None:
        async with (
            serving({BEAT: beat}) as other,
            serving({BEAT: beat}, tls=ServerTls(tls_settings(tmp_path, trustme.CA()))) as served,
        ):
            await asyncio.sleep(0)  # it accepts
            assert await served.server.drain(lambda: True, 0)
            for opaque in range(3):
                client = await other.connect()
                client.send(BEAT, opaque=opaque)
                assert (await client.frame())[0].opaque == opaque

    for factory in (asyncio.new_event_loop, uvloop.new_event_loop):
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(run())
    assert "failed" not in caplog.text


async def test_a_connection_that_is_opening_during_a_drain_is_not_served(tmp_path: Path) -> None:
    """Neither one that has sent nothing nor one within its TLS handshake."""
    authority, served_requests = trustme.CA(), []
    context = ssl.create_default_context()
    authority.configure_trust(context)

    def count(peer: Peer, request: Request[Any]) -> Reply | None:
        served_requests.append(request)
        return Reply()

    tls = ServerTls(tls_settings(tmp_path, authority))
    async with serving({BEAT: count}, tls=tls) as served:
        silent, secure = await served.connect(), await served.connect()
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        shaking = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
        with pytest.raises(ssl.SSLWantReadError):
            shaking.do_handshake()
        secure.writer.write(outgoing.read())
        incoming.write(await secure.reader.read(1 << 16))
        await until(lambda: served.server.open_connections == 2)
        assert await served.server.drain(lambda: True, 0)
        silent.send(BEAT)
        assert await silent.closed()
        shaking.do_handshake()
        shaking.write(encode_head(code=BEAT, opaque=1, flag=0, ext={}))
        secure.writer.write(outgoing.read())
        with contextlib.suppress(ConnectionError):
            while await secure.reader.read(1 << 16):
                pass  # until the server closes
    assert served_requests == []


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_silent_tls_client_does_not_delay_the_end_of_the_loop(
    factory: Callable[[], asyncio.AbstractEventLoop], tmp_path: Path
) -> None:
    """It never answers the end of its connection, as a Spark worker that waits for a task."""
    authority = trustme.CA()
    context = ssl.create_default_context()
    authority.configure_trust(context)
    tls = ServerTls(tls_settings(tmp_path, authority))

    def connect(port: int) -> ssl.SSLSocket:
        plain = socket.create_connection(("127.0.0.1", port))
        client = context.wrap_socket(plain, server_hostname="127.0.0.1")
        client.sendall(encode_head(code=BEAT, opaque=1, flag=0, ext={}))
        assert client.recv(4)
        return client

    async def run() -> ssl.SSLSocket:
        async with serving({BEAT: beat}, tls=tls) as served:
            return await asyncio.to_thread(connect, served.port)

    clock = SystemClock()
    begun_ms = clock.monotonic_ms()
    with asyncio.Runner(loop_factory=factory) as runner:
        client = runner.run(run())
    assert clock.monotonic_ms() - begun_ms < 10_000
    client.close()


async def test_one_port_serves_tls_and_plain(tmp_path: Path) -> None:
    authority = trustme.CA()
    client_context = ssl.create_default_context()
    authority.configure_trust(client_context)
    async with serving({BEAT: beat}, tls=ServerTls(tls_settings(tmp_path, authority))) as served:
        plain = await served.connect()
        secure = RawClient(
            *await asyncio.open_connection("127.0.0.1", served.port, ssl=client_context)
        )
        for client in (plain, secure):
            client.send(BEAT, opaque=2)
            head, body = await client.frame()
            assert (head.opaque, body[:10]) == (2, b"127.0.0.1:")
        secure.writer.close()


async def test_a_silent_socket_does_not_stop_others_from_being_accepted(tmp_path: Path) -> None:
    tls = ServerTls(tls_settings(tmp_path, trustme.CA()))
    async with serving({BEAT: beat}, tls=tls) as served:
        await served.connect()
        client = await served.connect()
        client.send(BEAT, opaque=1)
        assert (await client.frame())[0].opaque == 1


async def test_connections_beyond_the_bound_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "max_connections", lambda: 2)
    monkeypatch.setattr(server_module, "PROCESS", Connections())
    async with serving({BEAT: beat}) as served:
        clients = [await served.connect() for _ in range(2)]
        for client in clients:
            client.send(BEAT)
            await client.frame()
        extra = await served.connect()
        assert await extra.closed()
        clients[0].send(BEAT, opaque=5)
        assert (await clients[0].frame())[0].opaque == 5


async def test_the_connection_that_holds_most_is_closed_when_all_hold_too_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_module, "SHED_SCAN_MS", 5)
    async with serving({BEAT: beat}, budget=MemoryBudget(100_000)) as served:
        small, large = await served.connect(), await served.connect()
        for client, size in ((small, 20_000), (large, 200_000)):
            head = encode_head(code=BEAT, opaque=1, flag=0, ext={}, body_bytes=1 << 20)
            client.writer.write(head + bytes(size))
        assert await large.closed()
        assert len(served.server.peers) == 1


class CountingTurns(Watchdog):
    """Counts turns by what took them."""

    def __init__(self) -> None:
        super().__init__()
        self.turns: Counter[str] = Counter()

    def turn(self, handler: str, took_ns: int) -> None:
        self.turns[handler] += 1


async def test_what_a_server_says_to_its_peers_leaves_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cometmq.net.peer.SHORT_NS", -1)  # the watchdog hears of all
    tasks, watchdog = Tasks(), CountingTurns()
    router = Router(Side.BROKER, {BEAT: beat}, tasks=tasks)
    server = Server(router, clock=SystemClock(), tasks=tasks, watchdog=watchdog)
    port = await server.listen("127.0.0.1", 0)
    clients = [RawClient(*await asyncio.open_connection("127.0.0.1", port)) for _ in range(3)]
    for client in clients:
        client.send(BEAT)
        await client.frame()
    watchdog.turns.clear()
    for peer in server.peers:
        peer.write(encode_head(code=0, opaque=5, flag=FLAG_RESPONSE, ext={}))
        peer.write(b"")
    await asyncio.sleep(0)
    assert watchdog.turns == {"flush": 1}
    for client in clients:
        assert (await client.frame())[0].opaque == 5
        client.writer.close()
    await server.close()
    await tasks.close()
