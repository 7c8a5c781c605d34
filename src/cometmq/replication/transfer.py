"""RocketMQ's replication protocol, both sides of a connection, without I/O.

    slave -> master   report      {offset 8}                     the end of the slave's log
    master -> slave   transfer    {offset 8, size 4} + log bytes; size 0 is a heartbeat

All integers are big-endian and signed. There is no handshake: the slave's first report is the
offset at which the master begins, 0 if the slave is empty. Transfers are contiguous and may split
records. A side that is silent for 20 s counts as gone (upstream: HAService.java,
HAConnection.java).

This port leaves no room for extensions, such as epochs: a Java master takes any eight bytes for a
report. Both sides would have to agree on one before they connect, by a request over the remoting
port, which a Java broker answers with "not supported".
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Final

from cometmq.core.errors import CometError

REPORT: Final = Struct(">q")
TRANSFER: Final = Struct(">qi")

HEARTBEAT_MS: Final = 5_000
SILENCE_MS: Final = 20_000

#: Maximum size of a transfer. No implementation sends more: a Java slave's buffer holds 4 MiB.
TRANSFER_MAX_BYTES: Final = 32 << 20


class BadPeer(CometError):
    """The peer violated the protocol; ``problem`` says how."""

    def __init__(self, problem: str) -> None:
        self.problem = problem
        super().__init__(problem)


class OddBegin(BadPeer):
    """The first report is 1, and this log has no byte there.

    An empty slave reports 1 to get the whole log from a Java master. It then connects again and
    reports 0.
    """


@dataclass(frozen=True, slots=True)
class Bounds:
    """Part of a master's log that can be sent: ``start <= offset < end``."""

    start: int
    end: int


class SlaveLink:
    """The master's state of one connected slave.

    Any program may connect to the port and send eight bytes. So a first report must be an offset in
    the log, and a later one must lie between the previous report and the end of the sent bytes. Any
    other report ends the connection and acknowledges nothing.

    ``acked`` is the last reported offset, -1 before the first report. ``began`` is the offset of
    the first byte sent, ``sent`` the end of the sent bytes.
    """

    __slots__ = ("_buffer", "_heard_ms", "_sent_ms", "acked", "began", "sent")

    def __init__(self, now_ms: int) -> None:
        self._buffer = b""
        self._heard_ms = self._sent_ms = now_ms
        self.acked = -1
        self.began = -1
        self.sent = -1

    @property
    def is_known(self) -> bool:
        """True once the slave has reported an offset."""
        return self.sent >= 0

    @property
    def has_copied(self) -> bool:
        """True once the slave acknowledged bytes that were sent to it."""
        return self.acked > self.began

    def receive_data(self, data: bytes, bounds: Bounds, begin: int, now_ms: int) -> bool:
        """Handle bytes from the slave; return whether its offset advanced.

        ``bounds`` is the part of the log that can be sent, ``begin`` the offset at which an empty
        slave starts. Raises BadPeer for a report that cannot be true, and for a slave that needs
        bytes that the log no longer has.
        """
        data = self._buffer + data
        whole = len(data) - len(data) % REPORT.size
        self._buffer = data[whole:]
        if whole:  # an incomplete report does not count as a sign of life
            self._heard_ms = now_ms
        before = self.acked
        for (offset,) in REPORT.iter_unpack(data[:whole]):
            self._report(offset, bounds, begin)
        return self.acked > before

    def _report(self, offset: int, bounds: Bounds, begin: int) -> None:
        if self.sent >= 0:
            # Anything else would acknowledge bytes that the slave cannot have.
            if not self.acked <= offset <= self.sent:
                raise BadPeer(f"it reports {offset} after {self.acked}, but was sent {self.sent}")
            self.acked = offset
            return
        if offset == 1 and not bounds.start <= offset <= bounds.end:
            raise OddBegin("it is empty, and asks for a log that begins at 0 and has messages")
        if not 0 <= offset <= bounds.end:
            raise BadPeer(f"its first report is {offset}; the log ends at {bounds.end}")
        if 0 < offset < bounds.start:
            raise BadPeer(
                f"its log ends at {offset}, and this log now begins at {bounds.start}: start the "
                "slave with an empty store"
            )
        self.acked = offset
        self.began = self.sent = offset or begin

    def header(self, size_bytes: int, now_ms: int) -> bytes:
        """Return the header of a transfer of the next ``size_bytes``, and count them as sent."""
        head = TRANSFER.pack(self.sent, size_bytes)
        self.sent += size_bytes
        self._sent_ms = now_ms
        return head

    def heartbeat(self, now_ms: int) -> bytes | None:
        """Return an empty transfer if nothing was sent for HEARTBEAT_MS, otherwise None."""
        if not self.is_known or now_ms - self._sent_ms < HEARTBEAT_MS:
            return None
        return self.header(0, now_ms)

    def is_silent(self, now_ms: int) -> bool:
        """Return whether the slave has been silent for longer than SILENCE_MS."""
        return now_ms - self._heard_ms > SILENCE_MS


