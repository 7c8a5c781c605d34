"""Temporary queues, which end with their process, such as those for replies and broadcasts.

The messages for all of them go through one topic. Each process with temporary queues reads the
whole topic, from its end on, and keeps the messages for its own queues in memory. A property of a
message has the exchange and the routing key that it was sent with.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec
from kombu.transport.virtual.exchange import TopicExchange

from cometmq.core.clock import SystemClock
from cometmq.core.errors import CometError
from cometmq.message.model import Message

if TYPE_CHECKING:
    from cometmq.client.client import Client
    from cometmq.message.model import MessageQueue, StoredMessage
    from cometmq.net.tasks import Tasks

log = logging.getLogger(__name__)

#: Property of the address: a JSON array of exchange and routing key.
_ADDRESS: Final = "kombuAddress"
#: Limits of a temporary queue, in messages and bytes; beyond them the oldest are dropped.
_KEPT: Final = 10_000
_KEPT_BYTES: Final = 64 * 1024 * 1024
_SUSPEND_MS: Final = 15_000
_PAUSE_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Binding:
    """Binding of a temporary queue to an exchange; ``kind`` is the type of the exchange."""

    queue: str
    exchange: str
    routing_key: str
    kind: str

    def matches(self, exchange: str, routing_key: str) -> bool:
        """Return whether a message with this exchange and routing key goes to the queue."""
        if exchange != self.exchange:
            return False
        if self.kind == "fanout":
            return True
        if self.kind == "topic":
            topics = TopicExchange(None)
            return bool(topics._match(topics.key_to_pattern(self.routing_key), routing_key))
        return routing_key == self.routing_key


def addressed(topic: str, body: bytes, exchange: str, routing_key: str) -> Message:
    """Return a message for the temporary queues that are bound to an exchange.

    If ``exchange`` is empty, ``routing_key`` is the name of the queue.
    """
    address = json.dumps([exchange, routing_key])
    return Message(topic, body, properties={_ADDRESS: address})


class Kept:
    """Bounded buffer of a temporary queue: bodies with birth times. Any thread may use it."""

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._using = threading.Lock()
        self._messages: deque[tuple[bytes, int]] = deque()
        self._bytes = 0
        self._is_dropping = False

    def __len__(self) -> int:
        return len(self._messages)

    def append(self, body: bytes, born_ms: int) -> None:
        """Add a message; drop the oldest ones if the buffer is full."""
        with self._using:
            self._messages.append((body, born_ms))
            self._bytes += len(body)
            while len(self._messages) > _KEPT or (
                self._bytes > _KEPT_BYTES and len(self._messages) > 1
            ):
                self._pop()
                if not self._is_dropping:
                    self._is_dropping = True
                    log.warning("transient_messages_dropped queue=%s", self._queue)

    def take(self) -> tuple[bytes, int] | None:
        """Return the oldest message, or None."""
        with self._using:
            self._is_dropping = False
            return self._pop() if self._messages else None

    def clear(self) -> int:
        """Drop all messages; return their number."""
        with self._using:
            count = len(self._messages)
            self._messages.clear()
            self._bytes = 0
            return count

    def _pop(self) -> tuple[bytes, int]:
        found = self._messages.popleft()
        self._bytes -= len(found[0])
        return found


class TransientReader:
    """Reads the topic of temporary queues, and keeps the messages of those declared here.

    ``wake`` is called when a message was kept.
    """

    def __init__(self, client: Client, topic: str, wake: Callable[[], None]) -> None:
        self.is_reading = False
        self._client = client
        self._topic = topic
        self._wake = wake
        self._clock = SystemClock()
        self._starting = asyncio.Lock()
        self._kept: dict[str, Kept] = {}
        self._bindings: set[Binding] = set()

    async def start(self, tasks: Tasks) -> None:
        """Read from the end of the topic on; messages that are sent after this returns are read.

        Does nothing if reading has begun. Raises the client's errors; another call then tries
        again.
        """
        async with self._starting:
            if self.is_reading:
                return
            ends = {
                queue: await self._client.puller.max_offset(queue)
                for queue in await self._client.queues(self._topic)
            }
            for queue, end in ends.items():
                tasks.spawn(self._read(queue, end), name=f"transient {queue}")
            self.is_reading = True

    def __contains__(self, queue: str) -> bool:
        return queue in self._kept

    def declare(self, queue: str) -> None:
        """Keep the messages of a queue."""
        self._kept.setdefault(queue, Kept(queue))

    def bind(self, binding: Binding) -> None:
        """Add a binding."""
        self._bindings = {*self._bindings, binding}

    def remove(self, queue: str) -> None:
        """Forget a queue, its messages and bindings."""
        self._bindings = {each for each in self._bindings if each.queue != queue}
        self._kept.pop(queue, None)

    def clear(self, queue: str) -> int:
        """Drop the messages of a queue; return their number."""
        return self._kept[queue].clear()

    def size(self, queue: str) -> int:
        """Return the number of messages of a queue."""
        return len(self._kept[queue])

    def put_back(self, queue: str, body: bytes, born_ms: int) -> None:
        """Add a message, which was taken before, to the end of a queue of this process."""
        if queue in self._kept:
            self._kept[queue].append(body, born_ms)

    def take(self, queue: str) -> tuple[bytes, int] | None:
        """Remove the next message of a queue; return it with its birth time, or None."""
        kept = self._kept.get(queue)
        return None if kept is None else kept.take()

    async def _read(self, queue: MessageQueue, offset: int) -> None:
        has_failed = False
        while True:
            try:
                pulled = await self._client.puller.pull(queue, offset, suspend_ms=_SUSPEND_MS)
            except CometError as error:
                # Warn once per outage, not once a second.
                level = logging.DEBUG if has_failed else logging.WARNING
                log.log(level, "transient_pull_failed queue=%s error=%s", queue, error)
                has_failed = True
                await self._clock.sleep_ms(_PAUSE_MS)
                continue
            if has_failed:
                has_failed = False
                log.warning("transient_pull_works_again queue=%s", queue)
            if pulled.leads_on_from(offset):
                offset = pulled.next_offset
            else:
                await self._clock.sleep_ms(_PAUSE_MS)
            for message in pulled.found:
                self._sort(message)

    def _sort(self, message: StoredMessage) -> None:
        """Append a message to each queue of this process that is bound to its address."""
        try:
            exchange, routing_key = msgspec.json.decode(
                message.properties[_ADDRESS], type=tuple[str, str]
            )
        except (KeyError, msgspec.DecodeError) as error:
            log.warning("transient_message_ignored id=%s error=%r", message.message_id, error)
            return
        if exchange:
            found = {each.queue for each in self._bindings if each.matches(exchange, routing_key)}
        else:
            found = {routing_key}
        for queue in found:
            kept = self._kept.get(queue)
            if kept is not None:
                kept.append(message.body, message.born_ms)
                self._wake()
