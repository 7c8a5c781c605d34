"""The master's end of replication: accepts slaves' connections and pushes the log to them.

Recently written bytes are sent in the turn that wrote them. A thread reads bytes that are not in
memory, one piece at a time for each slave. With SYNC_FLUSH only durable bytes are sent: a slave
must not have records that its master may lose in a power cut.

Replica counts. ``copies`` is the number of logs that must hold a message, the master's included
(upstream: inSyncReplicas). A slave counts with the offset that it acknowledged on its current
connection; a disconnected one does not count. The reached offset is the highest one that ``copies``
logs hold.

Admission. The port has no authentication, so connections are limited, and strangers must not
displace slaves. A connection is silent until it reports an offset; silent connections have a limit
of their own. A new connection is always admitted. At the limit another one is closed instead. It is
chosen by these criteria, in this order:

1. its host has the most connections
2. its host never had a slave
3. it never acknowledged bytes sent to it
4. it is the oldest
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar, cast

from cometmq.core.errors import StoreError
from cometmq.net.limits import Limit, ServerLimits
from cometmq.replication.transfer import BadPeer, Bounds, OddBegin, SlaveLink

if TYPE_CHECKING:
    import socket

    from cometmq.core.clock import Clock
    from cometmq.net.tasks import Tasks
    from cometmq.net.tls import ServerTls
    from cometmq.store.messagestore import MessageStore

log = logging.getLogger(__name__)

_TICK_MS: Final = 1_000
#: Limit of unsent bytes in a connection; above it, sending of the log pauses.
_BUFFER_BYTES: Final = 1 << 20
_BACKLOG: Final = 64
_HANDSHAKE_TIMEOUT_S: Final = 10
_ANY: Final = Bounds(0, 0)
_BURST_MS: Final = 100
#: Lag, in bytes, from which on sends do not wait for a slave (upstream: haSlaveFallbehindMax).
FALL_BEHIND_MAX_BYTES: Final = 256 << 20
#: Limit of silent connections. It is not small, because a Java slave reports only 5 to 6 s after it
#: connects.
SILENT_MAX: Final = 64
#: Limit of slaves. More of them are a mistake, or a program that reconnects over and over.
SLAVES_MAX: Final = 64
#: Limit of remembered hosts that had slaves; the latest are kept.
_HOSTS_MAX: Final = 64
_ACKED: Final = attrgetter("acked")


class Rate:
    """Rate limit of ``bytes_per_s``, 0 for none. Bursts of _BURST_MS are allowed."""

    __slots__ = ("_bytes_per_s", "_free_ms")

    def __init__(self, bytes_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_ms = 0.0

    def wait_ms(self, now_ms: int) -> int:
        """Return the milliseconds to wait before further bytes may be sent."""
        over_ms = self._free_ms - now_ms - _BURST_MS
        return max(int(over_ms) + 1, 0) if over_ms > 0 else 0

    def spend(self, size_bytes: int, now_ms: int) -> None:
        """Count bytes that were sent."""
        if self._bytes_per_s:
            self._free_ms = max(self._free_ms, now_ms) + 1_000 * size_bytes / self._bytes_per_s


class Acked(Protocol):
    """Slave with the offset that it has acknowledged."""

    @property
    def acked(self) -> int:
        """Offset up to which the slave has acknowledged the log; -1 if unknown."""
        ...


def reached(slaves: Collection[Acked], copies: int, end: int) -> int:
    """Return the offset up to which ``copies`` logs hold the same bytes; the master's is one.

    ``end`` is the end of the master's log. Returns 0 if there are too few slaves.
    """
    needed = copies - 1
    if needed <= 0:
        return end
    offsets = sorted(map(_ACKED, slaves), reverse=True)
    return max(offsets[needed - 1], 0) if len(offsets) >= needed else 0


def are_enough(
    slaves: Collection[Acked], copies: int, end: int, fall_behind_max_bytes: int
) -> bool:
    """Return whether ``copies`` - 1 slaves are connected with a lag below the limit."""
    near = 0
    for slave in slaves:
        near += slave.acked >= 0 and end - slave.acked < fall_behind_max_bytes
    return near >= copies - 1


class Connected(Protocol):
    """Connection, as :class:`SlaveAdmission` sees it."""

    @property
    def host(self) -> str:
        """Host of the other side."""
        ...

    @property
    def has_copied(self) -> bool:
        """True once the other side has acknowledged bytes that were sent to it."""
        ...


C = TypeVar("C", bound=Connected)


class SlaveAdmission(Generic[C]):
    """Connections of one master: ``slaves`` have reported an offset, ``silent`` have not."""

    def __init__(self, silent_max: int = SILENT_MAX, slaves_max: int = SLAVES_MAX) -> None:
        self._silent_max = silent_max
        self._slaves_max = slaves_max
        self._hosts: dict[str, None] = {}
        self.silent: dict[C, None] = {}
        self.slaves: dict[C, None] = {}

    def connected(self, newcomer: C) -> C | None:
        """Add a silent connection; return the one to close in its place, if any."""
        return self._enter(newcomer, self.silent, self._silent_max)

    def reported(self, newcomer: C) -> C | None:
        """Move a connection to ``slaves`` at its first report; return the one to close, if any."""
        self.silent.pop(newcomer, None)
        return self._enter(newcomer, self.slaves, self._slaves_max)

    def copied(self, slave: C) -> None:
        """Remember the host of a slave that acknowledged bytes sent to it."""
        self._hosts.pop(slave.host, None)
        self._hosts[slave.host] = None
        if len(self._hosts) > _HOSTS_MAX:
            del self._hosts[next(iter(self._hosts))]

    def left(self, connection: C) -> None:
        """Remove a closed connection."""
        self.silent.pop(connection, None)
        self.slaves.pop(connection, None)

    def _enter(self, newcomer: C, places: dict[C, None], most: int) -> C | None:
        leaving = None
        if len(places) >= most:
            hosts = Counter([one.host for one in places])
            hosts[newcomer.host] += 1
            # ``min`` returns the first of equals, which is the oldest.
            leaving = min(
                places,
                key=lambda one: (-hosts[one.host], one.host in self._hosts, one.has_copied),
            )
            del places[leaving]
        places[newcomer] = None
        return leaving


@dataclass(frozen=True, slots=True)
class MasterSettings:
    """Settings of a master's replication.

    ``copies`` is the number of logs, the master's included, that must hold a message before it
    counts as replicated. With ``whole_history`` an empty slave gets the whole log, otherwise only
    the last file. ``rate_bytes_per_s`` limits the rate to each slave; 0 for no limit.
    """

    copies: int = 1
    transfer_bytes: int = 256 << 10
    fall_behind_max_bytes: int = FALL_BEHIND_MAX_BYTES
    whole_history: bool = True
    rate_bytes_per_s: int = 0


@dataclass(frozen=True, slots=True)
class SlaveState:
    """A connected slave, for administrators; ``behind_bytes`` is its lag."""

    address: str
    acked: int
    behind_bytes: int


class Master:
    """Serves the slaves of one store.

    Listeners of ``on_reached`` get the offset up to which ``settings.copies`` logs hold records.
    """

    def __init__(
        self,
        store: MessageStore,
        settings: MasterSettings,
        *,
        clock: Clock,
        tasks: Tasks,
        limits: ServerLimits | None = None,
    ) -> None:
        self.store = store
        self.settings = settings
        self.clock = clock
        self.tasks = tasks
        self.limits = limits or ServerLimits(clock=clock)
        self.on_reached: list[Callable[[int], None]] = []
        self._admission: SlaveAdmission[_Slave] = SlaveAdmission()
        self._slaves = self._admission.slaves
        self._links: list[SlaveLink] = []
        self._server: asyncio.Server | None = None
        self._listener: socket.socket | None = None
        #: TLS handshakes in progress, the oldest first.
        self._handshakes: dict[asyncio.Task[None], None] = {}

    async def start(self, listener: socket.socket, tls: ServerTls | None = None) -> None:
        """Accept connections on a bound socket; with ``tls``, only those with TLS."""
        self._listener = listener
        if tls is None:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(
                lambda: _Slave(self), sock=listener, backlog=_BACKLOG
            )
        else:
            listener.listen(_BACKLOG)
            self.tasks.spawn(self._accept(listener, tls), name="accept slaves")
        self.tasks.keep(self._tick, name="replication heartbeat", clock=self.clock)

    async def close(self) -> None:
        """Close all connections at once. Slaves get the missing bytes when they connect again."""
        if self._listener is None:
            return
        if self._server is not None:
            self._server.close()
        self._listener.close()
        for handshake in self._handshakes:
            handshake.cancel()
        for slave in [*self._slaves, *self._admission.silent]:
            slave.abort()

    @property
    def end(self) -> int:
        """End of the part of the log that may be sent."""
        log = self.store.log
        return log.durable if self.store.waits_for_sync else log.written

    @property
    def reached(self) -> int:
        """Offset up to which ``settings.copies`` logs hold the records."""
        log = self.store.log
        end = log.durable if self.store.waits_for_sync else log.written
        return reached(self._links, self.settings.copies, end)

    @property
    def has_enough(self) -> bool:
        """True if enough slaves are connected, and near enough to the log's end to wait for."""
        settings, end = self.settings, self.end
        return are_enough(self._links, settings.copies, end, settings.fall_behind_max_bytes)

    def has_a_near_slave(self) -> bool:
        """Return whether a slave is near enough to the log's end for clients to read from it."""
        if not self._links:
            return False
        return are_enough(self._links, 2, self.end, self.settings.fall_behind_max_bytes)

    def slaves(self) -> list[SlaveState]:
        """Return the connected slaves that have reported an offset."""
        end = self.end
        return [
            SlaveState(slave.address, slave.link.acked, end - slave.link.acked)
            for slave in self._slaves
            if slave.link.is_known
        ]

    def progressed(self) -> None:
        """Send new bytes to all slaves: the log grew, or more of it became durable."""
        for slave in list(self._slaves):
            try:
                slave.push()
            except Exception:
                # Called in the turn that serves sends: their responses must not depend on a slave.
                log.exception("slave_lost address=%s", slave.address)
                slave.abort()

    def bounds(self) -> Bounds:
        """Return the part of the log that a slave may request."""
        return Bounds(self.store.log.segments.start, self.end)

    def begin(self) -> int:
        """Return the offset at which an empty slave begins."""
        segments = self.store.log.segments
        if self.settings.whole_history or not segments.files:
            return segments.start
        end = max(self.end - 1, segments.start)
        return end - (end - segments.start) % segments.file_bytes

    def joined(self, slave: _Slave) -> None:
        """Register a connection; close another one if there are too many silent ones."""
        self._end(self._admission.connected(slave), "too many connections without a report")

    def reported(self, slave: _Slave) -> None:
        """Register a connection as a slave; close another one if there are too many slaves."""
        if not self._slaves:
            self.store.on_progress.append(self.progressed)
        self._end(self._admission.reported(slave), "too many slaves")
        self._links = [each.link for each in self._slaves]

    def left(self, slave: _Slave) -> None:
        """Unregister a closed connection."""
        self._admission.left(slave)
        self._links = [each.link for each in self._slaves]
        if not self._slaves and self.progressed in self.store.on_progress:
            self.store.on_progress.remove(self.progressed)

    def acknowledged(self, slave: _Slave) -> None:
        """Note a slave's acknowledgement, and pass the reached offset to ``on_reached``."""
        if not slave.is_remembered and slave.has_copied:
            slave.is_remembered = True
            self._admission.copied(slave)
        for hear in self.on_reached:
            hear(self.reached)

    def _end(self, slave: _Slave | None, reason: str) -> None:
        if slave is not None:
            self.limits.hit(Limit.SLAVES, slave.address, f"connection closed: {reason}")
            slave.abort()

    async def _accept(self, listener: socket.socket, tls: ServerTls) -> None:
        """Accept connections with TLS.

        At most SILENT_MAX handshakes are in progress; for a further one the oldest is cancelled.
        """
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, (host, *_) = await loop.sock_accept(listener)
            except OSError as error:
                if listener.fileno() < 0:
                    return
                log.warning("accept failed error=%s", error)
                await self.clock.sleep_ms(_BURST_MS)
                continue
            if len(self._handshakes) >= SILENT_MAX:
                next(iter(self._handshakes)).cancel()
                self.limits.hit(Limit.SLAVES, host, "the oldest TLS handshake gives way")
                await asyncio.sleep(0)  # noqa: TID251 - the cancelled one closes its socket
            handshake = self.tasks.spawn(self._adopt(accepted, host, tls), name="slave handshake")
            self._handshakes[handshake] = None
            handshake.add_done_callback(lambda done: self._handshakes.pop(done, None))

    async def _adopt(self, accepted: socket.socket, host: str, tls: ServerTls) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: _Slave(self),
                accepted,
                ssl=tls.context,
                ssl_handshake_timeout=_HANDSHAKE_TIMEOUT_S,
            )
        except ConnectionAbortedError:  # how the event loop reports a slow handshake
            reason = "connection closed: no end of the TLS handshake in time"
            self.limits.hit(Limit.HANDSHAKE_TIME, host, reason)
        except OSError as error:
            log.info("connection dropped before its first report error=%r", error)

    async def _tick(self) -> None:
        while True:
            await self.clock.sleep_ms(_TICK_MS)
            now_ms = self.clock.monotonic_ms()
            for slave in [*self._slaves, *self._admission.silent]:
                slave.tick(now_ms)


