"""Kombu's channel and transport over a :class:`~cometmq.kombu.link.Link`.

The base classes (kombu's virtual transport) keep exchanges and bindings in this process. Each queue
is a topic with its own consumer group, or one topic for each priority step. Temporary queues share
one topic. A message is acknowledged at the broker when kombu acknowledges it.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import count
from queue import Empty
from typing import Any, ClassVar, Final

from kombu.exceptions import ChannelError
from kombu.transport import base, virtual
from kombu.utils.json import dumps

from cometmq.core.clock import SystemClock
from cometmq.core.errors import (
    BrokerRefused,
    ClientError,
    CometError,
    MessageIllegal,
    NotConnected,
    NotOpen,
    RequestTimedOut,
    RouteNotFound,
)
from cometmq.kombu.delays import level_within_ms
from cometmq.kombu.link import Delivery, Link
from cometmq.kombu.naming import topic_of
from cometmq.kombu.options import DEFAULT_PORT, options_of
from cometmq.kombu.payloads import expiration_ms, may_be_key, payload_of
from cometmq.kombu.transient import Binding, addressed
from cometmq.message.model import Message

log = logging.getLogger(__name__)

#: A message that is due within this time is not delayed at the broker; the worker waits for it.
_SOON_MS: Final = 1_500
#: Longest delay that is requested of a broker at a time; its own limit is 3 days by default.
_LONGEST_MS: Final = 48 * 3_600_000
#: Longest time for which basic_get waits for a message.
_GET_WAIT_MS: Final = 1_000
#: Maximum number of messages that one turn of Celery's event loop delivers.
_A_TURN: Final = 100
_WAIT_S: Final = 1.0


class QoS(virtual.QoS):  # type: ignore[misc]
    """Unacknowledged messages of a channel."""

    def ack(self, delivery_tag: str) -> None:
        super().ack(delivery_tag)
        self.channel.settle(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        super().reject(delivery_tag, requeue=requeue)
        self.channel.settle(delivery_tag)

    def restore_unacked(self) -> list[Any]:
        """Send a copy of each unacknowledged message to its queue, the oldest first.

        If the broker cannot be reached, the remaining messages are not sent: the broker still has
        them, and delivers them again. So closing the connection does not wait for each of them.
        """
        self._flush()
        while self._delivered:
            tag, message = self._delivered.popitem(last=False)
            try:
                self.channel._restore(message)
            except CometError as error:
                log.warning("message_not_sent_back tag=%s error=%s", tag, error)
                if isinstance(error, ClientError):
                    break
        self._delivered.clear()
        return []


class Channel(virtual.Channel):  # type: ignore[misc]
    """Channel of a connection: maps kombu's operations to the connection's link."""

    QoS = QoS
    supports_fanout = True

    def __init__(self, connection: Transport, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self._clock = SystemClock()
        self._tags = count(1)
        #: Unacknowledged deliveries with their queues, by delivery tag.
        self._held: dict[str, tuple[str, Delivery]] = {}
        #: Queues consumed with ``no_ack``: their messages are acknowledged on delivery.
        self._unacknowledged: set[str] = set()

    @property
    def link(self) -> Link:
        """The connection's link."""
        link: Link = self.connection.link
        return link

    # ------------------------------------------------------------------ queues

    def _new_queue(self, queue: str, **kwargs: Any) -> None:
        arguments = kwargs.get("arguments") or {}
        temporary = kwargs.get("auto_delete") or kwargs.get("exclusive")
        if temporary or "x-expires" in arguments:
            self.link.declare_temporary(queue)
        elif queue not in self.link.transient:
            self.link.create(queue)

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        return queue in self.link.transient or self.link.has_queue(queue)

    def queue_declare(self, queue: str | None = None, passive: bool = False, **kwargs: Any) -> Any:
        """Declare a queue; only a passive declaration counts its messages, which takes requests."""
        declared = super().queue_declare(queue=queue, passive=passive, **kwargs)
        if not passive:
            return declared
        return type(declared)(declared.queue, self._count(declared.queue), 0)

    def _size(self, queue: str) -> int:
        return 0

    def _count(self, queue: str) -> int:
        link = self.link
        if queue in link.transient:
            return link.transient.size(queue)
        return link.size(queue)

    def queue_delete(
        self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any
    ) -> None:
        """Delete a queue with its bindings and topics."""
        if if_empty and self._count(queue):
            return
        self.state.queue_bindings_delete(queue)
        for exchange in self.state.exchanges.values():
            exchange["table"] = [each for each in exchange["table"] if each[2] != queue]
        if queue in self.link.transient:
            self.link.transient.remove(queue)
        elif self.link.has_queue(queue):
            self.link.delete(queue)

    def _purge(self, queue: str) -> int:
        link = self.link
        return link.transient.clear(queue) if queue in link.transient else link.purge(queue)

    def queue_bind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Any = None,
        **kwargs: Any,
    ) -> None:
        """Bind a queue to an exchange; bindings of temporary queues stay in this connection."""
        if queue not in self.link.transient:
            super().queue_bind(queue, exchange, routing_key, arguments, **kwargs)
            return
        exchange = exchange or "amq.direct"
        kind = self.typeof(exchange).type
        self.link.transient.bind(Binding(queue, exchange, routing_key or "", kind))

    def _queue_bind(self, exchange: str, routing_key: str, pattern: Any, queue: str) -> None:
        """Do nothing: the table of the exchange already has the binding."""

    # ------------------------------------------------------------------ publishing

    def basic_publish(
        self, message: dict[str, Any], exchange: str, routing_key: str, **kwargs: Any
    ) -> None:
        """Send a message to the queues that are bound to the exchange.

        If none is bound, or the exchange is of type fanout, the message also goes to the topic of
        the temporary queues, whose bindings only their own processes know.
        """
        self._inplace_augment_message(message, exchange, routing_key)
        try:
            self._publish(message, exchange, routing_key)
        except ClientError:
            _end_if_requested()
            raise

    def _publish(self, message: dict[str, Any], exchange: str, routing_key: str) -> None:
        link = self.link
        if exchange:
            table = self.state.exchanges.get(exchange, {}).get("table", ())
            kind = self.typeof(exchange)
            queues = kind.lookup(table, exchange, routing_key, None)
        else:
            is_queue = routing_key not in link.transient and link.has_queue(routing_key)
            queues = {routing_key} if is_queue else set()
        for queue in queues:
            self._put(queue, message)
        if not queues or (exchange and kind.type == "fanout"):
            topic = link.options.transient_topic
            link.create_transient_topic()
            link.send(addressed(topic, dumps(message).encode(), exchange, routing_key))

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        self._send(queue, message, use_levels=self.link.options.delays == "levels")

    def _send(self, queue: str, message: dict[str, Any], *, use_levels: bool) -> None:
        link = self.link
        step = link.options.step_of(self._get_message_priority(message))
        task_id = str(message["properties"].get("correlation_id") or "")
        left_ms = self._until_due_ms(message)
        delayed = left_ms > _SOON_MS and link.options.delays != "worker"
        due_ms = self._clock.wall_ms() + min(left_ms, _LONGEST_MS)
        link.send(
            Message(
                topic_of(queue, step),
                dumps(message).encode(),
                keys=(task_id,) if may_be_key(task_id) else (),
                delay_level=level_within_ms(left_ms) if delayed and use_levels else 0,
                deliver_at_ms=due_ms if delayed and not use_levels else 0,
            )
        )

    def _until_due_ms(self, message: dict[str, Any]) -> int:
        """Return the time until the task's ETA; 0 without one."""
        eta = (message.get("headers") or {}).get("eta")
        if not eta:
            return 0
        try:
            due = datetime.fromisoformat(eta)
        except (TypeError, ValueError):
            return 0
        due = due if due.tzinfo else due.replace(tzinfo=UTC)
        return max(round(due.timestamp() * 1_000) - self._clock.wall_ms(), 0)

    # ------------------------------------------------------------------ consuming

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **kwargs: Any
    ) -> None:
        """Start to consume from a queue."""
        if no_ack:
            self._unacknowledged.add(queue)
        if queue not in self.link.transient:
            self.link.read(queue)
        super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)

    def basic_cancel(self, consumer_tag: str) -> None:
        """Stop consuming; this channel keeps its unacknowledged messages."""
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        if queue is not None and queue not in self._active_queues:
            self._unacknowledged.discard(queue)
            if self.connection is not None and self.connection.has_link:
                self.link.stop(queue)

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        """Return the next message, or None if there is none within a second."""
        link = self.link
        if queue not in link.transient:
            link.read(queue)
        deadline_ms = self._clock.monotonic_ms() + _GET_WAIT_MS
        while True:
            message = super().basic_get(queue, no_ack=no_ack, **kwargs)
            left_ms = deadline_ms - self._clock.monotonic_ms()
            if message is not None or left_ms <= 0:
                break
            link.wait(left_ms / 1_000)
        if message is not None and no_ack:
            self.settle(message.delivery_tag)
        return message

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        link = self.link
        while True:
            if queue in link.transient:
                kept = link.transient.take(queue)
                delivery = None if kept is None else Delivery(*kept)
            else:
                delivery = link.take(queue)
            if delivery is None:
                raise Empty
            payload = self._accept(queue, delivery)
            if payload is not None:
                return payload

    def _accept(self, queue: str, delivery: Delivery) -> dict[str, Any] | None:
        """Return the payload of a delivery for kombu.

        Returns None, after settling the delivery, if it is expired, not due yet, or not kombu's.
        """
        tag = f"{self.channel_id}-{next(self._tags)}"
        try:
            payload = payload_of(delivery.body)
            payload["properties"]["delivery_tag"] = tag
            self.Message(payload, channel=self)
        except Exception as error:  # parsers of foreign bytes may raise anything
            log.error("message_refused queue=%s error=%r", queue, error)
            self.link.refuse(delivery)
            return None
        if self._is_expired(payload, delivery):
            self.link.settle(delivery)
            return None
        received = delivery.received
        if received is not None:
            if self._is_early(payload):
                # The broker has no timers, or they are too short. Delay the message by a level.
                self._send(queue, payload, use_levels=True)
                self.link.settle(delivery)
                return None
            if received.reconsume_times:
                _mark_redelivered(payload)
        if queue in self._unacknowledged:
            self.link.settle(delivery)
        else:
            self._held[tag] = queue, delivery
        return payload

    def _is_expired(self, payload: dict[str, Any], delivery: Delivery) -> bool:
        # A task with a header `expires` goes to the worker even if expired: it records that.
        is_task = bool((payload.get("headers") or {}).get("expires"))
        left_ms = expiration_ms(payload)
        if is_task or not left_ms:
            return False
        return delivery.born_ms + left_ms <= self._clock.wall_ms()

    def _is_early(self, payload: dict[str, Any]) -> bool:
        if self.link.options.delays == "worker":
            return False
        return self._until_due_ms(payload) > _SOON_MS

    # ------------------------------------------------------------------ settling

    def settle(self, delivery_tag: str) -> None:
        """Acknowledge a delivery at the broker, if this channel holds it."""
        _, delivery = self._held.pop(delivery_tag, (None, None))
        if delivery is not None and self.connection is not None and self.connection.has_link:
            self.link.settle(delivery)
            self.connection.has_room()

    def _restore(self, message: Any) -> None:
        """Send a copy to the end of the queue, then acknowledge the message."""
        queue, delivery = self._held.get(message.delivery_tag, (None, None))
        if queue is None or delivery is None or not self.connection.has_link:
            return
        payload = payload_of(delivery.body)
        _mark_redelivered(payload)
        if delivery.received is None:
            self.link.transient.put_back(queue, dumps(payload).encode(), delivery.born_ms)
            self.link.wake()
        else:
            self._put(queue, payload)
        self.settle(message.delivery_tag)


