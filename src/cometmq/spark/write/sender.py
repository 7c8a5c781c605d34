"""Sends the messages of one task: distributes them to queues, joins them into batches, pipelines
the requests and retries failed ones.

A row with an order key goes to the queue to which every producer of CometMQ or Java sends that key.
Any other row goes to a queue chosen by its id. A repeated task therefore sends it to the same
broker, the only one that can recognize the repeated id.
"""

from __future__ import annotations

import logging
from threading import Event
from typing import TYPE_CHECKING, Final
from zlib import crc32

from cometmq.client.delivery import RETRY_CODES, by_key
from cometmq.client.routes import publish_queues
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
from cometmq.core.plural import plural
from cometmq.message import batch
from cometmq.message.names import AUTO_CREATE_TOPIC, RETRY_PREFIX
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers import SendMessageV2
from cometmq.spark.brokers import cluster
from cometmq.spark.brokers.wire import Wire

if TYPE_CHECKING:
    from cometmq.message.model import MessageQueue
    from cometmq.protocol.frame import Response
    from cometmq.spark.brokers.wire import Call
    from cometmq.spark.write.options import WriteOptions
    from cometmq.spark.write.rows import Outgoing

log = logging.getLogger(__name__)

IN_FLIGHT_MAX: Final = 32
"""Maximum number of requests of a task without a response, each for another queue."""

PAUSES_MS: Final = (0, 100, 200, 500, 1_000, 2_000)
"""Pauses before the first attempts; later attempts use the last one."""

BUFFERED_BYTES: Final = 16 << 20
"""Size of the buffered messages of a task above which the largest batch is sent."""

SPREAD: Final = 16
"""Number of queues per broker to which a task sends rows without order keys. The tasks start at
different queues."""

UNKNOWN_TOPIC_MS: Final = 35_000
"""Time for which name servers may answer that they have no route for a topic: after a name server
restarts, Java brokers register again within 30 s. After this time the name counts as wrong."""

_ENTRY_BYTES: Final = 22
"""Bytes of a message in a batch beside its body and properties."""

#: The message is stored, but not as safely as the broker's settings require; a retry may succeed.
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
        super().__init__(f"{plural(rows, 'row')} for topic {topic!r} not stored: {cause}")