class _Slave(asyncio.Protocol):
    """Connection of one slave."""

    def __init__(self, master: Master) -> None:
        self._master = master
        self._now_ns = master.clock.monotonic_ns
        self.link = SlaveLink(master.clock.monotonic_ms())
        self.address = self.host = ""
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._loading = False
        bytes_per_s = master.settings.rate_bytes_per_s
        self._rate = Rate(bytes_per_s) if bytes_per_s else None
        #: True once the host is remembered as the host of a slave.
        self.is_remembered = False

    @property
    def has_copied(self) -> bool:
        """True once the slave acknowledged bytes that were sent to it."""
        return self.link.has_copied

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports behave like asyncio.Transport but do not inherit from it.
        transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        self.host = peer[0] if peer else "?"
        self.address = f"{peer[0]}:{peer[1]}" if peer else "?"
        self._transport = transport
        transport.set_write_buffer_limits(high=_BUFFER_BYTES)
        self._master.joined(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None and self.link.is_known:
            log.warning(
                "slave_gone address=%s acked=%d reason=%r", self.address, self.link.acked, str(exc)
            )
        self._transport = None
        self._master.left(self)

    def data_received(self, data: bytes) -> None:
        master, link = self._master, self.link
        was_known = link.sent >= 0
        try:
            # Bounds and begin matter only to the first report.
            bounds, begin = (_ANY, 0) if was_known else (master.bounds(), master.begin())
            has_more = link.receive_data(data, bounds, begin, self._now_ns() // 1_000_000)
        except OddBegin as error:
            log.info("slave_begins_again address=%s reason=%r", self.address, error.problem)
            self.abort()
            return
        except BadPeer as error:
            master.limits.count(Limit.INVALID_STREAM)
            log.warning("slave_refused address=%s reason=%r", self.address, error.problem)
            self.abort()
            return
        if not was_known and link.is_known:
            master.reported(self)
            log.info("slave_joined address=%s from=%d", self.address, link.sent)
        if has_more:
            master.acknowledged(self)
        self.push()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self.push()

    def tick(self, now_ms: int) -> None:
        """Send a heartbeat if one is due; close the connection if the slave was silent too long."""
        if self.link.is_silent(now_ms):
            self._master.limits.count(Limit.IDLE_TIME)
            if self.link.is_known:
                log.warning("slave_silent address=%s acked=%d", self.address, self.link.acked)
            self.abort()
        elif self._transport is not None and (beat := self.link.heartbeat(now_ms)) is not None:
            self._transport.write(beat)

    def push(self) -> None:
        """Send the bytes that the slave lacks, while they are in memory and the connection accepts
        them; otherwise continue after a read or a pause.
        """
        link, master = self.link, self._master
        # One read or pause at a time for each slave, so that pieces stay in order.
        if link.sent < 0 or self._loading:
            return
        end = master.end
        while self._transport is not None and not self._paused and link.sent < end:
            if self._rate is not None and (
                wait_ms := self._rate.wait_ms(self._now_ns() // 1_000_000)
            ):
                self._later(self._after(wait_ms))
                return
            start, stop = link.sent, min(end, link.sent + master.settings.transfer_bytes)
            segments = master.store.log.segments
            file = segments.find(start)
            if file is None:
                log.warning("slave_lost address=%s offset=%d", self.address, start)
                self.abort()
                return
            stop = min(stop, file.end)
            view = master.store.reads.at_once(file, start, stop)
            if view is None:
                self._later(self._load(start, stop - start))
                return
            self._send(view)

    def _send(self, view: memoryview) -> None:
        if self._transport is None:
            return
        now_ms = self._now_ns() // 1_000_000
        if self._rate is not None:
            self._rate.spend(len(view), now_ms)
        head = self.link.header(len(view), now_ms)
        # A copy: bytes queued for a slave must not hold a view of a file that may be dropped.
        self._transport.write(b"".join((head, view)))

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        self._loading = True
        self._master.tasks.spawn(self._then_push(work), name="replication read")

    async def _then_push(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except StoreError as error:
            log.error("slave_lost address=%s reason=%r", self.address, str(error))
            self.abort()
        finally:
            self._loading = False
        self.push()

    async def _after(self, wait_ms: int) -> None:
        await self._master.clock.sleep_ms(wait_ms)

    async def _load(self, start: int, size_bytes: int) -> None:
        pieces = await self._master.store.reads.load([(start, size_bytes)], ahead=True)
        if pieces and self.link.sent == start:
            self._send(pieces[0].sound())

    def abort(self) -> None:
        """Close the connection at once."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()
