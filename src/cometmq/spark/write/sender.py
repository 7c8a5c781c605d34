"""Distributes the messages of one task to queues and batches.

A row with an order key goes to the queue where every producer of CometMQ or Java sends that key.
Any other row goes to a queue chosen by its id, so that a repeated task sends it to the same broker:
only that broker can recognize the repeated id.
"""

from __future__ import annotations

from threading import Event
from typing import TYPE_CHECKING, Final
from zlib import crc32

from cometmq.client.routes import publish_queues
from cometmq.client.selection import by_key
from cometmq.core.clock import SystemClock
from cometmq.core.errors import (
    BrokerRefused,
    CometError,
    NotConnected,
    RequestTimedOut,
    RouteNotFound,
)
from cometmq.message import batch
from cometmq.message.names import AUTO_CREATE_TOPIC, RETRY_PREFIX
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers import SendMessageV2
from cometmq.spark.brokers import cluster
from cometmq.spark.write.pipeline import PAUSES_MS, Pending, Pipeline, SendFailed

if TYPE_CHECKING:
    from cometmq.message.model import MessageQueue
    from cometmq.spark.write.options import WriteOptions
    from cometmq.spark.write.rows import Outgoing

BUFFERED_BYTES: Final = 16 << 20
SPREAD: Final = 16
"""Number of queues per broker that one task sends to without order keys; other tasks use others."""

_clock: Final = SystemClock()
_pause: Final = Event()
_ENTRY_BYTES: Final = 22


class _Lane:
    """Messages waiting to be sent to one queue."""

    __slots__ = ("messages", "queue", "size_bytes")

    def __init__(self, queue: MessageQueue) -> None:
        self.queue = queue
        self.messages: list[Outgoing] = []
        self.size_bytes = 0


class _Targets:
    """The queues of a topic that one task uses."""

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
        """Add a message, which may be sent later. Raises SendFailed."""
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
        """Return the queues of a topic, retrying while a broker or name server is away. Raises
        SendFailed."""
        deadline_ms = _clock.monotonic_ms() + self._options.retry_ms
        attempt = 0
        error: CometError = RouteNotFound(topic, "no queue of it can be written")
        while True:
            try:
                route = cluster.routes([topic], self._options.access).get(topic)
                if route is None:
                    raise cluster.unknown(topic, self._options.access)
                queues = publish_queues(topic, route)
                if queues:
                    return _Targets(queues, self._task)
            except (RouteNotFound, NotConnected, RequestTimedOut, BrokerRefused) as failure:
                error = failure
            if _clock.monotonic_ms() > deadline_ms:
                raise SendFailed(topic, 1, error)
            _pause.wait(PAUSES_MS[min(attempt + 1, len(PAUSES_MS) - 1)] / 1000)
            attempt += 1


def _request(queue: MessageQueue, messages: list[Outgoing], group: str) -> Pending:
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
