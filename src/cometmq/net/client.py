"""Outgoing connections: requests and one-way requests to other processes, pooled by address.

All callers in the process share one connection per address. Requests made in one turn of the event
loop are sent in one write. A connection limits its requests in flight and its unsent bytes; at a
limit callers wait, within their own timeouts. Requests that the peer starts (for example a broker
notifies a consumer that its group changed) go to the handlers passed to the constructor.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import msgspec

from cometmq.core.errors import (
    BrokerRefused,
    CometError,
    LocalProtocolError,
    NotConnected,
    RemoteProtocolError,
    RequestTimedOut,
    SettingsError,
)
from cometmq.net.outgoing import SILENT_HINT, ClientTls, ConnectOptions, reason_of
from cometmq.net.tasks import ended
from cometmq.protocol.acl import Credentials, SignedHead, signed
from cometmq.protocol.codes import Language, RequestCode, ResponseCode
from cometmq.protocol.connection import Answered, Connection, Rejected
from cometmq.protocol.fields import to_ext
from cometmq.protocol.frame import JSON, Request, Response, encode_response, head_pieces, lengths
from cometmq.protocol.framer import MAX_FRAME_BYTES
from cometmq.speedups import send_frame

if TYPE_CHECKING:
    from cometmq.core.clock import Clock
    from cometmq.net.tasks import Tasks
    from cometmq.protocol.frame import Reply
    from cometmq.protocol.headers import Header
    from cometmq.speedups.plain.requests import Place, Waiting

log = logging.getLogger(__name__)

#: Serves a request that the peer started. It gets the peer's address and the request, and returns
#: the reply (None for one-way requests). A CometError is answered with its code and remark.
InboundHandler = Callable[[str, Request[Any]], Coroutine[Any, Any, "Reply | None"]]

#: Outcome of a waiting request: its response, the loss of its connection, or None on a timeout.
Outcome = Response | NotConnected | None


class Pulled(NamedTuple):
    """Plain response to a pull: only the usual header fields (speedups/plain/requests.py)."""

    body: bytes
    suggested_id: int
    next_offset: int
    min_offset: int
    max_offset: int


#: Constant pieces of a header that is sent often; a SignedHead, if requests are signed.
CutHead = tuple[bytes, ...] | SignedHead

_MAX_INBOUND: Final = 256
_WRITE_HIGH_BYTES: Final = 4 * 1024 * 1024
_DEFAULTS: Final = ConnectOptions()
#: Errors of encoding: values of wrong types, text that UTF-8 cannot encode, numbers too large.
_ENCODE_ERRORS: Final = (
    CometError,
    TypeError,
    ValueError,
    AttributeError,
    OverflowError,
    RecursionError,
    struct.error,
    msgspec.MsgspecError,
)


def split_address(address: str) -> tuple[str, int]:
    """Split ``host:port`` (or ``[v6]:port``) into its parts.

    Raises NotConnected when it does not have that form.
    """
    host, colon, port = address.rpartition(":")
    is_number = port.isascii() and port.isdecimal() and len(port) <= 5
    if not colon or not is_number or int(port) > 65_535:
        raise NotConnected(address, "an address has the form host:port, such as 127.0.0.1:9876")
    return host.strip("[]"), int(port)


def _checked(code: object, body: bytes) -> bytes:
    """Return a body as immutable bytes. Raises LocalProtocolError for an invalid body or code.

    All requests of a turn share one write, which an invalid body would break.
    """
    if type(body) is not bytes:
        if not isinstance(body, bytes | bytearray | memoryview):
            raise LocalProtocolError(f"its body is {type(body).__name__}; use bytes")
        body = bytes(body)
    # The peer could not parse a header with a longer code, nor the stream after it.
    if not (isinstance(code, int) and -0x8000_0000 <= code < 0x8000_0000):
        raise LocalProtocolError("a code is a 32-bit integer")
    return body


def _check_size(head: bytes, body: bytes) -> None:
    """Raise LocalProtocolError for a frame over the limit.

    Servers close the connection on such a frame, so all requests on it would fail.
    """
    if len(head) + len(body) > MAX_FRAME_BYTES:
        raise LocalProtocolError(
            f"its header has {len(head)} bytes and its body {len(body)}; the limit for both is "
            f"{MAX_FRAME_BYTES}"
        )


def _not_sent(address: str, code: int, error: Exception) -> LocalProtocolError:
    reason = str(error) if isinstance(error, CometError) else repr(error)
    return LocalProtocolError(f"request {code!r} to {address} was not sent: {reason}")


class Remoting:
    """Sends requests to any address, over one shared connection each.

    ``options`` say how connections are made and whether requests are signed. ``on_request`` maps
    codes to handlers of requests that peers start. ``tasks`` owns the background tasks; close the
    Remoting before it.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        tasks: Tasks,
        options: ConnectOptions = _DEFAULTS,
        on_request: Mapping[int, InboundHandler] | None = None,
        language: Language = Language.PYTHON,
    ) -> None:
        self.clock = clock
        self.tasks = tasks
        self.options = options
        self.tls = None if options.tls is None else ClientTls(options.tls)
        self.on_request: dict[int, InboundHandler] = dict(on_request or {})
        self.language = language
        #: Called with the address when a connection is closed by either side.
        self.on_close: list[Callable[[str], None]] = []
        #: Number of connections closed by either side.
        self.losses = 0
        self._links: dict[str, Link] = {}
        self._opening: dict[str, asyncio.Task[Link | NotConnected]] = {}
        self._closed = False

    def __repr__(self) -> str:
        links = ", ".join(f"{a}: {k.connection.in_flight}" for a, k in self._links.items())
        return f"<Remoting in flight {{{links}}}, opening {sorted(self._opening)}>"

    def use_credentials(self, credentials: Credentials | None) -> None:
        """Sign further requests with these credentials, also on open connections; None ends
        signing."""
        self.options = replace(self.options, credentials=credentials)

    def in_flight(self) -> dict[str, int]:
        """Return the number of requests without an answer, by the address of each connection."""
        links = list(self._links.items())
        return {address: link.connection.in_flight for address, link in links}

    def is_connected(self, address: str) -> bool:
        """Return whether a connection to ``address`` is open."""
        return address in self._links

    def open_link(self, address: str) -> Link | None:
        """Return the connection to ``address`` if it is open and accepts a request now."""
        link = self._links.get(address)
        return None if link is None or link.blocked or link.lost is not None else link

    async def request(
        self,
        address: str,
        code: int,
        header: Header | None,
        body: bytes = b"",
        *,
        timeout_ms: int,
        codec: int = JSON,
    ) -> Response:
        """Send a request and wait for its response, which may have any code.

        ``timeout_ms`` includes the opening of a connection. Raises RequestTimedOut after it, and
        NotConnected if there is no connection or it breaks before the response. Raises
        LocalProtocolError at once if the request cannot be encoded or is larger than servers
        accept.
        """
        deadline_ms = self.clock.monotonic_ms() + timeout_ms
        link = self._links.get(address)
        if link is None or link.blocked:
            link = await self._ready(address, code, deadline_ms, timeout_ms)
        outcome = await link.request(code, header, body, deadline_ms, codec)
        if outcome is None:
            raise RequestTimedOut(address, code, timeout_ms)
        if isinstance(outcome, NotConnected):
            raise outcome
        return outcome

    def cut_head(self, code: int, header: Header, names: Sequence[str]) -> CutHead:
        """Return the pieces of an encoded header for :meth:`pull` or ``Link.post``.

        The header is cut at the values of the fields ``names``, so requests that differ only in
        these values can share the pieces. Raises LocalProtocolError if it cannot be encoded.
        """
        credentials = self.options.credentials
        try:
            ext = to_ext(header)
            if credentials is not None:
                return SignedHead(credentials, code, ext, self.language, names)
            return head_pieces(code, ext, self.language, names)
        except _ENCODE_ERRORS as error:
            raise LocalProtocolError(f"request {code!r} was not sent: {error!r}") from error

    async def pull(
        self, address: str, pieces: CutHead, numbers: Sequence[int], *, timeout_ms: int
    ) -> Pulled | Response:
        """Send a pull with a header from :meth:`cut_head` and wait for its response.

        ``numbers`` are the values of the cut fields. Return Pulled for a plain response. Raises
        NotConnected and RequestTimedOut, as :meth:`request` does.
        """
        deadline_ms = self.clock.monotonic_ms() + timeout_ms
        link = self._links.get(address)
        if link is None or link.blocked:
            link = await self._ready(address, RequestCode.PULL_MESSAGE, deadline_ms, timeout_ms)
        if link.lost is not None:
            raise NotConnected(address, link.lost.problem)
        opaque, waiter = link.post_pull(pieces, numbers, deadline_ms)
        try:
            outcome = await waiter
        finally:
            if waiter.cancelled():
                link.forget(opaque)
            else:
                link.review()
        if outcome is None:
            raise RequestTimedOut(address, RequestCode.PULL_MESSAGE, timeout_ms)
        if isinstance(outcome, NotConnected):
            raise outcome
        return outcome

    async def call(
        self,
        address: str,
        code: int,
        header: Header | None,
        body: bytes = b"",
        *,
        timeout_ms: int,
        codec: int = JSON,
    ) -> Response:
        """Call :meth:`request`; raise BrokerRefused unless the response code is SUCCESS."""
        response = await self.request(
            address, code, header, body, timeout_ms=timeout_ms, codec=codec
        )
        if response.code != ResponseCode.SUCCESS:
            raise BrokerRefused(address, code, response.code, response.remark or "")
        return response

    async def oneway(
        self,
        address: str,
        code: int,
        header: Header | None,
        body: bytes = b"",
        *,
        timeout_ms: int = 3000,
        codec: int = JSON,
    ) -> None:
        """Queue a request that has no response; return before it is sent.

        Raises NotConnected, RequestTimedOut if the connection accepts no request for
        ``timeout_ms``, and LocalProtocolError as :meth:`request` does.
        """
        link = self._links.get(address)
        if link is None or link.blocked:
            deadline_ms = self.clock.monotonic_ms() + timeout_ms
            link = await self._ready(address, code, deadline_ms, timeout_ms)
        link.send_oneway(code, header, body, codec)

    async def close(self) -> None:
        """Send queued bytes, then close every connection; waiting requests raise NotConnected."""
        self._closed = True
        for task in list(self._opening.values()):
            task.cancel()
        links = list(self._links.values())
        for link in links:
            link.close("closed by this side")
        for link in links:
            await link.wait_closed()

    async def _ready(self, address: str, code: int, deadline_ms: int, timeout_ms: int) -> Link:
        """Return an open connection that accepts a request; wait for it until the deadline."""
        try:
            async with asyncio.timeout(max(0, deadline_ms - self.clock.monotonic_ms()) / 1000):
                while True:
                    link = self._links.get(address) or await self._open(address)
                    if not link.blocked:
                        return link
                    await link.wait_unblocked()
        except TimeoutError:
            raise RequestTimedOut(address, code, timeout_ms) from None

    async def _open(self, address: str) -> Link:
        if self._closed:
            raise NotConnected(address, "this client is closed")
        task = self._opening.get(address)
        if task is None:
            task = self.tasks.spawn(self._connect(address), name=f"connect {address}")
            self._opening[address] = task
            task.add_done_callback(lambda _: self._opening.pop(address, None))
        # Several callers may wait for this attempt. A cancelled one must not cancel it.
        await ended(task)
        if task.cancelled():
            raise NotConnected(address, "this client is closed")
        result = task.result()
        if isinstance(result, NotConnected):
            raise NotConnected(address, result.problem)
        return result

    async def _connect(self, address: str) -> Link | NotConnected:
        loop = asyncio.get_running_loop()
        limit_ms, host = self.options.connect_timeout_ms, ""
        try:
            host, port = split_address(address)
            async with asyncio.timeout(limit_ms / 1000):
                context = None if self.tls is None else await self.tls.context(host)
                _, link = await loop.create_connection(
                    lambda: Link(self, address), host, port, ssl=context
                )
        except TimeoutError:
            hint = "" if self.tls is None else " with TLS: it may not serve TLS (tls.server.mode)"
            return NotConnected(address, f"no connection within {limit_ms} ms{hint or SILENT_HINT}")
        except (OSError, UnicodeError) as error:  # the host name may be invalid
            return NotConnected(address, self.explain(error, host))
        except SettingsError as error:
            return NotConnected(address, f"TLS: {error}")
        except NotConnected as error:
            return error
        if link.lost is not None:
            return link.lost
        self._links[address] = link
        return link

    def explain(self, error: Exception, host: str) -> str:
        """Return why no connection could be made."""
        if self.tls is None:
            return f"cannot connect: {reason_of(error)}"
        return self.tls.explain(error, host)

    def _gone(self, link: Link) -> None:
        if self._links.get(link.address) is link:
            del self._links[link.address]
        self.losses += 1
        for callback in self.on_close:
            callback(link.address)


