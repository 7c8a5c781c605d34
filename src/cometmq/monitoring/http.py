"""A small HTTP server for GET and HEAD without bodies, built on h11 and asyncio.

There are limits for the number of connections, the size and duration of a request, the time to read
an answer, and the pause between two requests. A connection that exceeds a limit is closed and
counted. If there are too many connections, a new one replaces the one that has waited longest for a
request, so that no client can keep a kubelet or Prometheus out by holding connections open.
Requests beyond a rate are answered later: the port's thread shares the interpreter with the
servers, and each answer costs them time.

The Host header of a request must name a known host, so that no web site can read the port through a
browser in the network (DNS rebinding). Any name without a dot is accepted, because Prometheus
addresses services by such names. A request without a Host header is accepted too: it comes from an
HTTP/1.0 health check, not from a browser.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, NamedTuple

import h11

from cometmq.core.clock import SystemClock
from cometmq.net.hostheader import host_names, is_known_host

CONNECTIONS_MAX: Final = 32
REQUEST_MAX_BYTES: Final = 8_192
REQUEST_TIMEOUT_S: Final = 10
IDLE_TIMEOUT_S: Final = 120
WRITE_TIMEOUT_S: Final = 30
#: Rate limit of answers, and the time for which unused ones accumulate.
ANSWERS_PER_S: Final = 200
BURST_MS: Final = 250
TEXT: Final = "text/plain; charset=utf-8"
_READ_BYTES: Final = 4_096


class Answer(NamedTuple):
    """Answer to a request."""

    status: int
    body: bytes
    content_type: str = TEXT


_MISDIRECTED: Final = Answer(
    421, b"not known by that name: use an address, or add the name to metricsPromExporterNames\n"
)

#: Returns the answer to a GET of a path.
Answering = Callable[[str], Awaitable[Answer]]


class HttpConnections:
    """The connections of one listening socket.

    ``requests`` counts answers by status. ``refusals`` counts closed connections by the limit that
    they exceeded. ``names`` are the host names with a dot that a Host header may contain.
    """

    def __init__(self, answer: Answering, names: Iterable[str] = ()) -> None:
        self._answer = answer
        self._names = host_names(names)
        self._open: set[asyncio.StreamWriter] = set()
        #: The open connections that wait for a request, the longest waiting first.
        self._waiting: dict[asyncio.StreamWriter, None] = {}
        # Not the servers' clock: this is another event loop.
        self._clock = SystemClock()
        self._turn_ms = 0.0
        self.requests: Counter[int] = Counter()
        self.refusals: Counter[str] = Counter()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection, one after another."""
        if len(self._open) >= CONNECTIONS_MAX:
            self.refusals["connections"] += 1
            refused = next(iter(self._waiting), writer)
            self._leave(refused)
            refused.transport.abort()
            if refused is writer:
                return
        self._open.add(writer)
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=REQUEST_MAX_BYTES)
        try:
            idle_timeout_s = REQUEST_TIMEOUT_S  # shorter until the first request
            while await self._serve_one(connection, reader, writer, idle_timeout_s):
                connection.start_next_cycle()
                idle_timeout_s = IDLE_TIMEOUT_S
            writer.close()
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                await writer.wait_closed()
        except TimeoutError:
            self.refusals["time"] += 1
            writer.transport.abort()
        except OSError:
            writer.transport.abort()
        except BaseException:
            writer.transport.abort()
            raise
        finally:
            self._leave(writer)

    def _leave(self, writer: asyncio.StreamWriter) -> None:
        self._open.discard(writer)
        self._waiting.pop(writer, None)

    async def _answer_to(self, request: h11.Request) -> Answer:
        hosts = [value for name, value in request.headers if name == b"host"]
        if not all(
            is_known_host(host.decode("ascii", "replace"), self._names, short_names=True)
            for host in hosts
        ):
            return _MISDIRECTED
        if request.method not in (b"GET", b"HEAD"):
            return Answer(405, b"only GET and HEAD are served\n")
        return await self._answer(request.target.partition(b"?")[0].decode("ascii", "replace"))

    async def _take_turn(self) -> None:
        """Wait until another request may be answered."""
        now_ms = self._clock.monotonic_ms()
        self._turn_ms = max(self._turn_ms + 1_000 / ANSWERS_PER_S, now_ms - BURST_MS)
        if self._turn_ms > now_ms:
            await self._clock.sleep_ms(self._turn_ms - now_ms)

    async def _serve_one(
        self,
        connection: h11.Connection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        idle_timeout_s: float,
    ) -> bool:
        """Answer one request; return whether another one may follow."""
        self._waiting[writer] = None
        request, answer = None, None
        try:
            request = await _next_request(connection, reader, idle_timeout_s)
        except h11.RemoteProtocolError as error:
            answer = Answer(error.error_status_hint, f"{error}\n".encode())
        self._waiting.pop(writer, None)
        if writer.is_closing():
            return False  # a new connection has replaced this one
        if answer is not None:
            self.refusals["request"] += 1
            if connection.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
                return False
        elif request is None:
            return False
        await self._take_turn()
        if request is not None:
            answer = await self._answer_to(request)
        assert answer is not None
        self.requests[answer.status] += 1
        headers = [
            ("Content-Type", answer.content_type),
            ("Content-Length", str(len(answer.body))),
        ]
        events: list[h11.Event] = [h11.Response(status_code=answer.status, headers=headers)]
        if request is None or request.method != b"HEAD":
            events.append(h11.Data(data=answer.body))
        for event in (*events, h11.EndOfMessage()):
            writer.write(connection.send(event) or b"")
        async with asyncio.timeout(WRITE_TIMEOUT_S):
            await writer.drain()
        return connection.our_state is h11.DONE and connection.their_state is h11.DONE


async def _next_request(
    connection: h11.Connection, reader: asyncio.StreamReader, idle_timeout_s: float
) -> h11.Request | None:
    """Return the next request; None if the client closed the connection.

    The request must begin within ``idle_timeout_s``. Raises TimeoutError if it does not arrive in
    time, and h11.RemoteProtocolError if it is malformed or has a body.
    """
    request: h11.Request | None = None
    has_begun = bool(connection.trailing_data[0])
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(REQUEST_TIMEOUT_S if has_begun else idle_timeout_s) as deadline:
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                data = await reader.read(_READ_BYTES)
                if not has_begun:
                    has_begun = True
                    deadline.reschedule(loop.time() + REQUEST_TIMEOUT_S)
                connection.receive_data(data)
            elif isinstance(event, h11.Request):
                request = event
            elif isinstance(event, h11.EndOfMessage):
                return request
            elif isinstance(event, h11.Data):
                raise h11.RemoteProtocolError("a request must not have a body", 413)
            else:
                return None