class Sender:
    """Sends the messages of one task. :meth:`finish` completes it, :meth:`close` aborts it."""

    def __init__(self, options: WriteOptions, task: int) -> None:
        self._options = options
        self._task = task
        self._pipeline = Pipeline(options)
        self._targets: dict[str, _Targets] = {}
        self._lanes: dict[MessageQueue, _Lane] = {}
        self._buffered_bytes = 0
        self.rows = 0
        self.size_bytes = 0

    @property
    def retries(self) -> int:
        """Number of requests that were sent again."""
        return self._pipeline.retries

    def add(self, message: Outgoing) -> None:
        """Buffer a message, and send a batch if it is full. Raises SendFailed."""
        targets = self._targets.get(message.topic)
        if targets is None:
            targets = self._targets[message.topic] = self._find(message.topic)
        queue = targets.of(message)
        lane = self._lanes.get(queue)
        if lane is None:
            lane = self._lanes[queue] = _Lane(queue)
        size_bytes = _ENTRY_BYTES + len(message.body) + len(message.properties)
        options = self._options
        alone = message.alone or message.topic.startswith(RETRY_PREFIX)
        full = len(lane.messages) >= options.batch_messages
        if lane.messages and (alone or full or lane.size_bytes + size_bytes > options.batch_bytes):
            self._flush(lane)
        lane.messages.append(message)
        lane.size_bytes += size_bytes
        self._buffered_bytes += size_bytes
        self.rows += 1
        self.size_bytes += len(message.body)
        if alone:
            self._flush(lane)
        elif self._buffered_bytes > BUFFERED_BYTES:
            self._flush(max(self._lanes.values(), key=lambda each: each.size_bytes))

    def finish(self) -> None:
        """Send all buffered messages and wait until they are stored. Raises SendFailed."""
        for lane in self._lanes.values():
            if lane.messages:
                self._flush(lane)
        self._pipeline.finish()

    def close(self) -> None:
        """Close all connections."""
        self._pipeline.close()

    def _flush(self, lane: _Lane) -> None:
        messages, lane.messages = lane.messages, []
        self._buffered_bytes -= lane.size_bytes
        lane.size_bytes = 0
        self._pipeline.send(_request(lane.queue, messages, self._options.group))

    def _find(self, topic: str) -> _Targets:
        """Return the queues of a topic. Retries for ``retry_ms`` while none is found, but only for
        UNKNOWN_TOPIC_MS if name servers do not know the topic. Raises SendFailed."""
        begun_ms = _clock.monotonic_ms()
        unknown_ms: int | None = None
        attempt = 0
        error: CometError = RouteNotFound(topic, "none of its queues is writable")
        while True:
            is_unknown = False
            try:
                route = cluster.routes([topic], self._options.access).get(topic)
                if route is None:
                    is_unknown = True
                    raise cluster.unknown(topic, self._options.access)
                queues = publish_queues(topic, route)
                if queues:
                    return _Targets(queues, self._task)
            except (RouteNotFound, NotConnected, RequestTimedOut, BrokerRefused) as failure:
                error = failure
            now_ms = _clock.monotonic_ms()
            if not is_unknown:
                unknown_ms = None
            elif unknown_ms is None:
                unknown_ms = now_ms
            is_wrong = unknown_ms is not None and now_ms - unknown_ms > UNKNOWN_TOPIC_MS
            if is_wrong or now_ms - begun_ms > self._options.retry_ms:
                raise SendFailed(topic, 1, error)
            if attempt == 0:
                log.warning("queues_not_found topic=%s error=%r", topic, str(error))
            _pause.wait(PAUSES_MS[min(attempt + 1, len(PAUSES_MS) - 1)] / 1000)
            attempt += 1


class Pending:
    """A request for one queue with ``rows`` messages, until they are stored."""

    __slots__ = ("call", "posted_ms", "queue", "rows")

    def __init__(self, queue: MessageQueue, call: Call, rows: int) -> None:
        self.queue = queue
        self.call = call
        self.rows = rows
        self.posted_ms = 0


class _Line(Wire):
    """A connection with its pending requests, by request number."""

    def __init__(self, address: str, options: WriteOptions) -> None:
        super().__init__(address, options.access)
        self._timeout_ms = options.access.request_timeout_ms
        self._number = 0
        self.waiting: dict[int, Pending] = {}

    def post(self, pending: Pending) -> None:
        """Send a request without waiting for its response. Raises OSError."""
        self._number += 1
        self.waiting[self._number] = pending
        pending.posted_ms = _clock.monotonic_ms()
        self._send([pending.call], self._number, pending.posted_ms + self._timeout_ms)

    def take(self) -> list[tuple[Pending, Response]]:
        """Wait until at least one response is there. Return all, each with its request.

        Raises OSError (TimeoutError if the oldest request is too old) and ProtocolError.
        """
        oldest_ms = min(pending.posted_ms for pending in self.waiting.values())
        answers: dict[int, Response] = {}
        while not answers:
            self._receive(answers, oldest_ms + self._timeout_ms)
        return [(self.waiting.pop(number), answer) for number, answer in answers.items()]


