"""The HTTP server's limits, and what it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from cometmq.monitoring import http
from cometmq.monitoring.http import Answer, Answering, HttpConnections

HELLO = b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n"
CLOSING = b"GET /last HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


async def echo(path: str) -> Answer:
    return Answer(200, path.encode())


@asynccontextmanager
async def serving(
    answer: Answering = echo, names: tuple[str, ...] = ()
) -> AsyncIterator[tuple[HttpConnections, int]]:
    connections = HttpConnections(answer, names)
    server = await asyncio.start_server(connections.serve, "127.0.0.1", 0)
    async with server:
        yield connections, server.sockets[0].getsockname()[1]


async def answer_to(port: int, request: bytes) -> bytes:
    """Send bytes, and return all that comes until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        async with asyncio.timeout(60):
            return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


async def test_requests_of_a_connection_are_answered_one_after_another() -> None:
    async with serving() as (connections, port):
        both = HELLO + b"GET /two?x=1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        text = await answer_to(port, both)
        assert text.count(b"HTTP/1.1 200") == 2
        assert b"/hello" in text
        assert text.endswith(b"/two")
        assert connections.requests == {200: 2}


async def test_head_has_no_body() -> None:
    async with serving() as (_, port):
        text = await answer_to(
            port, b"HEAD /hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        )
        assert b"Content-Length: 6" in text or b"content-length: 6" in text
        assert text.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", b"405"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello", b"413"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 9_000, b"431"),
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", b"413"),
    ],
)
async def test_what_is_no_plain_request_is_refused(request_: bytes, status: bytes) -> None:
    async with serving() as (_, port):
        text = await answer_to(port, request_)
        assert text.split(b" ", 2)[1] == status


@pytest.mark.parametrize(
    ("host", "status"),
    [
        (b"evil.example", b"421"),
        (b"evil.example:5557", b"421"),
        (b"127.0.0.1.evil.example", b"421"),
        (b"evil.example@localhost", b"421"),
        (b"evil.example\r\nHost: localhost", b"400"),
        (b"", b"421"),
        (b".", b"421"),
        (b"[beef]", b"421"),
        (b"\xe4vil", b"421"),
        (b"127.0.0.1:5557", b"200"),
        (b"[::1]:5557", b"200"),
        (b"10.1.2.3:5557", b"200"),
        (b"localhost:5557", b"200"),
        (b"broker-a:5557", b"200"),
        (b"Broker-A.Prod.Example:5557", b"200"),
        (b"broker-a.prod.example.:5557", b"200"),
    ],
)
async def test_only_known_hosts_are_served(host: bytes, status: bytes) -> None:
    request = b"GET /metrics HTTP/1.1\r\nHost: " + host + b"\r\nConnection: close\r\n\r\n"
    async with serving(names=("broker-a.prod.example",)) as (_, port):
        text = await answer_to(port, request)
        assert text.split(b" ", 2)[1] == status
        assert (b"/metrics" in text) == (status == b"200")


async def test_a_check_of_an_old_protocol_names_no_host() -> None:
    async with serving() as (_, port):
        assert (await answer_to(port, b"GET /healthz HTTP/1.0\r\n\r\n")).endswith(b"/healthz")


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "REQUEST_TIMEOUT_S", 0.2)
    monkeypatch.setattr(http, "IDLE_TIMEOUT_S", 0.2)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("begun", [b"", b"GET /hel"])
async def test_a_request_that_does_not_come_in_time_ends_the_connection(begun: bytes) -> None:
    async with serving() as (connections, port):
        assert await answer_to(port, begun) == b""
        assert connections.refusals == {"time": 1}


async def test_a_client_that_drips_has_no_more_time_than_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "REQUEST_TIMEOUT_S", 0.3)
    async with serving() as (connections, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        ended = asyncio.create_task(reader.read())
        for octet in HELLO * 10:
            if ended.done():
                break
            writer.write(bytes([octet]))
            await asyncio.sleep(0.05)
        assert ended.done()
        assert connections.refusals == {"time": 1}
        writer.close()


async def test_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "CONNECTIONS_MAX", 2)
    async with serving() as (connections, port):
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        for reader, writer in held:
            writer.write(HELLO)
            await reader.readuntil(b"/hello")
        assert (await answer_to(port, CLOSING)).endswith(b"/last")
        # The place was that of the connection that had waited for a request the longest.
        assert await held[0][0].read() == b""
        held[1][1].write(CLOSING)
        assert (await held[1][0].read()).endswith(b"/last")
        assert connections.refusals == {"connections": 1}
        for _, writer in held:
            writer.close()


@pytest.mark.parametrize("begun", [b"", b"GET /hel"])
async def test_held_connections_keep_nobody_out(
    begun: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "CONNECTIONS_MAX", 3)
    async with serving() as (connections, port):
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
        for _, writer in held:
            writer.write(begun)
        for _ in range(5):
            assert (await answer_to(port, CLOSING)).endswith(b"/last")
        assert connections.requests == {200: 5}
        for _, writer in held:
            writer.close()


async def test_no_request_loses_its_place_while_it_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "CONNECTIONS_MAX", 1)
    going_on = asyncio.Event()

    async def slow(path: str) -> Answer:
        await going_on.wait()
        return Answer(200, path.encode())

    async with serving(slow) as (connections, port):
        answered = asyncio.create_task(answer_to(port, CLOSING))
        async with asyncio.timeout(60):
            while not connections._open or connections._waiting:
                await asyncio.sleep(0.001)
        assert await answer_to(port, HELLO) == b""
        assert connections.refusals == {"connections": 1}
        going_on.set()
        assert (await answered).endswith(b"/last")


async def test_a_flood_is_answered_at_a_bounded_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "ANSWERS_PER_S", 50)
    monkeypatch.setattr(http, "BURST_MS", 100)
    async with serving() as (connections, port):
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        texts = await asyncio.gather(*(answer_to(port, HELLO * 9 + CLOSING) for _ in range(3)))
        assert [text.count(b"HTTP/1.1 200") for text in texts] == [10, 10, 10]
        # 30 answers, of which five were made up.
        assert loop.time() - begun_s > 0.9 * 25 / 50
        assert connections.refusals == {}
