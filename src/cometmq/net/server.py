"""Listening sockets: accepts connections, closes idle ones, and shuts down in order.

Without TLS the event loop accepts connections. With TLS (tls.py) the server accepts them itself and
peeks at the first byte: 0x16 opens a TLS handshake. Any other byte is plain remoting, which is
served or refused depending on the mode (upstream: TlsMode). The peek has a deadline, otherwise
silent sockets would pile up.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Set
from typing import TYPE_CHECKING, Final, Protocol

from cometmq.core.clock import Slices
from cometmq.net.eventloop import Watchdog
from cometmq.net.limits import Limit, bound_unsent, notice_dead_clients
from cometmq.net.peer import Peer, WriteCoalescer, describe_host, host_of
from cometmq.net.resources import PROCESS, backlog, max_connections, process_budget

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.core.clock import Clock
    from cometmq.net.eventloop import BusyPoll
    from cometmq.net.resources import MemoryBudget
    from cometmq.net.router import Router
    from cometmq.net.tasks import Tasks
    from cometmq.net.tls import ServerTls

log = logging.getLogger(__name__)

FIRST_BYTE_TIMEOUT_S: Final = 10.0
HANDSHAKE_TIMEOUT_S: Final = 10.0
IDLE_SCAN_MS: Final = 10_000
SHED_SCAN_MS: Final = 1_000
DRAIN_POLL_MS: Final = 5
#: Time that connections have to send their queued bytes when the server closes.
CLOSE_TIMEOUT_S: Final = 0.2
#: Connections measured between two checks of the time.
_MEASURED_AT_ONCE: Final = 64
_TLS_HANDSHAKE: Final = 0x16


class Reserve(Protocol):
    """Function that returns a socket bound to an address, as :func:`reserve` does."""

    def __call__(self, host: str, port: int, /, *, exclusive: bool = False) -> socket.socket: ...


class Server:
    """All listening sockets of one broker or name server, and the connections they accepted."""

    def __init__(
        self,
        router: Router,
        *,
        clock: Clock,
        tasks: Tasks,
        watchdog: Watchdog | None = None,
        tls: ServerTls | None = None,
        lookout: BusyPoll | None = None,
        reserve: Reserve | None = None,
        budget: MemoryBudget | None = None,
    ) -> None:
        self._router = router
        self._limits = router.limits
        self._clock = clock
        self._tasks = tasks
        self._tls = tls
        self._lookout = lookout
        self._reserve = reserve
        self._servers: list[asyncio.Server] = []
        #: With TLS: sockets, and the tasks that accept on them.
        self._sockets: list[tuple[socket.socket, asyncio.Task[None]]] = []
        #: True once no further connections are accepted.
        self._is_ending = False
        self._scanning = False
        self._listeners: list[socket.socket] = []
        #: Idle time after which the kernel closes connections, as last set on the sockets.
        self._idle_s = 0
        self._budget = process_budget() if budget is None else budget
        self._max_connections = max_connections()
        self._undecided = 0  # accepted, waiting for the first byte
        self.watchdog = watchdog or Watchdog(clock)
        self._departures = WriteCoalescer(self.watchdog)
        # A dict keeps the order of arrival.
        self._peers: dict[Peer, None] = {}

    @property
    def peers(self) -> Set[Peer]:
        """Open connections."""
        return self._peers.keys()

    @property
    def open_connections(self) -> int:
        """Number of open connections, including those that have sent nothing yet."""
        return len(self._peers) + self._undecided

    def has_room(self, host: str) -> bool:
        """Return whether another connection of a host may be accepted; if not, count and log it.

        Descriptors reserved for the stores of this process are not given to connections.
        """
        room = PROCESS.room(self, self._max_connections)
        refusal = self._limits.refusal(host, self.open_connections, room)
        if refusal is None:
            return True
        self._limits.hit(refusal[0], host, refusal[1])
        return False

    async def listen(self, host: str, port: int) -> int:
        """Reserve ``host:port``, serve it at once and return the port; port 0 picks a free one.

        Raises OSError when the address cannot be bound.
        """
        listener = (self._reserve or reserve)(host, port)
        await self.serve(listener)
        bound: int = listener.getsockname()[1]
        return bound

    async def serve(self, listener: socket.socket) -> None:
        """Accept connections on a reserved socket, which the server owns from then on."""
        if not self._scanning:
            self._scanning = True
            self._budget.servers[id(self)] = lambda: self.peers
            self._tasks.keep(self._close_idle, name="close idle connections", clock=self._clock)
            self._tasks.keep(self._measure, name="measure connections", clock=self._clock)
        PROCESS.join(self)
        waiting = backlog()
        bound_unsent(listener)
        self._listeners.append(listener)
        self._idle_s = self._limits.settings.server_channel_max_idle_time_seconds
        if self._idle_s:
            notice_dead_clients(listener, self._idle_s)
        try:
            listener.listen(waiting)
        except OSError as error:
            host, port = listener.getsockname()[:2]
            raise name_address(error, host, port) from None
        if self._tls is None:
            loop = asyncio.get_running_loop()
            server = await loop.create_server(self._new_peer, sock=listener, backlog=waiting)
            self._servers.append(server)
        else:
            accepting = self._tasks.spawn(
                self._accept(listener), name=f"accept {listener.getsockname()}"
            )
            self._sockets.append((listener, accepting))

    async def drain(self, is_idle: Callable[[], bool], limit_ms: int) -> bool:
        """Stop accepting connections and requests, and wait until received requests are answered.

        Wait until their responses are sent and ``is_idle`` returns True, at most ``limit_ms``;
        return whether that happened. Pulls that wait for messages are not waited for. Call this
        before :meth:`close`, which leaves a slow client little time to read.
        """
        self._stop_listening()
        for peer in list(self.peers):
            peer.read_no_more()
        deadline_ms = self._clock.monotonic_ms() + limit_ms
        while not is_idle() or any(peer.is_serving for peer in self.peers):
            if self._clock.monotonic_ms() >= deadline_ms:
                return False
            await self._clock.sleep_ms(DRAIN_POLL_MS)
        return True

    def _stop_listening(self) -> None:
        self._is_ending = True
        for server in self._servers:
            server.close()
        loop = asyncio.get_running_loop()
        for listener, accepting in self._sockets:
            # Before the close: then another socket may get the same descriptor, and the loop would
            # take that socket for the listener.
            loop.remove_reader(listener)
            accepting.cancel()
            listener.close()
        self._sockets.clear()

    async def close(self) -> None:
        """Stop listening, then close every connection after sending the bytes queued for it.

        Bytes that a client does not accept within CLOSE_TIMEOUT_S are dropped.
        """
        if self._scanning:
            del self._budget.servers[id(self)]
            if not self._budget.servers:  # a measurement under way may never continue
                self._budget.is_due = False
            self._budget.buffered_bytes.pop(id(self), None)
            self._budget.weigh()
            self._scanning = False
        self._stop_listening()
        await self._close_peers()
        PROCESS.leave(self)

    async def _close_peers(self) -> None:
        gone = asyncio.Event()

        def left(_: Peer) -> None:
            if not self._peers:
                gone.set()

        for peer in list(self.peers):
            peer.on_close.append(left)
            peer.close()
        if self._peers:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await gone.wait()
        # A TLS connection stays open until the client answers its close, which an idle client may
        # never do. uvloop would block for 30 s when its loop ends.
        for peer in list(self.peers):
            peer.abort()
        await asyncio.sleep(0)  # noqa: TID251 - a yield, not a wait

    def _new_peer(self) -> Peer:
        return Peer(
            self._router,
            clock=self._clock,
            watchdog=self.watchdog,
            peers=self._peers,
            has_room=self._admits,
            lookout=self._lookout,
            departures=self._departures,
            budget=self._budget,
        )

    def _admits(self, host: str) -> bool:
        """Return whether a connection that is ready for requests is admitted.

        With TLS the limits were checked when it was accepted, but the server may be ending by now.
        """
        return not self._is_ending and (self._tls is not None or self.has_room(host))

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, (address, port, *_) = await loop.sock_accept(listener)
            except OSError as error:
                if listener.fileno() < 0:
                    return
                log.warning("accept failed error=%s", error)
                await self._clock.sleep_ms(100)
                continue
            host = host_of(describe_host(address, port)[0])
            if not self.has_room(host):
                accepted.close()
                await asyncio.sleep(0)  # noqa: TID251 - let others run if many come
                continue
            self._undecided += 1
            self._limits.entered(host)
            self._tasks.spawn(self._adopt(accepted, host), name="first byte")

    async def _adopt(self, accepted: socket.socket, host: str) -> None:
        """Serve an accepted socket with or without TLS, depending on its first byte."""
        loop = asyncio.get_running_loop()
        try:
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.timeout(FIRST_BYTE_TIMEOUT_S):
                first = await _peek(loop, accepted)
            assert self._tls is not None
            if self._is_ending:
                accepted.close()
            elif first[:1] == bytes([_TLS_HANDSHAKE]):
                await loop.connect_accepted_socket(
                    self._new_peer,
                    accepted,
                    ssl=self._tls.context,
                    ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S,
                )
            elif self._tls.is_enforced:
                log.info("connection dropped before its first request reason=not with TLS")
                accepted.close()
            else:
                await loop.connect_accepted_socket(self._new_peer, accepted)
        except (TimeoutError, ConnectionAbortedError):
            # The event loop reports a handshake that takes too long as an aborted connection.
            reason = "connection closed: no first byte or no end of the TLS handshake in time"
            self._limits.hit(Limit.HANDSHAKE_TIME, host, reason)
            accepted.close()
        except OSError as error:
            log.info("connection dropped before its first request error=%r", error)
            accepted.close()
        except BaseException:
            accepted.close()
            raise
        finally:
            self._undecided -= 1
            self._limits.left(host)

    async def _measure(self) -> None:
        """Measure the buffers of all connections every SHED_SCAN_MS, and shed memory if needed.

        Close connections with late frames, and abort those that were already closing at the last
        measurement. Ten thousand connections take 15 ms to measure, so this is done in slices.
        """
        while True:
            await self._clock.sleep_ms(SHED_SCAN_MS)
            timeout_ms = self._limits.settings.frame_receive_timeout
            slices, buffered_bytes = Slices(self._clock), 0
            for number, peer in enumerate(list(self.peers)):
                if not number % _MEASURED_AT_ONCE:
                    await slices.pause()
                buffered_bytes += peer.buffered_bytes
                if peer.end_if_closing():
                    continue
                if timeout_ms and peer.is_receiving:
                    peer.close_if_late(self._clock.monotonic_ms(), timeout_ms)
            if self._scanning:  # the server may have been closed meanwhile
                self._budget.buffered_bytes[id(self)] = buffered_bytes
                self._budget.weigh()
                self._budget.shed_if_full()

    async def _notice_dead_clients(self, idle_s: int) -> None:
        """Apply a changed idle time to open and to further connections."""
        for listener in self._listeners:
            notice_dead_clients(listener, idle_s)
        slices = Slices(self._clock)
        for number, peer in enumerate(list(self.peers)):
            if not number % _MEASURED_AT_ONCE:
                await slices.pause()
            peer.notice_death(idle_s)

    async def _close_idle(self) -> None:
        while True:
            await self._clock.sleep_ms(IDLE_SCAN_MS)
            idle_s = self._limits.settings.server_channel_max_idle_time_seconds
            if idle_s != self._idle_s:
                self._idle_s = idle_s
                await self._notice_dead_clients(idle_s)
            if limit_ms := idle_s * 1000:
                now_ms = self._clock.monotonic_ms()
                slices = Slices(self._clock)
                for number, peer in enumerate(list(self.peers)):
                    if not number % _MEASURED_AT_ONCE:
                        await slices.pause()
                    peer.close_if_idle(now_ms, limit_ms)


def reserve(host: str, port: int, *, exclusive: bool = False) -> socket.socket:
    """Return a socket bound to ``host:port``, which refuses connections until it is served.

    To reserve a port at the start detects a port in use before other work is done. Port 0 picks a
    free port. A picked or ``exclusive`` port is reserved for this process alone; otherwise several
    processes can bind a port, and only one of them can listen. Raises OSError if the address cannot
    be bound.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setblocking(False)
        if port and not exclusive:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        # Connections inherit this option, so that a restart can bind while old connections linger.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    except OSError as error:
        listener.close()
        raise name_address(error, host, port) from None
    except BaseException:
        listener.close()
        raise
    return listener


def name_address(error: OSError, host: str, port: int) -> OSError:
    """Return a copy of an error that names the address, or the error itself if that is not
    possible."""
    if error.errno is None or error.strerror is None or isinstance(error, socket.gaierror):
        return error
    return OSError(error.errno, error.strerror, f"{host}:{port}")


async def _peek(loop: asyncio.AbstractEventLoop, accepted: socket.socket) -> bytes:
    """Return the first byte of a socket without consuming it."""
    while True:
        with contextlib.suppress(BlockingIOError):
            return accepted.recv(1, socket.MSG_PEEK)
        readable = asyncio.Event()
        loop.add_reader(accepted, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(accepted)