class Link(asyncio.Protocol):
    """One open connection: its transport, waiting requests and their timer."""

    def __init__(self, owner: Remoting, address: str) -> None:
        self.address = address
        self.connection: Connection[asyncio.Future[Outcome]] = Connection(owner.language)
        self.lost: NotConnected | None = None
        #: True while no further request is accepted.
        self.blocked = False
        self._owner = owner
        self._options = owner.options
        self._clock = owner.clock
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._flushing = False
        self._write_paused = False
        self._unblocked: deque[asyncio.Future[None]] = deque()
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._problem = ""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._used_ms = self._opened_ms = owner.clock.monotonic_ms()
        self._heard_ms = -1
        self._inbound = 0

    # ------------------------------------------------------------------ requests of this side

    async def request(
        self, code: int, header: Header | None, body: bytes, deadline_ms: int, codec: int
    ) -> Outcome:
        """Send a request and return its outcome."""
        if self.lost is not None:
            return self.lost
        waiter: asyncio.Future[Outcome] = self._loop.create_future()
        connection = self.connection
        opaque = -1
        try:
            body = _checked(code, body)
            opaque, head = connection.encode_request(
                code,
                header,
                waiter,
                deadline_ms,
                body_bytes=len(body),
                codec=codec,
                extra=self._proof(header, body),
            )
            _check_size(head, body)
            self._write(head, body)
            # Most deadlines are later than the timer's, so it is rarely set again.
            if deadline_ms < self._timer_ms:
                self._arm(deadline_ms)
            if connection.in_flight >= self._options.max_in_flight:
                self.blocked = True
            return await waiter
        except _ENCODE_ERRORS as error:
            connection.forget(opaque)
            raise _not_sent(self.address, code, error) from error
        finally:
            if waiter.cancelled():
                connection.forget(opaque)
            if self.blocked or self._unblocked:
                self._review()

    def post(
        self,
        pieces: CutHead,
        place: Place,
        born_ms: int,
        properties: str,
        body: bytes,
        key: str,
        deadline_ms: int,
    ) -> tuple[int, asyncio.Future[Any]]:
        """Send a message with a header from :meth:`Remoting.cut_head`; return opaque and future.

        A plain response (speedups/plain/requests.py) sets a result made from ``key`` and ``place``;
        otherwise the future gets an Outcome. ``deadline_ms`` is monotonic time.
        """
        if type(pieces) is SignedHead:
            pieces = pieces.sign((place[3], born_ms, properties), body)
        opaque = self.connection.new_opaque()
        frame = send_frame(pieces, place[3], born_ms, properties, opaque, body)
        waiter: asyncio.Future[Any] = self._loop.create_future()
        self._post(opaque, frame, (deadline_ms, waiter, key, place))
        return opaque, waiter

    def post_pull(
        self, pieces: CutHead, numbers: Sequence[int], deadline_ms: int
    ) -> tuple[int, asyncio.Future[Pulled | Outcome]]:
        """Send a pull; return its opaque and a future of its outcome.

        The header consists of ``pieces`` with ``numbers`` and the opaque between them.
        """
        if type(pieces) is SignedHead:
            pieces = pieces.sign(numbers)
        opaque = self.connection.new_opaque()
        values = [*numbers, opaque]
        head = b"".join([b"%b%d" % each for each in zip(pieces, values, strict=False)])
        head += pieces[-1]
        waiter: asyncio.Future[Pulled | Outcome] = self._loop.create_future()
        self._post(opaque, lengths(len(head)) + head, (deadline_ms, waiter, Pulled))
        return opaque, waiter

    def _post(self, opaque: int, frame: bytes, known: Waiting) -> None:
        waiting = self.connection.expect(opaque, known)
        deadline_ms = known[0]
        self._out.append(frame)
        self._out_bytes += len(frame)
        # Send all requests of a turn of the loop in one write.
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)
        elif self._out_bytes > _WRITE_HIGH_BYTES:
            self._flush()
        if deadline_ms < self._timer_ms:
            self._arm(deadline_ms)
        if waiting >= self._options.max_in_flight:
            self.blocked = True

    def forget(self, opaque: int) -> None:
        """Drop a request, because its caller no longer waits for the response."""
        self.connection.forget(opaque)
        self.review()

    def review(self) -> None:
        """Wake callers that wait, if requests are accepted again."""
        if self.blocked or self._unblocked:
            self._review()

    def send_oneway(self, code: int, header: Header | None, body: bytes, codec: int) -> None:
        """Send a request without a response."""
        if self.lost is not None:
            raise NotConnected(self.address, self.lost.problem)
        try:
            body = _checked(code, body)
            head = self.connection.encode_oneway(
                code,
                header,
                body_bytes=len(body),
                codec=codec,
                extra=self._proof(header, body),
            )
            _check_size(head, body)
            self._write(head, body)
        except _ENCODE_ERRORS as error:
            raise _not_sent(self.address, code, error) from error
        finally:
            if self._unblocked:
                self._review()

    def _proof(self, header: Header | None, body: bytes) -> dict[str, str] | None:
        """Return the header fields that sign a request; None if requests are not signed."""
        credentials = self._owner.options.credentials
        return None if credentials is None else signed(credentials, to_ext(header), body)

    async def wait_unblocked(self) -> None:
        """Wait until a request is accepted, or the connection is closed."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._unblocked.append(waiter)
        await waiter

    def close(self, problem: str) -> None:
        """Send queued bytes, then close."""
        self._problem = problem
        self._flush()
        # Close only once: after a second close(), asyncio's TLS transport ignores abort() and waits
        # 30 s for a silent peer.
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()

    async def wait_closed(self) -> None:
        """Wait until the transport is closed; abort it if the peer accepts no bytes for 1 s."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                await asyncio.shield(self._closed)
        if not self._closed.done() and self._transport is not None:
            self._transport.abort()
            await self._closed

    # ------------------------------------------------------------------ asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports behave like asyncio.Transport but do not inherit from it.
        transport = cast("asyncio.Transport", transport)
        transport.set_write_buffer_limits(high=_WRITE_HIGH_BYTES)
        self._transport = transport
        self._arm(self._used_ms + self._options.idle_timeout_ms)

    def data_received(self, data: bytes) -> None:
        self._heard_ms = self._clock.monotonic_ms()
        connection = self.connection
        connection.receive_data(data)
        try:
            while connection.has_more:
                odd = connection.settle_plain()
                if not odd:
                    continue
                for event in connection.next_events(odd):
                    if isinstance(event, Answered):
                        if not event.token.done():
                            event.token.set_result(event.response)
                    else:
                        self._serve(event)
            if self.blocked or self._unblocked:
                self._review()
        except RemoteProtocolError as error:
            log.warning("bad_frame address=%s problem=%s", self.address, error)
            self._problem = f"it sent bytes that are not a frame: {error}"
            if self._transport is not None:
                self._transport.abort()

    def pause_writing(self) -> None:
        self._write_paused = True
        self.blocked = True

    def resume_writing(self) -> None:
        self._write_paused = False
        self._review()

    def connection_lost(self, exc: Exception | None) -> None:
        problem = self._problem or self._closed_because(exc)
        self.lost = NotConnected(self.address, problem)
        self.blocked = False
        if self._timer is not None:
            self._timer.cancel()
        for waiter in self.connection.close():
            if not waiter.done():
                waiter.set_result(NotConnected(self.address, problem))
        self._release(len(self._unblocked))
        if not self._closed.done():
            self._closed.set_result(None)
        self._owner._gone(self)

    def _closed_because(self, error: Exception | None) -> str:
        tls = self._owner.tls
        # With TLS 1.3 a server refuses the certificate of a client after the handshake.
        if tls is not None and error is not None and tls.is_tls_error(error):
            return tls.explain(error, "")
        problem = "closed by the other side" if error is None else f"connection lost: {error}"
        if self._heard_ms >= 0:
            return f"{problem}; the next request connects again"
        if tls is None:
            return f"{problem} before it answered: it may serve only TLS"
        return f"{problem} before it answered: {tls.certificate_hint}"

    # ------------------------------------------------------------------ requests of the other side

    def _serve(self, event: Request[Any] | Rejected) -> None:
        if isinstance(event, Rejected):
            if not event.request.oneway:
                self._write(
                    encode_response(event.request, event.error.code, remark=event.error.remark), b""
                )
            return
        handler = self._owner.on_request.get(event.code)
        if handler is None:
            self._refuse(
                event,
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                f" request type {event.code} not supported",
            )
        elif self._inbound >= _MAX_INBOUND:
            self._refuse(
                event, ResponseCode.SYSTEM_BUSY, f"{self._inbound} requests are being processed"
            )
        else:
            self._inbound += 1
            self._owner.tasks.spawn(
                self._handle(handler, event), name=f"serve {event.code} from {self.address}"
            )

    def _refuse(self, request: Request[Any], code: int, remark: str) -> None:
        log.info("inbound_refused address=%s code=%d remark=%s", self.address, request.code, remark)
        if not request.oneway:
            self._write(encode_response(request, code, remark=remark), b"")

    async def _handle(self, handler: InboundHandler, request: Request[Any]) -> None:
        try:
            reply = await handler(self.address, request)
            if reply is not None and not request.oneway and self.lost is None:
                self._answer(request, reply)
        except CometError as error:
            self._refuse(request, error.code, error.remark)
        except Exception as error:
            # Escape the text: a reply that cannot be encoded would leave the peer waiting.
            reason = f"handler failed: {error!r}".encode("utf-8", "backslashreplace").decode()
            self._refuse(request, ResponseCode.SYSTEM_ERROR, reason)
            raise
        finally:
            self._inbound -= 1

    def _answer(self, request: Request[Any], reply: Reply) -> None:
        body = _checked(request.code, reply.body)
        head = encode_response(
            request,
            reply.code,
            header=reply.header,
            ext=reply.ext,
            remark=reply.remark,
            body_bytes=len(body),
        )
        _check_size(head, body)
        self._write(head, body)

    # ------------------------------------------------------------------ writing, bounds, time

    def _write(self, head: bytes, body: bytes) -> None:
        out = self._out
        out.append(head)
        if body:
            out.append(body)
        self._out_bytes += len(head) + len(body)
        if self._out_bytes > _WRITE_HIGH_BYTES:
            self._flush()
        elif not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if not self._out:
            return
        out, self._out, self._out_bytes = self._out, [], 0
        if self._transport is not None and not self._transport.is_closing():
            self._used_ms = self._clock.monotonic_ms()
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))

    def _review(self) -> None:
        """Accept requests again if both limits allow it, and wake callers for the free places."""
        room = self._options.max_in_flight - self.connection.in_flight
        if not self._write_paused and room > 0:
            self.blocked = False
            self._release(room)

    def _release(self, count: int) -> None:
        while self._unblocked and count > 0:
            waiter = self._unblocked.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1

    def _arm(self, deadline_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = deadline_ms
        delay_ms = max(1, deadline_ms - self._clock.monotonic_ms())
        self._timer = self._loop.call_later(delay_ms / 1000, self._on_timer)

    def _on_timer(self) -> None:
        now_ms = self._clock.monotonic_ms()
        expired = self.connection.expire(now_ms)
        for waiter in expired:
            if not waiter.done():
                waiter.set_result(None)
        if self.blocked or self._unblocked:
            self._review()
        silent_ms = now_ms - max(self._heard_ms, self._opened_ms)
        if expired and silent_ms >= self._options.silence_timeout_ms:
            self._problem = f"nothing was received for {silent_ms} ms"
            log.warning("connection_silent address=%s problem=%s", self.address, self._problem)
            if self._transport is not None:
                self._transport.abort()
            return
        idle_ms = self._used_ms + self._options.idle_timeout_ms
        next_ms = self.connection.next_deadline_ms()
        if next_ms is None and now_ms >= idle_ms:
            self.close("closed because it was idle")
            return
        self._arm(min(max(idle_ms, now_ms + 1), next_ms or idle_ms))
