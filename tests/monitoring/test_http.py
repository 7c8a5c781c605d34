"""The HTTP server's limits, and what it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from cometmq.monitoring import http
from cometmq.monitoring.http import Answer, HttpConnections

HELLO = b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n"


async def echo(path: str) -> Answer:
    return Answer(200, path.encode())


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[HttpConnections, int]]:
    connections = HttpConnections(echo)
    server = await asyncio.start_server(connections.serve, "127.0.0.1", 0)
    async with server:
        yield connections, server.sockets[0].getsockname()[1]


async def answer_to(port: int, request: bytes) -> bytes:
    """Send bytes, and return all that comes until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        async with asyncio.timeout(10):
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
        assert await answer_to(port, HELLO) == b""
        assert connections.refusals == {"connections": 1}
        held[0][1].close()
        closing = b"GET /again HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        async with asyncio.timeout(10):
            while b"/again" not in await answer_to(port, closing):
                await asyncio.sleep(0.01)
        held[1][1].close()