class MasterLink:
    """The slave's state of its connection to the master.

    ``has`` is the offset of the first report, 0 if the slave's log is empty. ``received`` is the
    end of the received log bytes. ``heard`` is True once anything was received. ``beats`` counts
    the heartbeats since the last log bytes.
    """

    __slots__ = ("_head", "_heard_ms", "_left", "_may_begin", "_reported", "_reported_ms", "beats",
                 "heard", "received")  # fmt: skip

    def __init__(self, has: int, now_ms: int) -> None:
        self._head = b""
        self._left = 0
        self._heard_ms = now_ms
        self._reported = -1
        self._reported_ms = now_ms
        self._may_begin = has == 0
        self.received = has
        self.heard = False
        self.beats = 0

    def receive_data(self, data: memoryview, now_ms: int) -> list[tuple[int, memoryview]]:
        """Handle bytes from the master; return (offset, piece) pairs of its log, in order.

        Pieces are contiguous. For an empty slave the first one may begin at any offset. Raises
        BadPeer if a transfer does not begin where the previous one ended.
        """
        self._heard_ms = now_ms
        self.heard = True
        found: list[tuple[int, memoryview]] = []
        while data:
            if not self._left:
                take = TRANSFER.size - len(self._head)
                self._head += data[:take]
                data = data[take:]
                if len(self._head) < TRANSFER.size:
                    break
                self._begin(*TRANSFER.unpack(self._head))
                self._head = b""
                continue
            piece = data[: self._left]
            data = data[len(piece) :]
            found.append((self.received, piece))
            self.received += len(piece)
            self._left -= len(piece)
        return found

    def _begin(self, offset: int, size_bytes: int) -> None:
        if not 0 <= size_bytes <= TRANSFER_MAX_BYTES:
            raise BadPeer(f"the size of a transfer is {size_bytes} bytes")
        if offset != self.received:
            # An empty slave accepts any first offset: the master may have dropped older files.
            if not self._may_begin or offset < 0:
                raise BadPeer(
                    f"it sends the log from {offset}, but this log ends at {self.received}"
                )
            self.received = offset
        if size_bytes:
            self._may_begin = False
            self.beats = 0
        else:
            self.beats += 1
        self._left = size_bytes

    def report(self, has: int, now_ms: int) -> bytes | None:
        """Return a report of the offset ``has``; None if it was reported within HEARTBEAT_MS."""
        if has == self._reported and now_ms - self._reported_ms < HEARTBEAT_MS:
            return None
        self._reported, self._reported_ms = has, now_ms
        return REPORT.pack(has)

    def is_silent(self, now_ms: int) -> bool:
        """Return whether the master has been silent for longer than SILENCE_MS."""
        return now_ms - self._heard_ms > SILENCE_MS
