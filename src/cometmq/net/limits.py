"""Limits on the clients of a server: their settings, and counts of how often each was reached.

All limits of a server are counted here, also those that other modules enforce.
:meth:`ServerLimits.hit` counts one and logs a line, at a bounded rate. The counts are part of a
broker's runtime information. The page "Limits" of the documentation has the table of all limits.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol

from cometmq.core.allowance import Allowance
from cometmq.core.clock import SystemClock
from cometmq.core.errors import BadRequest
from cometmq.core.settings import OURS, setting
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.registry import REGISTRY

if TYPE_CHECKING:
    from cometmq.core.clock import Clock
    from cometmq.protocol.frame import Request

log = logging.getLogger(__name__)

#: Bytes received of a frame that extend its time limit by 1 ms.
SLOWEST_BYTES_PER_MS: Final = 16
#: Log lines of each limit: allowed at once, and per second after that.
_LINES_AT_ONCE: Final = 10
_LINES_PER_SECOND: Final = 1
#: Limit of addresses or accounts whose request rate is remembered. At the limit, one of the _OLDEST
#: least recently used is dropped: the one with most requests left.
_KEYS_MAX: Final = 10_000
_OLDEST: Final = 16
#: Size of the network part of an IPv6 address, and of the port after a packed address.
_NETWORK_BYTES: Final = 8
_PORT_BYTES: Final = 4
#: Limit of bytes that the kernel accepts for a connection and has not sent.
UNSENT_BYTES: Final = 256 * 1024
_URGENT: Final = frozenset(code for code, spec in REGISTRY.items() if spec.urgent)


class Limit(Enum):
    """A limit; the value is the name in logs and in the runtime information."""

    FRAME_SIZE = "frameSize"
    HEADER_SIZE = "headerSize"
    INVALID_STREAM = "invalidStream"
    FRAME_TIME = "frameTime"
    HANDSHAKE_TIME = "handshakeTime"
    IDLE_TIME = "idleTime"
    HALF_OPEN = "halfOpen"
    UNREAD_ANSWERS = "unreadAnswers"
    CONGESTED = "congested"
    CONNECTION_MEMORY = "connectionMemory"
    MEMORY = "memory"
    MEMORY_REQUESTS = "memoryRequests"
    SLOW_REQUESTS = "slowRequests"
    CONNECTIONS = "connections"
    CONNECTIONS_PER_ADDRESS = "connectionsPerAddress"
    REQUEST_RATE = "requestRate"
    WAITING_SENDS = "waitingSends"
    NEW_TOPIC_SENDS = "newTopicSends"
    NEW_GROUP_HEARTBEATS = "newGroupHeartbeats"
    HELD_PULLS = "heldPulls"
    TOPICS = "topics"
    CONSUMER_GROUPS = "consumerGroups"
    CONSUMER_OFFSETS = "consumerOffsets"
    QUEUE_LOCKS = "queueLocks"
    NEW_FILTERS = "newFilters"
    STATISTICS = "statistics"
    SLAVES = "slaves"


_TEMPLATES: Final[Mapping[Limit, str]] = {
    limit: f"limit_reached limit={limit.value} peer=%s hits=%d reason=%r" for limit in Limit
}


@dataclass(kw_only=True)
class LimitFields:
    """Fields of a server's configuration that are its limits; 0 switches a limit off."""

    __slots__ = ()  # so that a configuration may have further bases

    server_channel_max_idle_time_seconds: int = setting(
        120,
        "time without a byte after which a connection is closed; 0 is no limit",
        unit="s",
        least=0,
        live=True,
        see="limits.md",
    )
    frame_receive_timeout: int = setting(
        30_000,
        "time in which a frame that was begun must arrive; large ones have more; 0 is no limit",
        unit="ms",
        least=0,
        live=True,
        rocketmq=OURS,
        see="limits.md",
    )
    max_connections: int = setting(
        0,
        "most connections; 0 is as many as there are descriptors for",
        least=0,
        live=True,
        rocketmq=OURS,
        see="limits.md",
    )
    max_connections_per_address: int = setting(
        0,
        "most connections of one address; 0 is no limit",
        least=0,
        live=True,
        rocketmq=OURS,
        see="limits.md",
    )
    max_requests_per_second_per_address: int = setting(
        0,
        "most requests a second of one address; 0 is no limit",
        least=0,
        rocketmq=OURS,
        see="limits.md",
    )
    max_requests_per_second_per_account: int = setting(
        0,
        "most requests a second of one account, with `aclEnable`; 0 is no limit",
        least=0,
        rocketmq=OURS,
        see="limits.md",
    )


