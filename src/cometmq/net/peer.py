"""Server side of one connection: serves requests in fair turns and writes once per turn.

Turns. One read of a pipelining client may hold hundreds of requests. At most FRAMES_PER_TURN of
them, or TURN_NS of work, are served before other connections get their turn. The rest waits in the
protocol object; reading pauses when it exceeds READ_BOUND_BYTES.

Writes. Responses are collected and sent in one write after the turn of the loop that made them,
together with those of other connections (:class:`WriteCoalescer`).

Clients that do not read. While WRITE_HIGH_BYTES are unsent, the connection is neither read nor
served, so that a client that never reads its responses costs others nothing. But clients send
heartbeats on the same connection, and without these whole groups would expire. So after
STALL_LIMIT_MS a few requests are served in each period, and pulls get no messages. If no bytes are
sent in a period, the next period is longer and the peer is ``congested``: sends are refused, urgent
requests are served. At WRITE_BOUND_BYTES the connection is closed.

Memory. Large requests that wait are charged to the connection (resources.py), which is not read
while it exceeds its share.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from cometmq.core.errors import NotConnected, RemoteProtocolError, RequestTimedOut
from cometmq.net.eventloop import SHORT_NS, direct_handle
from cometmq.net.limits import FrameTimer, Limit, notice_dead_clients
from cometmq.net.resources import PeerMemory, process_budget
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.connection import Answered, Connection, request_of
from cometmq.protocol.frame import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    JSON,
    decode_head,
    encode_response,
)
from cometmq.protocol.framer import ALL, MAX_HEADER_BYTES, FrameTooLarge, HeaderTooLarge
from cometmq.speedups import Outlet

if TYPE_CHECKING:
    from cometmq.core.clock import Clock
    from cometmq.net.eventloop import BusyPoll, Watchdog
    from cometmq.net.limits import ServerLimits
    from cometmq.net.resources import MemoryBudget
    from cometmq.protocol.connection import Event
    from cometmq.protocol.frame import Reply, Request, Response
    from cometmq.protocol.framer import BulkHandler
    from cometmq.protocol.headers import Header
    from cometmq.speedups import AccessCache

log = logging.getLogger(__name__)

FRAMES_PER_TURN: Final = 32
TURN_NS: Final = SHORT_NS
#: Unserved bytes of one connection beyond which reading from it pauses.
READ_BOUND_BYTES: Final = 256 * 1024
#: Limits of unsent bytes: at the first a connection is no longer served, at the second it is
#: congested even if bytes are sent, at the third it is closed.
WRITE_HIGH_BYTES: Final = 256 * 1024
CONGESTED_BYTES: Final = 4 * 1024 * 1024
WRITE_BOUND_BYTES: Final = 64 * 1024 * 1024
#: Unsent bytes from which on a connection is closed when it has another response and the memory of
#: all connections is full.
UNREAD_MIN_BYTES: Final = 256 * 1024
#: First and longest period in which a client that does not read gets a few requests served.
STALL_LIMIT_MS: Final = 1_000
STALL_MAX_MS: Final = 8_000
#: Requests served in a period if the client read something in the last one, and if it did not.
FRAMES_BEHIND: Final = 64
FRAMES_STALLED: Final = 8

#: Requests that access control must allow one by one, after the second refusal or a later one,
#: before it decides about several requests together again.
REFUSED_MAX: Final = 16

Waiter = asyncio.Future["Response"]


class WriteCoalescer:
    """Writes the responses of all peers of a server together, one turn after they were made.

    The turn that makes a response could write it at once. But one round of the loop serves all
    peers that sent requests. If their responses are written together after that, a client process
    that reads several of them on another processor wakes up once, and its next requests arrive
    together too.
    """

    __slots__ = ("_now_ns", "_waiting", "_watchdog")

    def __init__(self, watchdog: Watchdog) -> None:
        self._watchdog = watchdog
        self._now_ns = watchdog.clock.monotonic_ns
        self._waiting: list[Callable[[], None]] = []

    def add(self, flush: Callable[[], None]) -> None:
        """Call ``flush`` once in the next turn of the loop."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._let_go)
        self._waiting.append(flush)

    def _let_go(self) -> None:
        begin_ns = self._now_ns()
        waiting, self._waiting = self._waiting, []
        for flush in waiting:
            try:
                flush()
            except Exception:  # a failure of one peer must not keep the others' bytes
                log.exception("flush failed")
        took_ns = self._now_ns() - begin_ns
        if took_ns > SHORT_NS:
            self._watchdog.turn("flush", took_ns)


