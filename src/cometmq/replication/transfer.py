"""RocketMQ's replication protocol, both sides of a connection, without input or output.

    slave -> master   report      {offset 8}                     what the slave has of the log
    master -> slave   transfer    {offset 8, size 4} + log bytes; size 0 is a heartbeat

All integers are big-endian and signed. There is no handshake: the slave's first report says where
the master is to begin, 0 that the slave has nothing. Transfers follow on one another and do not
respect the borders of records. Either side that is silent for 20 s is gone (upstream:
HAService.java, HAConnection.java).

Anything that connects to the port may send eight bytes. So a first report has to lie in the log,
and a later one between what the slave had before and what was sent to it; everything else ends the
connection and acknowledges nothing.

Room for more: a pair of ours that wants to say more than this (epochs, and where each began) has to
agree on it before the connection is made, by a request over the remoting port, which a Java broker
answers with "not supported". Here there is none: a Java master takes any eight bytes for a report.
What the two agreed on would be another pair of links beside these, with the same calls.
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

#: More than any implementation sends at once: a Java slave's buffer holds 4 MiB.
TRANSFER_MAX_BYTES: Final = 32 << 20


class BadPeer(CometError):
    """The other side sent what the protocol does not allow; ``problem`` says what."""

    def __init__(self, problem: str) -> None:
        self.problem = problem
        super().__init__(problem)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The part of a master's log that can be sent: ``start <= offset < end``."""

    start: int
    end: int


class SlaveLink:
    """What a master knows of one connected slave.

    ``acked`` is what the slave has, -1 before its first report; ``sent`` is the end of what was
    handed to the connection, ``began`` where that began.
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
        """Whether the slave has said where it stands."""
        return self.sent >= 0

    @property
    def has_copied(self) -> bool:
        """Whether the slave acknowledged something that was sent to it."""
        return self.acked > self.began

    def receive_data(self, data: bytes, bounds: Bounds, begin: int, now_ms: int) -> bool:
        """Take bytes from the slave; True when it has more than before.

        ``begin`` is where a slave that has nothing starts. Raises BadPeer for a report that cannot
        be true, and for a slave that lacks what the log does not hold any more.
        """
        data = self._buffer + data
        whole = len(data) - len(data) % REPORT.size
        self._buffer = data[whole:]
        if whole:  # less says nothing, however often it comes
            self._heard_ms = now_ms
        before = self.acked
        for (offset,) in REPORT.iter_unpack(data[:whole]):
            self._report(offset, bounds, begin)
        return self.acked > before

    def _report(self, offset: int, bounds: Bounds, begin: int) -> None:
        if self.sent >= 0:
            if not self.acked <= offset <= self.sent:
                raise BadPeer(
                    f"it reports {offset}, after {self.acked}, and was sent up to {self.sent}"
                )
            self.acked = offset
            return
        if not 0 <= offset <= bounds.end:
            raise BadPeer(f"it reports {offset} at first, the log ends at {bounds.end}")
        if 0 < offset < bounds.start:
            raise BadPeer(
                f"it has {offset}, the log begins at {bounds.start} by now: start the slave with "
                "an empty store"
            )
        self.acked = offset
        self.began = self.sent = offset or begin

    def header(self, size_bytes: int, now_ms: int) -> bytes:
        """The head of a transfer of the next ``size_bytes``, which count as sent."""
        head = TRANSFER.pack(self.sent, size_bytes)
        self.sent += size_bytes
        self._sent_ms = now_ms
        return head

    def heartbeat(self, now_ms: int) -> bytes | None:
        """A transfer of nothing, when the slave has heard nothing for long enough."""
        if not self.is_known or now_ms - self._sent_ms < HEARTBEAT_MS:
            return None
        return self.header(0, now_ms)

    def is_silent(self, now_ms: int) -> bool:
        """Whether the slave is gone."""
        return now_ms - self._heard_ms > SILENCE_MS


class MasterLink:
    """What a slave knows of its connection to the master.

    ``received`` is the end of the log bytes that came; ``heard`` says whether anything came at all,
    ``beats`` how many heartbeats did since the last bytes.
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
        """Take bytes from the master; gives pieces of its log with their offsets, in order.

        Pieces follow on one another, except that the first one of all may begin anywhere for a
        slave that has nothing. Raises BadPeer when a transfer does not go on where the last ended.
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
            raise BadPeer(f"a transfer claims to hold {size_bytes} bytes")
        if offset != self.received:
            # An empty slave takes what it is given first: the master may have dropped older files.
            if not self._may_begin or offset < 0:
                raise BadPeer(f"it sends the log from {offset}, this one ends at {self.received}")
            self.received = offset
        if size_bytes:
            self._may_begin = False
            self.beats = 0
        else:
            self.beats += 1
        self._left = size_bytes

    def report(self, has: int, now_ms: int) -> bytes | None:
        """What to tell the master when the slave keeps the log up to ``has``; None when it knows
        that, and need not be told again yet."""
        if has == self._reported and now_ms - self._reported_ms < HEARTBEAT_MS:
            return None
        self._reported, self._reported_ms = has, now_ms
        return REPORT.pack(has)

    def is_silent(self, now_ms: int) -> bool:
        """Whether the master is gone."""
        return now_ms - self._heard_ms > SILENCE_MS