@dataclass(slots=True, kw_only=True)
class LimitSettings(LimitFields):
    """The limits alone."""


class ServerLimits:
    """The limits of one server, how often each was reached, and its connections by host.

    ``settings`` may change at any time, so each use must read them again. ``refusals`` counts the
    refused requests by the code of the answer.
    """

    def __init__(self, settings: LimitFields | None = None, clock: Clock | None = None) -> None:
        self.settings = settings or LimitSettings()
        self.now_ms = (clock or SystemClock()).monotonic_ms
        self.hits: dict[Limit, int] = dict.fromkeys(Limit, 0)
        self.refusals: dict[int, int] = {}
        self._lines: dict[Limit, Allowance] = {}
        self._hosts: dict[str, int] = {}

    def hit(self, limit: Limit, peer: str, reason: str) -> None:
        """Count that ``peer`` reached a limit, and log it if the rate of log lines permits."""
        self.count(limit)
        now_ms = self.now_ms()
        lines = self._lines.get(limit)
        if lines is None:
            lines = self._lines[limit] = Allowance(_LINES_AT_ONCE, _LINES_PER_SECOND, now_ms)
        if lines.take(1, now_ms):
            log.warning(_TEMPLATES[limit], peer, self.hits[limit], reason)

    def count(self, limit: Limit) -> None:
        """Count that a limit was reached, for a caller that logs it."""
        self.hits[limit] += 1

    @property
    def open_connections(self) -> int:
        """Number of connections."""
        return sum(self._hosts.values())

    def facts(self) -> Mapping[str, str]:
        """Return the counts and the number of connections, for the runtime information."""
        return {
            "openConnections": str(self.open_connections),
            **{f"limitHits_{limit.value}": str(count) for limit, count in self.hits.items()},
        }

    def entered(self, host: str) -> None:
        """Count a connection of a host."""
        self._hosts[host] = self._hosts.get(host, 0) + 1

    def left(self, host: str) -> None:
        """Stop counting a connection of a host."""
        count = self._hosts.get(host, 0) - 1
        if count > 0:
            self._hosts[host] = count
        else:
            self._hosts.pop(host, None)

    def refusal(self, host: str, open_connections: int, room: int) -> tuple[Limit, str] | None:
        """Return the limit that another connection of a host would exceed, and the reason.

        Return None if it may be accepted. ``room`` is the number of connections that this server
        may have, given the descriptors of the process.
        """
        settings = self.settings
        most = min(room, settings.max_connections or room)
        if open_connections >= most:
            return Limit.CONNECTIONS, f"{open_connections} connections are open, refused another"
        most, has = settings.max_connections_per_address, self._hosts.get(host, 0)
        if most and has >= most:
            return (
                Limit.CONNECTIONS_PER_ADDRESS,
                f"{has} connections of this address are open, refused another",
            )
        return None


class FrameTimer:
    """Detects a connection on which a frame was begun and is not completed in time."""

    __slots__ = ("_begun_at", "_since_ms")

    def __init__(self) -> None:
        self._begun_at = -1
        self._since_ms = 0

    def reset(self) -> None:
        """Forget the frame, because it is complete or the server does not read now."""
        self._begun_at = -1

    def is_late(self, begun_at: int, has_bytes: int, now_ms: int, timeout_ms: int) -> bool:
        """Return whether a frame takes too long. Its time begins with the first call for it.

        The frame begins at offset ``begun_at`` of the stream, and ``has_bytes`` of it have arrived.
        """
        if begun_at != self._begun_at:
            self._begun_at, self._since_ms = begun_at, now_ms
            return False
        return now_ms - self._since_ms > timeout_ms + has_bytes // SLOWEST_BYTES_PER_MS