class Pipeline:
    """The requests of one task, at most one per queue at a time, so that order keys keep their
    order. The caller ends with :meth:`finish` or :meth:`close`."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._lines: dict[str, _Line] = {}
        self._busy: dict[MessageQueue, _Line] = {}
        self.retries = 0

    def send(self, pending: Pending) -> None:
        """Send a request after the previous one for the same queue is stored. Raises SendFailed."""
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
        """Take the responses of a connection, and repeat failed requests."""
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
        """Close a broken connection and send its pending requests again: some of them may be stored
        already."""
        line.close()
        self._lines.pop(line.address, None)
        waiting, line.waiting = list(line.waiting.values()), {}
        for pending in waiting:
            del self._busy[pending.queue]
        for pending in waiting:
            self._again(pending, NotConnected(line.address, str(error) or type(error).__name__))

    def _again(self, pending: Pending, error: CometError) -> None:
        """Repeat a request that failed with ``error`` until it is stored. Raises SendFailed after
        ``retry_ms``, or at once for an error that a retry cannot mend."""
        deadline_ms = _clock.monotonic_ms() + self._options.retry_ms
        attempt = 0
        while True:
            if not _may_pass(error) or _clock.monotonic_ms() > deadline_ms:
                raise SendFailed(pending.queue.topic, pending.rows, error) from None
            log.warning(
                "send_retried queue=%s attempt=%d error=%r", pending.queue, attempt, str(error)
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
        """Send a request on a connection of its own, because those in ``_lines`` may have pending
        responses. Return its response."""
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
        raise NotConnected(queue.broker_name, "has no master at present")

    @staticmethod
    def _refusal(address: str, pending: Pending, answer: Response) -> BrokerRefused:
        return BrokerRefused(address, pending.call[0], answer.code, answer.remark or "no remark")


def _may_pass(error: CometError) -> bool:
    if isinstance(error, BrokerRefused):
        return error.code in RETRY_CODES or error.code in _UNSAFE
    return isinstance(error, NotConnected | RequestTimedOut | RouteNotFound | ClientError)


class _Lane:
    """The buffered messages of one queue: the next batch."""

    __slots__ = ("messages", "queue", "size_bytes")

    def __init__(self, queue: MessageQueue) -> None:
        self.queue = queue
        self.messages: list[Outgoing] = []
        self.size_bytes = 0


class _Targets:
    """Chooses the queue of each message among the queues of a topic."""

    def __init__(self, queues: tuple[MessageQueue, ...], task: int) -> None:
        self._queues = queues
        by_broker: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            by_broker.setdefault(queue.broker_name, []).append(queue)
        self._brokers = [
            _window(by_broker[name], task * SPREAD, SPREAD) for name in sorted(by_broker)
        ]

    def of(self, message: Outgoing) -> MessageQueue:
        if message.order_key is not None:
            return by_key(self._queues, message.order_key)
        number = crc32(message.unique.encode())
        of_broker = self._brokers[number % len(self._brokers)]
        return of_broker[number // len(self._brokers) % len(of_broker)]


def _window(queues: list[MessageQueue], start: int, size: int) -> list[MessageQueue]:
    if len(queues) <= size:
        return queues
    return [queues[(start + at) % len(queues)] for at in range(size)]


def _request(queue: MessageQueue, messages: list[Outgoing], group: str) -> Pending:
    """Return the request that sends messages to a queue: as a batch if there are several."""
    first = messages[0]
    batched = len(messages) > 1
    if batched:
        body = batch.pack((each.flag, each.body, each.properties) for each in messages)
        code, flag, text = RequestCode.SEND_BATCH_MESSAGE, 0, ""
    else:
        body, flag, text = first.body, first.flag, first.properties.decode()
        code = RequestCode.SEND_MESSAGE_V2
    header = SendMessageV2(
        producer_group=group,
        topic=queue.topic,
        default_topic=AUTO_CREATE_TOPIC,
        default_topic_queue_nums=4,
        queue_id=queue.queue_id,
        sys_flag=0,
        born_timestamp=_clock.wall_ms(),
        flag=flag,
        properties=text,
        reconsume_times=0,
        unit_mode=False,
        batch=batched,
        broker_name=queue.broker_name,
    )
    return Pending(queue, (int(code), header, body), len(messages))
