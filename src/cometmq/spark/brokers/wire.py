"""Blocking requests to name servers and brokers, for Spark's processes, which have no event loop.

The module keeps one connection per address. Spark reuses its worker processes between
micro-batches, but also forks and replaces them, so the key includes the process id. Requests sent
by :func:`call_many` can be repeated without harm: if a cached connection fails, they are sent again
on a new one.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from cometmq.core.clock import SystemClock
from cometmq.core.errors import BrokerRefused, NotConnected, ProtocolError, RequestTimedOut
from cometmq.protocol.acl import signed
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.connection import Answered, Connection
from cometmq.protocol.fields import to_ext
from cometmq.spark.brokers.access import tls_context

if TYPE_CHECKING:
    from cometmq.net.outgoing import TlsOptions
    from cometmq.protocol.acl import Credentials
    from cometmq.protocol.frame import Response
    from cometmq.protocol.headers import Header
    from cometmq.spark.brokers.access import Access

log = logging.getLogger(__name__)

READ_BYTES: Final = 1 << 18

IN_FLIGHT_MAX: Final = 64
"""Maximum number of requests sent before their responses are read. It is small enough that the
buffers of neither side fill."""

SILENT_WARNING_MS: Final = 30_000
"""Interval of the log lines of a process about a server that does not answer."""

SILENT_MAX: Final = 1_000
"""Maximum number of silent servers that a process remembers."""

GROUP: Final = "CID_RMQ_SYS_COMETMQ_SPARK"
"""Consumer group of all reads. The prefix CID_RMQ_SYS_ marks a system group: brokers create it on
first use and do not list it."""

_OF_ACL: Final = "AclException"

Call = tuple[int, "Header | None"] | tuple[int, "Header | None", bytes]
"""A request: its code, its header and, in some requests, its body."""

Key = tuple[str, int, "Credentials | None", "TlsOptions | None"]
_clock: Final = SystemClock()


class Wire:
    """One connection, used by one thread at a time. The constructor connects, and raises
    NotConnected if that fails."""

    def __init__(self, address: str, access: Access) -> None:
        self.address = address
        self.broken = False
        self._account = access.account
        self._connection: Connection[int] = Connection()
        self._asked = 0
        self._taken = 0
        self._answers: dict[int, Response] = {}
        self._last_code = 0
        self._socket = _connect(address, access)

    def close(self) -> None:
        """Close the socket."""
        self.broken = True
        self._socket.close()

    @property
    def in_flight(self) -> int:
        """Number of requests whose responses have not been taken yet."""
        return self._asked - self._taken

    def exchange(self, calls: Sequence[Call], timeout_ms: int) -> list[Response]:
        """Send all requests and return their responses in the order of the requests.

        Raises NotConnected and RequestTimedOut; both close the connection.
        """
        deadline_ms = _clock.monotonic_ms() + timeout_ms
        found: list[Response] = []
        with self._failing(calls[0][0], timeout_ms):
            for start in range(0, len(calls), IN_FLIGHT_MAX):
                some = calls[start : start + IN_FLIGHT_MAX]
                self._post(some, deadline_ms)
                found += [self._take(deadline_ms) for _ in some]
        return found

    def ask(self, calls: Sequence[Call], timeout_ms: int) -> None:
        """Send requests whose responses are taken later. The caller bounds how many are in flight.

        Raises the errors of :meth:`exchange`.
        """
        with self._failing(calls[0][0], timeout_ms):
            self._post(calls, _clock.monotonic_ms() + timeout_ms)

    def answer(self, timeout_ms: int) -> Response:
        """Return the response to the oldest open request, waiting at most ``timeout_ms``.

        Raises the errors of :meth:`exchange`.
        """
        if self._taken in self._answers:
            self._taken += 1
            return self._answers.pop(self._taken - 1)
        with self._failing(self._last_code, timeout_ms):
            return self._take(_clock.monotonic_ms() + timeout_ms)

    @contextmanager
    def _failing(self, code: int, timeout_ms: int) -> Iterator[None]:
        """Close the connection if the body fails, and raise NotConnected or RequestTimedOut."""
        try:
            yield
        except TimeoutError:
            self.close()
            raise RequestTimedOut(self.address, code, timeout_ms) from None
        except (OSError, ProtocolError) as error:
            self.close()
            raise NotConnected(self.address, str(error)) from None

    def _post(self, calls: Sequence[Call], deadline_ms: int) -> None:
        first, self._asked = self._asked, self._asked + len(calls)
        self._last_code = calls[-1][0]
        self._send(calls, first, deadline_ms)

    def _take(self, deadline_ms: int) -> Response:
        """Return the response to the oldest open request, reading until it arrives."""
        while self._taken not in self._answers:
            self._receive(self._answers, deadline_ms)
        self._taken += 1
        return self._answers.pop(self._taken - 1)

    def _send(self, calls: Sequence[Call], first: int, deadline_ms: int) -> None:
        self._wait_until(deadline_ms)
        parts: list[bytes] = []
        for token, (code, header, *rest) in enumerate(calls, first):
            body = rest[0] if rest else b""
            proof = None
            if self._account is not None:
                proof = signed(self._account, to_ext(header), body)
            parts += self._connection.encode_request(
                code, header, token, deadline_ms, body_bytes=len(body), extra=proof
            )[1:]
            parts.append(body)
        self._socket.sendall(b"".join(parts))

    def _receive(self, answers: dict[int, Response], deadline_ms: int) -> None:
        self._wait_until(deadline_ms)
        data = self._socket.recv(READ_BYTES)
        if not data:
            raise ConnectionResetError("closed by the other side")
        self._connection.receive_data(data)
        while self._connection.has_more:
            for event in self._connection.next_events(IN_FLIGHT_MAX):
                # The server also sends requests (such as notices of a changed group): ignore them.
                if isinstance(event, Answered):
                    answers[event.token] = event.response

    def _wait_until(self, deadline_ms: int) -> None:
        left_ms = deadline_ms - _clock.monotonic_ms()
        if left_ms <= 0:
            raise TimeoutError
        self._socket.settimeout(left_ms / 1000)


def _connect(address: str, access: Access) -> socket.socket:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    # Load the files first: if they cannot be read, connecting again would not help.
    context = None if access.tls is None else tls_context(access.tls, host)
    try:
        made = socket.create_connection((host, int(port)), access.request_timeout_ms / 1000)
    except OSError as error:
        raise NotConnected(address, str(error)) from None
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if context is None:
        return made
    try:
        return context.wrap_socket(made, server_hostname=host)
    except (OSError, ValueError) as error:
        made.close()
        raise NotConnected(address, f"TLS handshake failed: {error}") from None


_wires: Final[dict[Key, Wire]] = {}
_silent: Final[dict[str, tuple[int, int]]] = {}
"""For each server that does not answer, the times (monotonic, ms) of its first failure and of the
last log line."""


def call_many(address: str, calls: Sequence[Call], access: Access) -> list[Response]:
    """Return the responses of ``address``, whatever their codes, in the order of the calls.

    If a cached connection fails, all calls are sent again on a new one. Raises NotConnected and
    RequestTimedOut.
    """
    if not calls:
        return []
    try:
        answers = _call_kept(address, calls, access)
    except (NotConnected, RequestTimedOut) as error:
        _log_failure(address, error)
        raise
    if address in _silent:
        since_ms, _ = _silent.pop(address)
        log.warning("server_responds address=%s away_ms=%d", address, _now_ms() - since_ms)
    return answers


def _call_kept(address: str, calls: Sequence[Call], access: Access) -> list[Response]:
    key = _key(address, access)
    kept = _wires.pop(key, None)
    if kept is not None:
        try:
            return _exchange(key, kept, calls, access.request_timeout_ms)
        except NotConnected:
            pass  # the server closed it since the last call and may be up again
    return _exchange(key, Wire(address, access), calls, access.request_timeout_ms)


def _log_failure(address: str, error: Exception) -> None:
    """Log that a server does not answer: at first, and from time to time while this lasts."""
    now_ms = _now_ms()
    since_ms, logged_ms = _silent.get(address, (now_ms, now_ms - SILENT_WARNING_MS))
    if now_ms - logged_ms < SILENT_WARNING_MS:
        return
    log.warning(
        "server_silent address=%s away_ms=%d error=%r", address, now_ms - since_ms, str(error)
    )
    if len(_silent) >= SILENT_MAX:
        _silent.clear()
    _silent[address] = (since_ms, now_ms)


def _now_ms() -> int:
    return _clock.monotonic_ms()


@contextmanager
def held(address: str, access: Access) -> Iterator[Wire]:
    """Provide a connection for pipelined requests: the cached one, which the server may have closed
    since, or a new one. It returns to the cache if no response is outstanding. Raises
    NotConnected."""
    key = _key(address, access)
    kept = _wires.pop(key, None)
    wire = Wire(address, access) if kept is None else kept
    try:
        yield wire
    finally:
        if wire.broken or wire.in_flight or key in _wires:
            wire.close()
        else:
            _wires[key] = wire


def call(address: str, code: int, header: Header | None, access: Access) -> Response:
    """Return one response of ``address``, whatever its code."""
    return call_many(address, [(code, header)], access)[0]


def checked(address: str, code: int, response: Response) -> Response:
    """Return ``response``. Raises BrokerRefused if its code reports a failure."""
    if response.code != ResponseCode.SUCCESS:
        raise refusal(address, code, response)
    return response


def refusal(address: str, code: int, response: Response) -> BrokerRefused:
    """Return the error for a failed response. If access was denied, the error names the options to
    set."""
    remark = response.remark or "no remark"
    if response.code == ResponseCode.NO_PERMISSION or _OF_ACL in remark:
        remark += (
            "; set options accessKey and secretKey to an account that may read the topic and the "
            f"group {GROUP}"
        )
    return BrokerRefused(address, code, response.code, remark)


def close_all() -> None:
    """Close the connections of this process."""
    for key in [key for key in _wires if key[1] == os.getpid()]:
        _wires.pop(key).close()


def _key(address: str, access: Access) -> Key:
    return address, os.getpid(), access.account, access.tls


def _exchange(key: Key, wire: Wire, calls: Sequence[Call], timeout_ms: int) -> list[Response]:
    # Cache it only after it has answered: a failed exchange leaves responses unread.
    found = wire.exchange(calls, timeout_ms)
    _wires[key] = wire
    return found