class Sender(Protocol):
    """Connection that sends requests."""

    address: str
    host_bytes: bytes


class RequestRates:
    """Limit of ``per_second`` requests for each address or each account.

    Urgent requests (protocol/registry.py), such as heartbeats, are counted separately, so that a
    client over the limit stays in its group.
    """

    def __init__(self, limits: ServerLimits, per_second: int) -> None:
        self._limits = limits
        self._per_second = per_second
        #: By name and urgency, the least recently used first.
        self._allowances: dict[tuple[str | bytes, bool], Allowance] = {}

    def take_of_address(self, peer: Sender, request: Request[Any]) -> None:
        """Count a request of the address of ``peer``.

        A /64 network of IPv6 counts as one address, because one client may use all addresses in it.
        Raises BadRequest (SYSTEM_BUSY) if the limit is reached.
        """
        packed = peer.host_bytes[:-_PORT_BYTES]
        if not self._take(packed[:_NETWORK_BYTES], request):
            self._refuse(peer, _network_text(packed))

    def take_of_account(self, peer: Sender, request: Request[Any], account: str) -> None:
        """Count a request of an account. Raises BadRequest (SYSTEM_BUSY) at the limit."""
        if not self._take(account, request):
            self._refuse(peer, account)

    def _take(self, name: str | bytes, request: Request[Any]) -> bool:
        allowances, now_ms = self._allowances, self._limits.now_ms()
        key = name, request.code in _URGENT
        allowance = allowances.pop(key, None)
        if allowance is None:
            if len(allowances) >= _KEYS_MAX:
                # Dropping a full allowance changes nothing, because a new one begins full.
                oldest = islice(allowances, _OLDEST)
                del allowances[max(oldest, key=lambda each: allowances[each].left(now_ms))]
            allowance = Allowance(self._per_second, self._per_second, now_ms)
        allowances[key] = allowance
        return allowance.take(1, now_ms)

    def _refuse(self, peer: Sender, name: str) -> NoReturn:
        reason = f"{name} sends more than {self._per_second} requests a second"
        self._limits.hit(Limit.REQUEST_RATE, peer.address, reason)
        raise BadRequest(ResponseCode.SYSTEM_BUSY, f"[OVERLOAD]{reason}: send slower")


def _network_text(packed: bytes) -> str:
    if len(packed) <= _NETWORK_BYTES:
        return socket.inet_ntop(socket.AF_INET, packed)
    network = packed[:_NETWORK_BYTES].ljust(len(packed), b"\0")
    return f"{socket.inet_ntop(socket.AF_INET6, network)}/{_NETWORK_BYTES * 8}"


def bound_unsent(listener: socket.socket) -> None:
    """Limit the bytes that the kernel holds unsent for each connection of a listener.

    Accepted sockets inherit the limit, UNSENT_BYTES. Without it the kernel takes 4 MB for a client
    that does not read. Bytes sent and not acknowledged do not count, so it does not limit the
    throughput. Does nothing on systems without this option.
    """
    with contextlib.suppress(AttributeError, OSError):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)


def notice_dead_clients(one: socket.socket, idle_s: int) -> None:
    """Have the kernel close a connection whose peer is gone, or takes no bytes, for ``idle_s``.

    0 switches this off. Sockets that a listener accepts inherit the options. Does nothing on
    systems without them.
    """
    for level, name, value in (
        (socket.SOL_SOCKET, "SO_KEEPALIVE", int(idle_s > 0)),
        (socket.IPPROTO_TCP, "TCP_KEEPIDLE", max(idle_s // 2, 1)),
        (socket.IPPROTO_TCP, "TCP_KEEPINTVL", max(idle_s // 8, 1)),
        (socket.IPPROTO_TCP, "TCP_KEEPCNT", 4),
        (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", idle_s * 1000),
    ):
        with contextlib.suppress(AttributeError, OSError):
            one.setsockopt(level, getattr(socket, name), value)
