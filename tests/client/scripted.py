"""The other side of a client in tests: a loopback server whose answers are scripted.

It can also keep silent, break off, stop reading, and start requests of its own, which a real broker
cannot be asked to do.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from cometmq.protocol.connection import Answered, Connection, Rejected
from cometmq.protocol.frame import Request, Response, encode_response
from cometmq.protocol.headers import Header

DEADLINE_S = 60


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer; ``ext`` or ``header`` holds its fields."""

    code: int = 0
    header: Header | None = None
    body: bytes = b""
    remark: str | None = None
    ext: dict[str, str] | None = None


#: Gives the answer to a request; None keeps silent.
Script = Callable[[Request[Any]], Answer | None]


class ScriptedPeer:
    """A listening peer. Codes without a script are answered with "not supported"."""

    def __init__(self) -> None:
        self.scripts: dict[int, Script] = {}
        self.requests: list[Request[Any]] = []
        self.connections: list[ScriptedConnection] = []
        #: Where the request came from that a script is looking at.
        self.answering: ScriptedConnection
        self._server: asyncio.Server | None = None
        self.port = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def on(self, code: int, answer: Answer | Script | None) -> None:
        """Answer requests of ``code`` so from now on."""
        self.scripts[code] = answer if callable(answer) else (lambda _: answer)

    def received(self, code: int) -> list[Request[Any]]:
        """Requests of ``code`` so far."""
        return [request for request in self.requests if request.code == code]

    async def listen(self, port: int = 0) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: ScriptedConnection(self), "127.0.0.1", port)
        self.port = self._server.sockets[0].getsockname()[1]

    def break_off(self) -> None:
        """Cut every connection, and go on listening."""
        for connection in self.connections:
            connection.transport.abort()
        self.connections.clear()

    async def close(self) -> None:
        """Cut every connection and stop listening."""
        if self._server is not None:
            self._server.close()
        self.break_off()
        if self._server is not None:
            await self._server.wait_closed()
            self._server = None


class ScriptedConnection(asyncio.Protocol):
    """One accepted connection."""

    def __init__(self, peer: ScriptedPeer) -> None:
        self._peer = peer
        self._protocol: Connection[asyncio.Future[Response]] = Connection()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._peer.connections.append(self)

    def data_received(self, data: bytes) -> None:
        self._protocol.receive_data(data)
        for event in self._protocol.next_events(1_000_000):
            if isinstance(event, Answered):
                event.token.set_result(event.response)
            elif not isinstance(event, Rejected):
                self._peer.requests.append(event)
                self.answer(event)

    def answer(self, request: Request[Any], answer: Answer | None = None) -> None:
        """Answer a request, by its script when no answer is given."""
        if answer is None:
            self._peer.answering = self
            script = self._peer.scripts.get(request.code)
            answer = script(request) if script else Answer(3, remark="not supported")
        if answer is None or request.oneway or self.transport.is_closing():
            return
        head = encode_response(
            request,
            answer.code,
            header=answer.header,
            ext=answer.ext,
            remark=answer.remark,
            body_bytes=len(answer.body),
        )
        self.transport.write(head + answer.body)

    async def ask(
        self,
        code: int,
        header: Header,
        body: bytes = b"",
        *,
        extra: Mapping[str, str] | None = None,
    ) -> Response:
        """Start a request of this side's own and wait for its answer."""
        answered: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        _, head = self._protocol.encode_request(
            code, header, answered, 1 << 62, extra=dict(extra or {}), body_bytes=len(body)
        )
        self.transport.write(head + body)
        async with asyncio.timeout(DEADLINE_S):
            return await answered

    def tell(self, code: int, header: Header, body: bytes = b"") -> None:
        """Start a one-way request."""
        head = self._protocol.encode_oneway(code, header, body_bytes=len(body))
        self.transport.write(head + body)


@asynccontextmanager
async def scripted_peer() -> AsyncIterator[ScriptedPeer]:
    """A listening peer for one test."""
    peer = ScriptedPeer()
    await peer.listen()
    try:
        yield peer
    finally:
        await peer.close()


async def eventually(
    condition: Callable[[], object], what: str = "condition", *, deadline_s: float = DEADLINE_S
) -> None:
    """Wait until ``condition`` is true, looking again whenever the loop had a turn."""
    try:
        async with asyncio.timeout(deadline_s):
            while not condition():
                await asyncio.sleep(0.002)
    except TimeoutError:
        raise AssertionError(f"{what} did not come true within {deadline_s} s") from None