class RequestAccess(Protocol):
    """Access control: decides which requests a peer may send."""

    def check(self, peer: Peer, request: Request[Any]) -> str | None:
        """Check a request before it is served; return its account, or None if it needs none.

        Raises CometError if it is refused.
        """
        ...

    def check_reader(self, peer: Peer, request: Request[Any], topic: str) -> None:
        """Check that the sender of a request may read ``topic``, which its fields do not name: it
        is the topic of the record that was found. Raises CometError if not.
        """
        ...

    def cache(self, peer: Peer) -> AccessCache | None:
        """Return the decisions about requests of ``peer``; None if all of them are allowed.

        Call it for each read: the decisions are dropped when the rules change.
        """
        ...

    @property
    def rules(self) -> object:
        """The rules in force; another object once they have changed."""
        ...


class RequestRouter(Protocol):
    """Serves the requests of connections. Servers use ``Router`` of net/router.py."""

    @property
    def bulk_handlers(self) -> Mapping[bytes, BulkHandler[Peer]]:
        """Handlers of undecoded frames, by the decimal digits of the request code."""
        ...

    @property
    def keep_fields(self) -> bool:
        """True if requests need their header fields as text, besides the decoded header."""
        ...

    @property
    def access(self) -> RequestAccess | None:
        """Access control, if requests are checked."""
        ...

    @property
    def hooks(self) -> Sequence[object]:
        """Hooks of all requests; while there are any, requests are served one by one."""
        ...

    @property
    def limits(self) -> ServerLimits:
        """Limits of the server."""
        ...

    def handle(self, peer: Peer, event: Event[Any]) -> None:
        """Serve one event of ``peer``. Must not raise."""
        ...

    def finish(self, peer: Peer, request: Request[Any], reply: Reply) -> None:
        """Send the response of a request."""
        ...

    def acknowledge(self, peer: Peer, request: Request[Any]) -> None:
        """Send an empty success response."""
        ...


