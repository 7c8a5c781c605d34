"""Pipeline of one task's send requests: several at once, one per queue, each retried until stored.

A failed request is sent again to the same queue until a response says that it is stored, or its
time is up. Requests of a queue never overtake each other: the next one is sent when the one before
is done. So rows keep their order in a queue despite failures.

The next rows are encoded while brokers work. ``send`` waits only if the queue is busy or too many
requests are in flight.
"""

from __future__ import annotations

import logging
from threading import Event
from typing import TYPE_CHECKING, Final

from cometmq.client.delivery import RETRY_CODES
from cometmq.core.clock import SystemClock
from cometmq.core.errors import (
    BrokerRefused,
    ClientError,
    CometError,
    NotConnected,
    ProtocolError,
    RequestTimedOut,
    RouteNotFound,
)
from cometmq.protocol.codes import ResponseCode
from cometmq.spark.brokers import cluster
from cometmq.spark.brokers.wire import Wire

if TYPE_CHECKING:
    from cometmq.message.model import MessageQueue
    from cometmq.protocol.frame import Response
    from cometmq.spark.brokers.wire import Call
    from cometmq.spark.write.options import WriteOptions

log = logging.getLogger(__name__)

IN_FLIGHT_MAX: Final = 32
PAUSES_MS: Final = (0, 100, 200, 500, 1_000, 2_000)
"""Pauses before the first attempts; later attempts use the last one."""

#: Stored, but with less safety than the broker's policy promises; a retry may fulfil it.
_UNSAFE: Final = frozenset(
    {
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
    }
)
_clock: Final = SystemClock()
_pause: Final = Event()


class SendFailed(CometError):
    """Raised if ``rows`` rows for ``topic`` could not be stored, for the reason in ``cause``."""

    def __init__(self, topic: str, rows: int, cause: CometError) -> None:
        self.topic = topic
        self.rows = rows
        self.cause = cause
        super().__init__(f"{rows} rows for topic {topic!r} were not stored: {cause}")


class Pending:
    """An unfinished request for one queue. The header in ``call`` names the queue."""

    __slots__ = ("call", "posted_ms", "queue", "rows")

    def __init__(self, queue: MessageQueue, call: Call, rows: int) -> None:
        self.queue = queue
        self.call = call
        self.rows = rows
        self.posted_ms = 0


class _Line(Wire):
    """A connection with requests that wait for their responses."""

    def __init__(self, address: str, options: WriteOptions) -> None:
        super().__init__(address, options.access)
        self._timeout_ms = options.access.request_timeout_ms
        self._number = 0
        self.waiting: dict[int, Pending] = {}

    def post(self, pending: Pending) -> None:
        """Send a request. Raises OSError."""
        self._number += 1
        self.waiting[self._number] = pending
        pending.posted_ms = _clock.monotonic_ms()
        self._send([pending.call], self._number, pending.posted_ms + self._timeout_ms)

    def take(self) -> list[tuple[Pending, Response]]:
        """Return at least one response, with its request. Raises OSError and ProtocolError."""
        oldest_ms = min(pending.posted_ms for pending in self.waiting.values())
        answers: dict[int, Response] = {}
        while not answers:
            self._receive(answers, oldest_ms + self._timeout_ms)
        return [(self.waiting.pop(number), answer) for number, answer in answers.items()]


class Pipeline:
    """The requests of one task. The caller ends with :meth:`finish` or :meth:`close`."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._lines: dict[str, _Line] = {}
        self._busy: dict[MessageQueue, _Line] = {}
        self.retries = 0

    def send(self, pending: Pending) -> None:
        """Send a request once the one before it for the same queue is done. Raises SendFailed."""
        while (line := self._busy.get(pending.queue)) is not None:
            self._take(line)
        while len(self._busy) >= IN_FLIGHT_MAX:
            self._take(next(iter(self._busy.values())))
        try:
            line = self._line(self._address(pending.queue, fresh=False))
        except CometError as error:
            self._again(pending, error)
            return
        self._busy[pending.queue] = line
        try:
            line.post(pending)
        except OSError as error:
            self._broken(line, error)

    def finish(self) -> None:
        """Wait until all requests are stored. Raises SendFailed."""
        while self._busy:
            self._take(next(iter(self._busy.values())))
        self.close()

    def close(self) -> None:
        """Close the connections without waiting for open requests."""
        for line in self._lines.values():
            line.close()
        self._lines.clear()
        self._busy.clear()

    def _take(self, line: _Line) -> None:
        try:
            found = line.take()
        except (OSError, ProtocolError) as error:
            self._broken(line, error)
            return
        for pending, answer in found:
            del self._busy[pending.queue]
            if answer.code != ResponseCode.SUCCESS:
                self._again(pending, self._refusal(line.address, pending, answer))

    def _broken(self, line: _Line, error: Exception) -> None:
        """Send all requests that wait on a broken connection again: it is unknown which were
        stored."""
        line.close()
        self._lines.pop(line.address, None)
        waiting, line.waiting = list(line.waiting.values()), {}
        for pending in waiting:
            del self._busy[pending.queue]
        for pending in waiting:
            self._again(pending, NotConnected(line.address, str(error) or type(error).__name__))

    def _again(self, pending: Pending, error: CometError) -> None:
        """Send one request until it is stored. Raises SendFailed."""
        deadline_ms = _clock.monotonic_ms() + self._options.retry_ms
        attempt = 0
        while True:
            if not _may_pass(error) or _clock.monotonic_ms() > deadline_ms:
                raise SendFailed(pending.queue.topic, pending.rows, error) from None
            log.warning(
                "send_again queue=%s attempt=%d error=%r", pending.queue, attempt, str(error)
            )
            self.retries += 1
            _pause.wait(PAUSES_MS[min(attempt, len(PAUSES_MS) - 1)] / 1000)
            attempt += 1
            try:
                answer = self._once(pending)
            except CometError as failure:
                error = failure
                continue
            if answer.code == ResponseCode.SUCCESS:
                return
            error = self._refusal(self._address(pending.queue, fresh=False), pending, answer)

    def _once(self, pending: Pending) -> Response:
        """Send one request on a separate connection, since others may wait for responses on
        theirs."""
        address = self._address(pending.queue, fresh=True)
        wire = Wire(address, self._options.access)
        try:
            return wire.exchange([pending.call], self._options.access.request_timeout_ms)[0]
        finally:
            wire.close()

    def _line(self, address: str) -> _Line:
        found = self._lines.get(address)
        if found is None:
            found = self._lines[address] = _Line(address, self._options)
        return found

    def _address(self, queue: MessageQueue, *, fresh: bool) -> str:
        for broker_id, address in cluster.brokers(queue, self._options.access, fresh=fresh):
            if broker_id == cluster.MASTER_ID:
                return address
        raise NotConnected(queue.broker_name, "has no master now")

    @staticmethod
    def _refusal(address: str, pending: Pending, answer: Response) -> BrokerRefused:
        return BrokerRefused(address, pending.call[0], answer.code, answer.remark or "no remark")


def _may_pass(error: CometError) -> bool:
    if isinstance(error, BrokerRefused):
        return error.code in RETRY_CODES or error.code in _UNSAFE
    return isinstance(error, NotConnected | RequestTimedOut | RouteNotFound | ClientError)
