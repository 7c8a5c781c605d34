"""Producer: sends one message, a one-way message, a batch, or many messages in few batches.

A message keeps its unique key in all attempts, so that copies stored by retries can be recognised
(upstream: DefaultMQProducer.java).

Most sends are plain and use the fast path of plainsends.py. Messages of automatic batches go
through accumulator.py. All others go directly to delivery.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from cometmq.client.accumulator import Accumulator
from cometmq.client.arguments import (
    Key,
    check_messages,
    check_queue,
    check_timeout,
    order_text,
    refuse,
)
from cometmq.client.delivery import Delivery
from cometmq.client.hooks import prepared
from cometmq.client.limits import (
    check_producer_group,
    plain_batch_count,
    plan_batches,
)
from cometmq.client.plainsends import PlainSends
from cometmq.client.sendrequests import Packer, SendResult
from cometmq.core.errors import BrokerRefused, MessageIllegal
from cometmq.message.model import MessageQueue
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers import RecallMessage

if TYPE_CHECKING:
    from cometmq.client.delivery import QueueSelector
    from cometmq.client.hooks import ForbiddenHook, MessageHook, SendHook, TransactionHook
    from cometmq.client.sendrequests import Packed
    from cometmq.client.session import Session
    from cometmq.message.model import Message, StoredMessage

OrderKey = Key | Callable[["Message"], Key] | None


class Producer:
    """Sends for one session, as ``group``. Raises MessageIllegal for an invalid group name."""

    def __init__(self, session: Session, group: str = "") -> None:
        self.group = group or session.config.producer_group
        #: Broker name of the group.
        self.known_as = known_as = session.namespace.wrap(self.group)
        check_producer_group(known_as)
        self._session = session
        self._config = session.config
        self._clock = session.clock
        self._packer = Packer(session.config, session.namespace)
        self._delivery = Delivery(session, known_as)
        self._plain = PlainSends(session, self._delivery, self._packer, known_as)
        self._lingers = session.config.linger_ms > 0
        #: Collects messages into batches; created when first needed. ``lingering`` is the same
        #: object if it collects single sends too.
        self.accumulator: Accumulator | None = None
        self.lingering: Accumulator | None = None
        #: Hooks that may add properties to each message; hooks may be added at any time.
        self.message_hooks: list[MessageHook] = []
        #: Hooks called at the end of each transaction; hooks may be added at any time.
        self.transaction_hooks: list[TransactionHook] = []

    def __repr__(self) -> str:
        return f"<Producer of group {self.group}>"

    @property
    def hooks(self) -> list[SendHook]:
        """Hooks called around every attempt; hooks may be added at any time."""
        return self._delivery.hooks

    @property
    def forbidden_hooks(self) -> list[ForbiddenHook]:
        """Hooks called before every attempt; hooks may be added at any time."""
        return self._delivery.forbidden_hooks

    async def send(
        self,
        message: Message,
        *,
        order_key: Key | None = None,
        queue: MessageQueue | QueueSelector | None = None,
        timeout_ms: int = 0,
    ) -> SendResult:
        """Send one message and wait until a broker has stored it.

        ``queue`` (a queue, or a function that picks one) or ``order_key`` determines the queue;
        otherwise the queues are used in turn. With ``linger_ms`` the message is sent in a batch
        with others, unless a function picks its queue. ``timeout_ms`` limits all attempts together;
        0 means the setting ``send_timeout_ms``. Raises WrongArgument for an argument of a wrong
        type, MessageIllegal for a message over a limit, RouteNotFound, the error of a forbidden
        hook, and the last attempt's NotConnected, RequestTimedOut or BrokerRefused.
        """
        if timeout_ms:
            check_timeout(timeout_ms)
        if self.message_hooks:
            message = prepared(self.message_hooks, message)
        if self._lingers and (queue is None or isinstance(queue, MessageQueue)):
            self.lingering = accumulator = self.accumulator or self.accumulate()
            return await accumulator.add(message, order_text(order_key), queue, timeout_ms)
        if queue is None and order_key is None:
            posted = self._plain.post(message, timeout_ms)
            if posted is not None:
                try:
                    outcome = await posted.waiter
                except asyncio.CancelledError:
                    posted.link.forget(posted.opaque)
                    raise
                if type(outcome) is SendResult:
                    if self._session.outages.any_known:
                        posted.note_success(self._session.outages)
                    return outcome
                return await self._plain.go_on(message, posted, outcome)
        key = order_text(order_key)
        check_queue(queue)
        return await self._alone(message, key, timeout_ms, queue)

    async def _alone(
        self,
        message: Message,
        key: str | None,
        timeout_ms: int,
        queue: MessageQueue | QueueSelector | None = None,
    ) -> SendResult:
        packed = await self._plain.pack(message)
        return (await self._delivery.send(packed, key, queue, timeout_ms))[0]

    async def send_soon(
        self,
        message: Message,
        *,
        order_key: Key | None = None,
        queue: MessageQueue | None = None,
        timeout_ms: int = 0,
    ) -> asyncio.Future[SendResult]:
        """Queue a message, to be sent in a batch with others; return the future of its result.

        The call waits only while ``linger_buffer_bytes`` are queued or in flight. Raises
        WrongArgument and MessageIllegal; the future raises the other errors of :meth:`send`. A
        message is not sent if its future is cancelled before its batch is sent.
        """
        if timeout_ms:
            check_timeout(timeout_ms)
        if queue is not None and not isinstance(queue, MessageQueue):
            refuse("queue", "a MessageQueue", queue, "only send takes functions")
        message = prepared(self.message_hooks, message)
        accumulator = self.accumulator or self.accumulate()
        sent = accumulator.add(message, order_text(order_key), queue, timeout_ms)
        if accumulator.short:
            await accumulator.wait_for_room(sent)
        return sent

    async def flush(self) -> None:
        """Send all messages that wait for a batch, and wait until each of them is settled."""
        if self.accumulator is not None:
            await self.accumulator.flush()

    def accumulate(self) -> Accumulator:
        """Create and return the accumulator, which collects messages into batches."""
        self.accumulator = Accumulator(self._session, self._delivery, self._packer, self._plain)
        return self.accumulator

    async def recall(self, sent: SendResult, *, timeout_ms: int = 0) -> None:
        """Recall a message with a delay or delivery time: consumers do not receive it.

        ``sent`` is the result of its send. Raises MessageIllegal for a message without a recall
        handle, BrokerRefused if it is too late or recalls are not allowed, RouteNotFound,
        NotConnected and RequestTimedOut.
        """
        check_timeout(timeout_ms)
        if not sent.recall_handle:
            raise MessageIllegal(
                f"message {sent.message_id} cannot be recalled: only a message with a delay or "
                "delivery time that has not passed has a recall handle"
            )
        queue = self._session.namespace.wrap_queue(sent.queue)
        address = await self._session.master_of(queue)
        header = RecallMessage(queue.topic, sent.recall_handle, self.known_as)
        code = RequestCode.RECALL_MESSAGE
        response = await self._session.remoting.request(
            address, code, header, timeout_ms=timeout_ms or self._config.request_timeout_ms
        )
        if response.code != ResponseCode.SUCCESS:
            raise BrokerRefused(address, code, response.code, response.remark or "")

    async def send_oneway(
        self,
        message: Message,
        *,
        order_key: Key | None = None,
        queue: MessageQueue | QueueSelector | None = None,
    ) -> None:
        """Send one message without waiting for a response; it may be lost.

        Raises MessageIllegal, RouteNotFound, the error of a forbidden hook, and NotConnected.
        """
        key = order_text(order_key)
        check_queue(queue)
        packed = await self._plain.pack(prepared(self.message_hooks, message))
        await self._delivery.send_oneway(packed, key, queue)

    async def send_batch(
        self,
        messages: Iterable[Message],
        *,
        order_key: Key | None = None,
        queue: MessageQueue | QueueSelector | None = None,
        timeout_ms: int = 0,
    ) -> list[SendResult]:
        """Send messages in one request: all are stored, with consecutive offsets in one queue, or
        none.

        They must have the same topic, ``wait_store`` and birth time, no delay, and together at most
        ``max_message_bytes``. Raises MessageIllegal for other messages, and the errors of
        :meth:`send`.
        """
        given = check_messages(messages)
        if not given:
            return []
        key = order_text(order_key)
        check_queue(queue)
        check_timeout(timeout_ms)
        if self.message_hooks:
            given = [prepared(self.message_hooks, each) for each in given]
        return await self._delivery.send(self._pack_batch(given), key, queue, timeout_ms)

    async def send_many(
        self, messages: Iterable[Message], *, order_key: OrderKey = None, timeout_ms: int = 0
    ) -> list[SendResult]:
        """Send messages in as few batches as the limits allow; return results in the given order.

        ``order_key`` is a key for all messages, or a function of a message. Messages of one topic
        and one order key stay in order; delayed messages are sent alone. Raises the errors of
        :meth:`send`. MessageIllegal is raised before anything is sent. After other errors, the
        batches before the failed one remain stored.
        """
        given = check_messages(messages)
        if not given:
            return []
        check_timeout(timeout_ms)
        if self.message_hooks:
            given = [prepared(self.message_hooks, each) for each in given]
        bodies = None if callable(order_key) else self._packer.plain_bodies(given)
        if bodies is not None:
            return await self._send_plain(given, bodies, order_text(order_key), timeout_ms)
        for message in given:
            self._packer.check(message)
        texts = [self._packer.batch_text(message) for message in given]
        results: list[SendResult | None] = [None] * len(given)
        for positions, key in plan_batches(
            given, _key_function(order_key), self._config.max_batch_bytes
        ):
            part = [given[at] for at in positions]
            if len(part) == 1:
                sent = [await self._alone(part[0], key, timeout_ms)]
            else:
                now_ms = self._clock.wall_ms()
                packed = self._packer.checked_batch(
                    part, [texts[at] for at in positions], self._keys(part, now_ms), now_ms
                )
                sent = await self._delivery.send(packed, key, None, timeout_ms)
            for at, result in zip(positions, sent, strict=True):
                results[at] = result
        return [result for result in results if result is not None]

    async def _send_plain(
        self, given: list[Message], bodies: list[bytes], key: str | None, timeout_ms: int
    ) -> list[SendResult]:
        """Send messages of one topic that have only a body."""
        results: list[SendResult] = []
        count = plain_batch_count(bodies, self._config.max_batch_bytes)
        for begin in range(0, len(given), count):
            part = given[begin : begin + count]
            if len(part) == 1:
                results.append(await self._alone(part[0], key, timeout_ms))
                continue
            now_ms = self._clock.wall_ms()
            keys = self._session.unique_keys.many(now_ms, len(part))
            packed = self._packer.plain_batch(part, bodies[begin : begin + count], keys, now_ms)
            results += await self._delivery.send(packed, key, None, timeout_ms)
        return results

    async def send_prepared(
        self,
        message: Message,
        *,
        order_key: Key | None = None,
        queue: MessageQueue | QueueSelector | None = None,
        timeout_ms: int = 0,
        attempts: int = 0,
    ) -> SendResult:
        """Send the half message of a transaction of this group.

        The result has the queue offset of the half message. ``attempts`` is the maximum number of
        attempts; 0 means that of the settings. Raises the errors of :meth:`send`.
        """
        key = order_text(order_key)
        check_queue(queue)
        check_timeout(timeout_ms)
        message = prepared(self.message_hooks, message)
        packed = (await self._plain.pack(message)).prepared(self.known_as)
        sent = await self._delivery.send(packed, key, queue, timeout_ms, attempts=attempts)
        return sent[0]

    async def send_with(
        self,
        message: Message,
        reserved: Mapping[str, str],
        *,
        order_key: Key | None = None,
        queue: MessageQueue | QueueSelector | None = None,
        timeout_ms: int = 0,
    ) -> SendResult:
        """Send one message with reserved properties, which users may not set.

        Raises the errors of :meth:`send`.
        """
        key = order_text(order_key)
        check_queue(queue)
        message = prepared(self.message_hooks, message)
        packed = (await self._plain.pack(message)).with_properties(reserved)
        return (await self._delivery.send(packed, key, queue, timeout_ms))[0]

    async def send_reply(self, message: Message, reserved: Mapping[str, str]) -> SendResult:
        """Send the reply to a request; its topic is the same in every namespace.

        Raises the errors of :meth:`send`, and BrokerRefused if the requester did not receive the
        reply.
        """
        message = prepared(self.message_hooks, message)
        packed = (await self._plain.pack(message)).with_properties(reserved).as_reply(message.topic)
        return (await self._delivery.send(packed, None, None, 0))[0]

    def share_hooks(self, other: Producer) -> None:
        """Share the hooks of another producer, including hooks that are added later."""
        self._delivery.hooks = other.hooks
        self._delivery.forbidden_hooks = other.forbidden_hooks
        self.transaction_hooks = other.transaction_hooks
        self.message_hooks = other.message_hooks

    async def send_to_retry(
        self,
        message: StoredMessage,
        retry_topic: str,
        *,
        reconsume_times: int,
        max_reconsume_times: int,
        delay_level: int,
    ) -> SendResult:
        """Store a consumed message again in its group's retry topic.

        If no attempt is left, the broker makes it a dead letter. Raises the errors of :meth:`send`.
        """
        now_ms = self._clock.wall_ms()
        packed = self._packer.retry(
            message,
            retry_topic,
            self._session.unique_keys.next(now_ms),
            now_ms,
            reconsume_times=reconsume_times,
            max_reconsume_times=max_reconsume_times,
            delay_level=delay_level,
        )
        return (await self._delivery.send(packed, None, None, 0))[0]

    def _pack_batch(self, messages: list[Message]) -> Packed:
        now_ms = self._clock.wall_ms()
        return self._packer.batch(messages, self._keys(messages, now_ms), now_ms)

    def _keys(self, messages: list[Message], now_ms: int) -> list[str]:
        keys = self._session.unique_keys.many(now_ms, len(messages))
        return [message.message_id or key for message, key in zip(messages, keys, strict=True)]


def _key_function(order_key: OrderKey) -> Callable[[Message], str | None] | None:
    if order_key is None:
        return None
    if callable(order_key):
        return lambda message: order_text(order_key(message))
    key = order_text(order_key)
    return lambda _: key