class Peer(asyncio.Protocol):
    """One accepted connection.

    ``address`` is "ip:port"; ``host_bytes`` is the same in the form that records store (4 or 16
    address bytes and a 4-byte port). ``has_room`` returns whether a connection of a host is
    accepted, and counts and logs a refusal; None accepts all. ``on_close`` callbacks run once, when
    the connection has ended.
    """

    def __init__(
        self,
        router: RequestRouter,
        *,
        clock: Clock,
        watchdog: Watchdog,
        peers: dict[Peer, None],
        has_room: Callable[[str], bool] | None = None,
        lookout: BusyPoll | None = None,
        departures: WriteCoalescer | None = None,
        budget: MemoryBudget | None = None,
    ) -> None:
        self.router = router
        self.limits = router.limits
        self._now_ns = clock.monotonic_ns
        self._watchdog = watchdog
        self._peers = peers
        self._has_room = has_room
        self._lookout = lookout
        self._loop = asyncio.get_running_loop()
        self._departures = departures or WriteCoalescer(watchdog)
        self._budget = process_budget() if budget is None else budget
        self.memory = PeerMemory(self._budget, self._loop, self._share_is_used, self._read_again)
        self._connection: Connection[Waiter] = Connection(
            account=self.memory,
            max_header_bytes=MAX_HEADER_BYTES,
            keep_fields=router.keep_fields,
        )
        self._transport: asyncio.Transport | None = None
        self._backlog: deque[Event[Waiter]] = deque()
        self._out: list[bytes | memoryview] = []
        #: Writes many responses at once to the socket, bypassing the transport. None if that is not
        #: possible (TLS, loops other than uvloop).
        self.outlet: Outlet | None = None
        self._turn_due = False
        self._flush_due = False
        self._holds = 0
        self._reads_no_more = False
        self._reading = True
        self._writable = True
        #: True while the peer does not read its responses and they pile up. Pulls then get no
        #: messages.
        self.is_behind = False
        self._stall_timer: asyncio.TimerHandle | None = None
        self._stall_ms = 0
        self._stalled_bytes = 0
        #: Bytes queued since the last flush.
        self._queued_bytes = 0
        #: Requests that may be served in this period although the peer is behind.
        self._frames_left = 0
        #: True while the peer reads nothing, or far too little, of these responses. Sends are then
        #: refused.
        self.congested = False
        self.closed = False
        self._was_closing = False
        self.running_tasks = 0
        self.address = "?"
        self.host_bytes = b"\0" * 8
        #: True if the peer is a process of this machine: its address is a loopback address, or the
        #: address to which it connected.
        self.is_local = False
        #: Kept here by access control: its rules, and its decisions by them about this connection.
        self.decisions: tuple[object, AccessCache | None] = (None, None)
        #: REFUSED_MAX for the first refusal and each later one, up to twice that, less one for each
        #: request that was then allowed one by one.
        self.refused = 0
        #: True while ``refused`` is over REFUSED_MAX: access control decides about requests one by
        #: one. If it refuses one of several together, it must check each of them again anyway.
        self.is_checked_alone = False
        self.last_read_ms = clock.monotonic_ms()
        self._received_bytes = 0
        self._frame_timer = FrameTimer()
        self.on_close: list[Callable[[Peer], None]] = []

    def __repr__(self) -> str:
        state = "closed" if self.closed else "congested" if self.congested else "open"
        return f"<Peer {self.address} {state} backlog={len(self._backlog)}>"

    @property
    def host(self) -> str:
        """IP address of the other side, without the port."""
        return host_of(self.address)

    @property
    def is_closing(self) -> bool:
        """True from :meth:`close` on."""
        return self._transport is not None and self._transport.is_closing()

    def note_decision(self, *, allowed: bool) -> None:
        """Note that access control has decided about a request one by one."""
        if not allowed:
            self.refused = min(self.refused + REFUSED_MAX, 2 * REFUSED_MAX)
        elif self.is_checked_alone:
            self.refused -= 1
        self.is_checked_alone = self.refused > REFUSED_MAX

    @property
    def is_receiving(self) -> bool:
        """True while there are received bytes that are not served yet."""
        return self._connection.buffered_bytes > 0

    @property
    def is_reading(self) -> bool:
        """True while requests are read from the connection."""
        return self._reading

    @property
    def is_serving(self) -> bool:
        """True while a whole received request is not answered, or its response is not sent."""
        if self.closed or self.is_closing:
            return False
        waits = self._backlog or self._connection.has_more or self._flush_due or self._unsent_bytes
        return bool(waits or self._holds or self.running_tasks)

    @property
    def _unsent_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def buffered_bytes(self) -> int:
        """Total of received bytes that are not served and bytes that are not sent yet."""
        return self._connection.buffered_bytes + self._unsent_bytes

    @property
    def held_bytes(self) -> int:
        """Bytes of the requests that handlers hold."""
        return self.memory.held_bytes

    # ------------------------------------------------------------------ asyncio.Protocol callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        name = transport.get_extra_info("peername")
        if name:
            self.address, self.host_bytes, is_loopback = describe_host(name[0], name[1])
            own = transport.get_extra_info("sockname")
            self.is_local = is_loopback or (bool(own) and own[0] == name[0])
        if self._has_room is not None and not self._has_room(self.host):
            self._transport.abort()
            return
        self._peers[self] = None
        self.limits.entered(self.host)
        handle = direct_handle(transport)
        if handle >= 0:
            self.outlet = Outlet(handle, self._out, self._transport.get_write_buffer_size)

    def data_received(self, data: bytes) -> None:
        now_ns = self._now_ns()
        self.last_read_ms = now_ns // 1_000_000
        self._received_bytes += len(data)
        lookout = self._lookout
        if lookout is not None and not lookout.served:
            lookout.arrived(now_ns)
        budget = self._budget
        budget.moved_bytes += len(data)
        if budget.moved_bytes > budget.look_bytes:
            budget.moved(0, self._loop)
        if self._turn_due or not (self._writable or self._frames_left):
            self._connection.receive_data(data)
        elif not self._writable:
            self._connection.receive_data(data)
            self._turn()
        elif (
            not self._connection.receive_whole(data, self.router.bulk_handlers, self)
            and not self._turn_due
        ):
            self._turn()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self.outlet = None
        self.memory.close()
        if self in self._peers:
            del self._peers[self]
            self.limits.left(self.host)
            if isinstance(exc, TimeoutError):  # from the kernel: see limits.notice_dead_clients
                self._hit(Limit.HALF_OPEN, "connection closed: the other side is gone")
        self._backlog.clear()
        self._out.clear()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
        for waiter in self._connection.close():
            if not waiter.done():
                waiter.set_exception(NotConnected(self.address, "the connection was closed"))
        callbacks, self.on_close = self.on_close, []
        begin_ns = self._now_ns()
        for callback in callbacks:
            try:
                callback(self)
            except Exception:
                log.exception("close callback failed peer=%s", self.address)
        self._watchdog.turn("connection lost", self._now_ns() - begin_ns)

    def pause_writing(self) -> None:
        self._writable = False
        self.is_behind = True
        self._pause_reading()
        self._stall_ms = STALL_LIMIT_MS
        self._watch_unsent()

    def resume_writing(self) -> None:
        self._writable = True
        self.is_behind = self.congested = False
        self._frames_left = 0
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        self._go_on()

    def _watch_unsent(self) -> None:
        assert self._transport is not None
        self._stalled_bytes = self._transport.get_write_buffer_size()
        self._stall_timer = self._loop.call_later(self._stall_ms / 1000, self._serve_behind)

    def _serve_behind(self) -> None:
        """Begin a period in which a few requests are served although responses are not read."""
        self._stall_timer = None
        if self.closed or self._transport is None or self._transport.is_closing():
            return
        unsent_bytes = self._transport.get_write_buffer_size()
        reads = unsent_bytes < self._stalled_bytes
        self._stall_ms = STALL_LIMIT_MS if reads else min(2 * self._stall_ms, STALL_MAX_MS)
        self._frames_left = FRAMES_BEHIND if reads else FRAMES_STALLED
        was_congested, self.congested = self.congested, not reads or unsent_bytes > CONGESTED_BYTES
        if self.congested and not was_congested:
            self._hit(Limit.CONGESTED, "it does not read its answers, sends are refused")
        self._watch_unsent()
        self._go_on()

    def _go_on(self) -> None:
        """Serve received requests, or read if there are none."""
        if self._holds:
            return
        if self._backlog or self._connection.has_more:
            self._continue()
        else:
            self._resume_reading()

    # ------------------------------------------------------------------------------------- turns

    def _turn(self) -> None:
        self._turn_due = False
        if self.closed or not (self._writable or self._frames_left):
            return
        now_ns = self._now_ns
        started_ns = now_ns()
        stop_ns = started_ns + TURN_NS
        backlog, connection = self._backlog, self._connection
        # Requests of a client that does not read are served one by one.
        bulk = self.router.bulk_handlers if self._writable else {}
        left = most = FRAMES_PER_TURN if self._writable else min(FRAMES_PER_TURN, self._frames_left)
        event: Event[Waiter] | None = None
        more, others = True, 0
        while more and left > 0:
            if not backlog:
                others = connection.offer(bulk, self)
                if others > 0 and not self._fill(backlog, min(left, others)):
                    return
                left -= max(len(backlog), 1)
            if backlog:
                event = self._serve(stop_ns)
            more = others != ALL and connection.has_more
            # Check the time after the work, so that every turn serves at least one request.
            if self._holds or now_ns() > stop_ns or self._queued_bytes > WRITE_HIGH_BYTES:
                break
        self._end_turn(most - left, more=more or bool(backlog))
        took_ns = now_ns() - started_ns
        if took_ns > TURN_NS:
            self._watchdog.turn("sends" if event is None else _describe(event), took_ns)

    def _end_turn(self, count: int, *, more: bool) -> None:
        """Pause, continue or read after a turn that served ``count`` requests.

        ``more`` is True if further requests were received.
        """
        self._frames_left = max(self._frames_left - count, 0)
        if self._queued_bytes > WRITE_HIGH_BYTES:
            self.flush()
        if not (self._writable or self._frames_left):
            self._pause_reading()
        elif more:
            self._continue()
        elif not self._reading:
            self._resume_reading()

    def _serve(self, stop_ns: int) -> Event[Waiter]:
        """Serve events until ``stop_ns``, at least one; return the last."""
        handle, backlog, now_ns = self.router.handle, self._backlog, self._now_ns
        while True:
            event = backlog.popleft()
            handle(self, event)
            if not backlog or self._holds or now_ns() > stop_ns:
                return event
            if self._queued_bytes > WRITE_HIGH_BYTES:
                return event

    def _fill(self, backlog: deque[Event[Waiter]], limit: int) -> bool:
        """Add at most ``limit`` events of the stream to the backlog; return True.

        Close the connection and return False if the stream is invalid.
        """
        try:
            backlog.extend(self._connection.next_events(limit))
        except RemoteProtocolError as error:
            self._refuse_stream(error)
            return False
        return True

    def _continue(self) -> None:
        if self._turn_due or self._transport is None or self._transport.is_closing():
            return
        self._turn_due = True
        self._loop.call_soon(self._turn)
        if self._reading and self._connection.buffered_bytes > READ_BOUND_BYTES:
            self._pause_reading()

    def hold(self) -> None:
        """Stop serving and reading this connection until :meth:`go_on`.

        The handler of a request that was just read calls it.
        """
        self._holds += 1
        self._turn_due = True
        self._pause_reading()

    def go_on(self) -> None:
        """End one :meth:`hold`; serving continues after the last one."""
        self._holds -= 1
        if not self._holds:
            self._turn_due = False
            self._continue()

    def _refuse_stream(self, error: RemoteProtocolError) -> None:
        limit = Limit.INVALID_STREAM
        if isinstance(error, FrameTooLarge):
            limit = Limit.FRAME_SIZE
            self._answer_header(error.codec, error.header, error.code, error.remark)
        elif isinstance(error, HeaderTooLarge):
            limit = Limit.HEADER_SIZE
        self._hit(limit, f"connection closed: {error}")
        self.close()

    def _answer_header(self, codec: int, header: bytes, code: int, remark: str) -> None:
        """Send an error response to a request of which only the header was received.

        Do nothing if the header is invalid, or if no response is expected.
        """
        try:
            head = decode_head(codec, header)
        except RemoteProtocolError:
            return
        if head.flag & (FLAG_RESPONSE | FLAG_ONEWAY):
            return
        request = request_of(head, head.ext, codec)
        self.write(encode_response(request, code, remark=remark))
        self.flush()

    # ------------------------------------------------------------------------------------- limits

    def _hit(self, limit: Limit, reason: str) -> None:
        self.limits.hit(limit, self.address, reason)

    def close_if_idle(self, now_ms: int, limit_ms: int) -> None:
        """Close the connection if nothing was received for longer than ``limit_ms``."""
        if not self.is_closing and now_ms - self.last_read_ms > limit_ms:
            self._hit(Limit.IDLE_TIME, f"connection closed: silent for {limit_ms} ms")
            self.close()

    def notice_death(self, idle_s: int) -> None:
        """Have the kernel close the connection if the peer is gone for ``idle_s``; 0 is never."""
        if self._transport is not None and not self._transport.is_closing():
            notice_dead_clients(self._transport.get_extra_info("socket"), idle_s)

    def end_if_closing(self) -> bool:
        """Return whether the connection is closing; abort it if it was at the last call, too.

        Otherwise a client that reads a little now and then would keep the connection and its unsent
        bytes open.
        """
        if not self.is_closing:
            return False
        if self._was_closing:
            self.abort()
        self._was_closing = True
        return True

    def close_if_late(self, now_ms: int, timeout_ms: int) -> None:
        """Close the connection if the rest of a frame does not arrive within ``timeout_ms``.

        The request is answered with SYSTEM_BUSY if its header has arrived.
        """
        connection = self._connection
        has_bytes = connection.buffered_bytes
        if not has_bytes or connection.has_more or not self._reading:
            self._frame_timer.reset()
            return
        begun_at = self._received_bytes - has_bytes
        if not self._frame_timer.is_late(begun_at, has_bytes, now_ms, timeout_ms):
            return
        reason = f"{has_bytes} bytes of a frame came in time, not the rest"
        if (begun := connection.begun_header()) is not None:
            self._answer_header(*begun, ResponseCode.SYSTEM_BUSY, f"[TIMEOUT]{reason}")
        self._hit(Limit.FRAME_TIME, f"connection closed: {reason}")
        self.close()

    def evict(self, size_bytes: int) -> None:
        """Close the connection at once, because it holds more memory than others."""
        if self.closed:
            return
        self._hit(Limit.MEMORY, f"connection closed: it uses {size_bytes} bytes of memory")
        self.abort()

    def _share_is_used(self) -> None:
        self._hit(Limit.CONNECTION_MEMORY, "not read until its requests need less memory")
        self._pause_reading()

    # ------------------------------------------------------------------------------------ writing

    def write(self, data: bytes | memoryview) -> None:
        """Queue bytes, to be sent after this turn of the loop."""
        self._out.append(data)
        self._queued_bytes += len(data)
        if not self._flush_due:
            self._flush_due = True
            self._departures.add(self.flush)

    def flush(self, more: Iterable[bytes] = ()) -> None:
        """Pass queued bytes, and ``more``, to the transport in one write. Never raises."""
        self._flush_due = False
        self._queued_bytes = 0
        out = self._out
        out += more
        transport = self._transport
        if not out or transport is None or self.closed:
            out.clear()
            return
        # Always copy views: uvloop keeps bytes that it cannot send at once, and a view of a deleted
        # log file would keep its disk space in use until the peer reads.
        unsent_bytes = transport.get_write_buffer_size()
        if unsent_bytes > UNREAD_MIN_BYTES and self._budget.is_over:
            # One round may answer thousands of requests before the memory is measured again.
            out.clear()
            self.evict(unsent_bytes)
            return
        data = b"".join(out)
        out.clear()
        try:
            transport.write(data)
        except (OSError, RuntimeError) as error:
            # uvloop raises if the transport is closing; connection_lost follows.
            log.debug("write failed peer=%s error=%s", self.address, error)
            return
        if not unsent_bytes:
            return
        # Count bytes also if the peer may still read them in time: with many peers they are many.
        self._budget.moved(len(data), self._loop)
        if not self._writable and unsent_bytes + len(data) > WRITE_BOUND_BYTES:
            self._hit(Limit.UNREAD_ANSWERS, "connection closed: it does not read its answers")
            transport.abort()

    def reply(self, request: Request[Any], reply: Reply) -> None:
        """Answer a request whose handler returned None before."""
        self.router.finish(self, request, reply)

    def _pause_reading(self) -> None:
        if self._reading and self._transport is not None and not self._transport.is_closing():
            self._reading = False
            self._transport.pause_reading()

    def _read_again(self) -> None:
        if self._writable or self._frames_left:
            self._resume_reading()

    def read_no_more(self) -> None:
        """Stop reading requests; those that were received are still served."""
        self._reads_no_more = True
        self._pause_reading()

    def _resume_reading(self) -> None:
        if self.memory.is_full or self._holds or self._reads_no_more:
            return
        if not self._reading and self._transport is not None and not self._transport.is_closing():
            self._reading = True
            self._transport.resume_reading()

    # -------------------------------------------------------------------- requests of this side

    def send_oneway(self, code: int, header: Header | None, body: bytes = b"") -> None:
        """Send a one-way request; do nothing on a closed connection."""
        head = self._connection.encode_oneway(code, header, body_bytes=len(body), codec=JSON)
        self.write(head + body)

    async def request(
        self, code: int, header: Header | None, body: bytes = b"", *, timeout_ms: int
    ) -> Response:
        """Send a request to the client and return its response, whatever its code.

        Raises RequestTimedOut, and NotConnected if the connection is closed or gets closed.
        """
        if self.closed:
            raise NotConnected(self.address, "the connection was closed")
        waiter: Waiter = self._loop.create_future()
        deadline_ms = self._now_ns() // 1_000_000 + timeout_ms
        opaque, head = self._connection.encode_request(
            code, header, waiter, deadline_ms, body_bytes=len(body)
        )
        self.write(head + body)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await waiter
        except TimeoutError:
            raise RequestTimedOut(self.address, code, timeout_ms) from None
        finally:
            self._connection.forget(opaque)

    def answered(self, event: Answered[Waiter]) -> None:
        """Pass the response to a request of this side to its waiter."""
        if not event.token.done():
            event.token.set_result(event.response)

    def abort(self) -> None:
        """Close at once; queued bytes are lost."""
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Send queued bytes, then close. ``on_close`` runs once the socket is closed.

        The server drops bytes that are still unsent at its second measurement after this call
        (:meth:`end_if_closing`).
        """
        self.flush()
        # Close only once: after a second close(), asyncio's TLS transport fails at the next write.
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()


def _describe(event: Event[Waiter] | None) -> str:
    if event is None:
        return "plain frames"
    return "response" if isinstance(event, Answered) else f"code {event.code}"


def host_of(address: str) -> str:
    """Return the host of "ip:port"."""
    return address.rpartition(":")[0].strip("[]")


def describe_host(host: str, port: int) -> tuple[str, bytes, bool]:
    """Return a socket name as text "ip:port", as record bytes, and whether it is a loopback.

    An IPv4 address on an IPv6 socket (IPv4-mapped) is returned as an IPv4 address.
    """
    plain = host.removeprefix("::ffff:") if "." in host else host.partition("%")[0]
    family = socket.AF_INET6 if ":" in plain else socket.AF_INET
    packed = socket.inet_pton(family, plain)
    loopback = plain == "::1" or plain.startswith("127.")
    text = f"[{plain}]:{port}" if family is socket.AF_INET6 else f"{plain}:{port}"
    return text, packed + port.to_bytes(4, "big"), loopback
