"""The slave's end of replication: connects to the master, copies its log, reports its offset.

Received records are checked and written in the turn in which they arrive. They are reported once
they are as safe as the flush policy requires: written, or with SYNC_FLUSH durable. After any
disconnect the slave connects again, and incomplete or invalid records are sent again.

The protocol has no handshake that could detect different logs. If a master lost its last second in
a power cut and went on, a slave would continue from its own offset, and the two logs would differ
for ever. So a slave requests the last part of its own log again and compares it (:class:`Overlap`):

    connect, report an offset before the end of its log, receive the overlap
        the overlap is equal                copy the bytes after it
        the overlap differs                 LogsDiffer with the offset; copy nothing
        the master's log ends in it         LogsDiffer with is_shorter; copy nothing
        the master closes the connection    its log may be far shorter: report an earlier offset

If the logs differ close to the start of the overlap, the slave requests a larger one, until it
finds the offset at which they diverge.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, cast

from cometmq.core.errors import CometError, NotConnected, SettingsError, StoreError
from cometmq.net.client import split_address
from cometmq.replication.transfer import BadPeer, MasterLink

if TYPE_CHECKING:
    from cometmq.core.clock import Clock
    from cometmq.net.outgoing import ClientTls
    from cometmq.store.messagestore import MessageStore
    from cometmq.store.replica import Replica

log = logging.getLogger(__name__)

#: Interval between two attempts to reach the master.
RETRY_MS: Final = 1_000
CONNECT_TIMEOUT_MS: Final = 3_000
_TICK_MS: Final = 1_000
#: Number of heartbeats in a row, without data in between, after which the master has sent its whole
#: log. A single one may come because the connection was busy.
_BEATS_AT_END: Final = 2
#: Messages that wait for dispatch: reading pauses above the first limit and resumes at the second.
_BACKLOG_HIGH: Final = 65_536
_BACKLOG_LOW: Final = 16_384
#: Maximum size of one read from the master, which fits the processor's cache.
_RECEIVE_BYTES: Final = 256 << 10
#: Size of the first overlap. Each retry multiplies it by _GROWTH.
OVERLAP_BYTES: Final = 64 << 10
#: Logs that have diverged may match by chance for up to this number of bytes, since bodies repeat.
SURE_BYTES: Final = 4 << 10
_GROWTH: Final = 16


class Overlap:
    """Last part of a slave's log, which it requests again to compare it.

    The log is ``start <= offset < end``, the overlap begins at ``begin``, which the slave reports.
    :meth:`retry` moves ``begin`` back if the logs diverge earlier. ``whole`` asks a Java master for
    the whole log if the slave's log is empty.
    """

    __slots__ = ("_size_bytes", "_skips_one", "begin", "end", "start")

    def __init__(self, start: int, end: int, *, whole: bool = False) -> None:
        self.start = start
        self.end = end
        self._skips_one = whole and end == 0
        self._size_bytes = OVERLAP_BYTES
        self.begin = self._begin()

    def _begin(self) -> int:
        if self.end == 0:
            return 1 if self._skips_one else 0
        # Never 0, which would report an empty log.
        return max(self.start, self.end - self._size_bytes, 1)

    def parted_before(self, offset: int) -> bool:
        """Return whether logs that differ at ``offset`` may have diverged before ``begin``."""
        return offset - self.begin < SURE_BYTES and self.goes_back

    @property
    def lacks_first_byte(self) -> bool:
        """True if an empty slave reports that it has one byte.

        A Java master sends only its last file to a slave that reports 0. To report 1 is safe: the
        first byte of any log is the high byte of a size, which is 0.
        """
        return self.end == 0 and self._skips_one

    @property
    def goes_back(self) -> bool:
        """True if an earlier part of the log can be requested."""
        return self.begin > max(self.start, 1)

    def retry(self) -> bool:
        """Move ``begin`` back; return False if there is nothing earlier to request."""
        if self.lacks_first_byte:
            self._skips_one, self.begin = False, 0
            return True
        before = self.begin
        self._size_bytes *= _GROWTH
        self.begin = self._begin()
        return self.begin < before


def first_difference(ours: memoryview | bytes, theirs: memoryview | bytes) -> int:
    """Return the index of the first difference of two pieces of equal length; -1 if they match."""
    if ours == theirs:
        return -1
    # Bisect: comparing slices is much faster than comparing bytes in a loop.
    low, high = 0, len(ours)
    while high - low > 1:
        middle = (low + high) // 2
        if ours[low:middle] == theirs[low:middle]:
            low = middle
        else:
            high = middle
    return low


class LogsDiffer(CometError):
    """The master's log is not a continuation of this one.

    The logs differ from ``offset`` on, or the master's ends there (``is_shorter``). This log ends
    at ``end``.
    """

    def __init__(self, master: str, offset: int, end: int, *, is_shorter: bool = False) -> None:
        self.master = master
        self.offset = offset
        self.end = end
        self.is_shorter = is_shorter
        how = "ends" if is_shorter else "differs from this one"
        super().__init__(
            f"the log of master {master} {how} at offset {offset}, and {end - offset} bytes of "
            "this log are not in it: nothing is copied. Decide which log is right, then start "
            "this broker with haRejoin=truncate to cut its log there, or promote it"
        )


class Unwelcome(CometError):
    """The master closes the connection, whatever offset the slave reports."""

    def __init__(self, master: str) -> None:
        self.master = master
        super().__init__(
            f"master {master} refuses the connections of this slave: its log may be empty, or may "
            "not continue the log of this slave; the master logs the reason (slave_refused), "
            "unless haTlsEnable differs between the two"
        )


class Slave:
    """Copies a master's log into a store.

    ``master`` returns the address to connect to, "" while it is unknown. ``on_change`` is called
    when :attr:`is_connected` changes, ``on_differ`` when the logs differ. ``problem`` is the reason
    why copying stopped, if it did. ``tls`` is for a master that accepts only TLS.
    """

    def __init__(
        self,
        store: MessageStore,
        replica: Replica,
        *,
        clock: Clock,
        master: Callable[[], str],
        whole_history: bool = False,
        on_differ: Callable[[LogsDiffer], None] = lambda problem: None,
        tls: ClientTls | None = None,
    ) -> None:
        self._tls = tls
        self._whole_history = whole_history
        self.store = store
        self.replica = replica
        self.clock = clock
        self._master = master
        self._connection: _Connection | None = None
        self._due = asyncio.Event()
        self.on_change: list[Callable[[], None]] = []
        self.on_differ = on_differ
        self.problem: CometError | None = None
        store.on_progress.append(self._progressed)
        store.listeners.append(self._progressed)

    @property
    def is_connected(self) -> bool:
        """True once the connected master has sent something."""
        return self._connection is not None and self._connection.link.heard

    async def run_forever(self) -> None:
        """Keep a connection to the master."""
        overlap: Overlap | None = None
        while True:
            address = self._master()
            if address:
                overlap = overlap or Overlap(
                    self.store.log.segments.start,
                    self.store.written_offset,
                    whole=self._whole_history,
                )
                again = await self._follow(address, overlap)
                if again and overlap.retry():
                    continue
                if again:
                    self.stopped(Unwelcome(address))
                overlap = None
            self._due.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(RETRY_MS / 1000):
                    await self._due.wait()

    def try_now(self) -> None:
        """Connect without the rest of RETRY_MS, because the master may be reachable now."""
        self._due.set()

    async def _follow(self, address: str, overlap: Overlap) -> bool:
        """Copy until the connection ends; return True if an earlier offset may help."""
        try:
            host, port = split_address(address)
        except NotConnected as error:
            # The address may come from a name server.
            log.warning("master_unreachable address=%s reason=%r", address, error.problem)
            return False
        tls = self._tls
        loop = asyncio.get_running_loop()
        connection = _Connection(self, address, overlap)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_MS / 1000):
                context = None if tls is None else await tls.context(host)
                await loop.create_connection(lambda: connection, host, port, ssl=context)
        except (OSError, TimeoutError, SettingsError) as error:
            reason = str(error) if tls is None else tls.explain(error, host)
            if isinstance(error, TimeoutError):
                reason = f"no connection within {CONNECT_TIMEOUT_MS} ms"
            log.warning("master_unreachable address=%s reason=%r", address, reason)
            return False
        self._connection = connection
        try:
            await connection.over
        finally:
            self._connection = None
            connection.abort()
            self.replica.drop_rest()
            self.changed()
        # A CometMQ master closes the connection if the reported offset is after the end of its log.
        return connection.parted_before or not (connection.link.heard or connection.was_aborted)

    def _progressed(self, _: object = None) -> None:
        connection = self._connection
        if connection is not None and not connection.receives:
            connection.progressed()

    def changed(self) -> None:
        """Call ``on_change``, because the connection is in use or has ended."""
        for call in self.on_change:
            call()

    def stopped(self, problem: CometError) -> None:
        """Note why copying cannot continue, and log the reason if it is another one."""
        if str(problem) != str(self.problem):
            log.error("replication_stopped master=%s reason=%r", self._master(), str(problem))
        self.problem = problem
        if isinstance(problem, LogsDiffer):
            self.on_differ(problem)


class _Connection(asyncio.BufferedProtocol):
    """One connection to the master. The future ``over`` is done when it has ended."""

    def __init__(self, slave: Slave, address: str, overlap: Overlap) -> None:
        self._slave = slave
        self._now_ns = slave.clock.monotonic_ns
        self.receives = False
        self._address = address
        self._overlap = overlap
        self.link = MasterLink(overlap.begin, slave.clock.monotonic_ms())
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.parted_before = False
        self.was_aborted = False
        self._transport: asyncio.Transport | None = None
        self._buffer = memoryview(b"")
        self._paused = False
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports behave like asyncio.Transport but do not inherit from it.
        transport = cast("asyncio.Transport", transport)
        self._transport = transport
        self._buffer = memoryview(bytearray(_RECEIVE_BYTES))
        log.info("master_connected address=%s from=%d", self._address, self.link.received)
        self._tick()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            # Expected if the slave reported 1, which a CometMQ master refuses; it reports 0 next.
            is_odd = self._overlap.lacks_first_byte and not self.link.heard
            level = logging.INFO if is_odd else logging.WARNING
            log.log(level, "master_gone address=%s reason=%r", self._address, str(exc or "closed"))
        self._end()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        link, heard = self.link, self.link.heard
        # Calls of ``progressed`` in the loop are ignored, because one report follows after it.
        self.receives = True
        try:
            now_ms = self._now_ns() // 1_000_000
            for offset, piece in link.receive_data(self._buffer[:nbytes], now_ms):
                self._take(offset, piece)
            if link.beats >= _BEATS_AT_END:
                self._find_end()
        except (BadPeer, StoreError, LogsDiffer, OSError) as error:
            self._refuse(error)
            return
        finally:
            self.receives = False
        if not heard:
            self._slave.changed()
        self.progressed()

    def _take(self, offset: int, piece: memoryview) -> None:
        slave, end = self._slave, self._overlap.end
        if offset == 1 and self._overlap.lacks_first_byte:
            offset, piece = 0, memoryview(b"".join((b"\0", piece)))
        if offset < end:
            # The overlap is compared, never written.
            known = piece[: end - offset]
            self._compare(offset, known)
            offset, piece = offset + len(known), piece[len(known) :]
        if not piece:
            return
        slave.problem = None
        if slave.replica.received != offset:
            slave.replica.begin(offset)
        slave.replica.take(piece)
        if slave.store.waits_for_sync:
            slave.store.sync()

    def _find_end(self) -> None:
        """Check that the master's log does not end before this one; all of it was received.

        Raise LogsDiffer if it does.
        """
        link, overlap = self.link, self._overlap
        if overlap.lacks_first_byte and link.received == 1:
            # The master has dropped the first file: report 0 next, so that it chooses the offset.
            self.parted_before = True
            raise LogsDiffer(self._address, 1, 1, is_shorter=True)
        if link.received < overlap.end:
            self.parted_before = overlap.parted_before(link.received)
            raise LogsDiffer(self._address, link.received, overlap.end, is_shorter=True)

    def _compare(self, offset: int, theirs: memoryview) -> None:
        """Raise LogsDiffer if the master's bytes differ from this log's at ``offset``."""
        segments = self._slave.store.log.segments
        while theirs:
            file = segments.find(offset)
            assert file is not None
            ours = bytearray(min(len(theirs), file.end - offset))
            file.read_into(ours, offset)
            at = first_difference(memoryview(ours), theirs[: len(ours)])
            if at >= 0:
                self.parted_before = self._overlap.parted_before(offset + at)
                raise LogsDiffer(self._address, offset + at, self._overlap.end)
            offset, theirs = offset + len(ours), theirs[len(ours) :]

    def _refuse(self, error: Exception) -> None:
        if not self.parted_before:
            self._slave.stopped(error if isinstance(error, CometError) else StoreError(str(error)))
        self.abort()

    def progressed(self) -> None:
        """Report new bytes, and pause or resume reading depending on the dispatch backlog."""
        transport, slave = self._transport, self._slave
        if transport is None:
            return
        log = slave.store.log
        kept = log.durable if slave.store.waits_for_sync else log.written
        has = min(kept, self.link.received)
        report = self.link.report(max(has, self._overlap.begin), self._now_ns() // 1_000_000)
        if report is not None:
            transport.write(report)
        waiting = slave.store.backlog.messages
        if self._paused and waiting <= _BACKLOG_LOW:
            self._paused = False
            transport.resume_reading()
        elif not self._paused and waiting > _BACKLOG_HIGH:
            self._paused = True
            transport.pause_reading()

    def _tick(self) -> None:
        if self.over.done():
            return
        if self.link.is_silent(self._slave.clock.monotonic_ms()) and not self._paused:
            log.warning("master_silent address=%s", self._address)
            self.abort()
            return
        self.progressed()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_TICK_MS / 1000, self._tick)

    def abort(self) -> None:
        """Close the connection at once."""
        transport, self._transport = self._transport, None
        if transport is not None:
            self.was_aborted = True
            transport.abort()
        self._end()

    def _end(self) -> None:
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        if not self.over.done():
            self.over.set_result(None)