def _end_if_requested() -> None:
    """Raise the exception that ends this process's Celery worker, if it was requested to stop.

    Celery itself checks this only between its attempts to connect. Kombu repeats a failed publish,
    such as that of the worker's heartbeat, for ever. Without this check a worker that cannot reach
    its broker would ignore SIGTERM. Running tasks are not interrupted.
    """
    worker, current = map(sys.modules.get, ("celery.worker.state", "celery._state"))
    if (
        worker is not None
        and threading.current_thread() is threading.main_thread()
        and (current is None or current.get_current_task() is None)
    ):
        worker.maybe_shutdown()


def _mark_redelivered(payload: dict[str, Any]) -> None:
    payload["properties"].setdefault("delivery_info", {})["redelivered"] = True


class Transport(virtual.Transport):  # type: ignore[misc]
    """Transport of one kombu connection."""

    Channel = Channel
    default_port = DEFAULT_PORT
    driver_type = "cometmq"
    driver_name = "cometmq"
    implements = base.Transport.implements.extend(
        asynchronous=True,
        exchange_type=frozenset(["direct", "topic", "fanout"]),
        heartbeats=False,
    )
    connection_errors = (
        *virtual.Transport.connection_errors,
        NotConnected,
        RequestTimedOut,
        RouteNotFound,
        NotOpen,
        OSError,
    )
    channel_errors = (
        *virtual.Transport.channel_errors,
        ChannelError,
        BrokerRefused,
        MessageIllegal,
    )

    #: Exchanges and bindings of all connections of the process.
    _state: ClassVar[virtual.BrokerState] = virtual.BrokerState()

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self.state = self._state
        self._link: Link | None = None
        self._opening = threading.Lock()
        self._loop: Any = None
        #: True if a prefetch limit may have kept the last turn from delivering all messages.
        self._is_full = False

    def driver_version(self) -> str:
        """Return the version of CometMQ."""
        return version("cometmq")

    @property
    def has_link(self) -> bool:
        """True if this process has opened the connection."""
        return self._link is not None and self._link.pid == os.getpid()

    @property
    def link(self) -> Link:
        """The link of this process; a forked process opens its own."""
        with self._opening:
            link = self._link
            if link is None or link.pid != os.getpid():
                link = self._link = Link(options_of(self.client))
            return link

    def establish_connection(self) -> Transport:
        """Open the link. Raises NotConnected if no server answers."""
        try:
            _ = self.link
        except CometError:
            _end_if_requested()
            raise
        super().establish_connection()
        return self

    def close_connection(self, connection: Any) -> None:
        """Close all channels and the link."""
        self._leave_loop()
        try:
            super().close_connection(connection)
        finally:
            link, self._link = self._link, None
            if link is not None:
                try:
                    link.close()
                except CometError as error:
                    log.warning("close_failed error=%r", error)

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Deliver waiting messages, or wait for some. Raises TimeoutError if none arrive."""
        clock = SystemClock()
        begun_ms = clock.monotonic_ms()
        link = self.link
        while not self._deliver_some(_A_TURN):
            wait_s = _WAIT_S
            if timeout is not None:
                wait_s = min(wait_s, timeout - (clock.monotonic_ms() - begun_ms) / 1_000)
                if wait_s <= 0:
                    raise TimeoutError
            link.wait(wait_s)

    def _deliver_some(self, most: int) -> int:
        """Deliver at most ``most`` waiting messages; return their number."""
        for delivered in range(most):
            try:
                self.cycle.get(self._deliver, timeout=0)
            except Empty:
                return delivered
        return most

    # ------------------------------------------------------------------ Celery's event loop

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Deliver messages in each turn of Celery's event loop."""
        self._leave_loop()
        self._loop = loop
        loop.add_reader(self.link.fileno(), self.link.clear)
        loop.on_tick.add(self._on_tick)

    def unregister_from_event_loop(self, connection: Any, loop: Any) -> None:
        """Stop delivering in the turns of Celery's event loop."""
        self._leave_loop()

    def _leave_loop(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.on_tick.discard(self._on_tick)
            if self._link is not None:
                loop.remove_reader(self._link.fileno())

    def _on_tick(self) -> None:
        if self._deliver_some(_A_TURN) == _A_TURN:
            # There may be more messages: make the loop turn again at once.
            self.link.wake()
        self._is_full = any(not channel.qos.can_consume() for channel in self.channels)

    def has_room(self) -> None:
        """Wake the loop after an acknowledgement, if a prefetch limit had stopped delivery."""
        if self._is_full:
            self._is_full = False
            self.link.wake()
