"""Public asyncio client: sends, subscribes and reads. All of its parts share connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

import msgspec

from cometmq.client.arguments import (
    Key,
    check_topic_type,
    checked_body,
    delay_of,
    epoch_ms,
    key_texts,
)
from cometmq.client.config import ClientConfig, make_config
from cometmq.client.consumer.adminrequests import Inquiries
from cometmq.client.consumer.options import Allocation, Mode, Start, make_options
from cometmq.client.consumer.pullconsumer import PullConsumer
from cometmq.client.consumer.pushconsumer import DRAIN_MS, Subscription
from cometmq.client.producer import OrderKey, Producer
from cometmq.client.pull import Puller
from cometmq.client.requestreply import Asker, Responder, respond
from cometmq.client.session import Session
from cometmq.client.status import ClientStatus, LinkStatus
from cometmq.client.tracing import Tracer
from cometmq.client.transactions import Checker, CheckerTable, Transaction
from cometmq.core.errors import NotOpen
from cometmq.message.model import Message, MessageQueue
from cometmq.message.names import AUTO_CREATE_TOPIC

if TYPE_CHECKING:
    from datetime import datetime

    from cometmq.client.consumer.options import Sql
    from cometmq.client.consumer.rebalance import AssignmentListener
    from cometmq.client.consumer.received import ReceivedMessage
    from cometmq.client.delivery import QueueSelector
    from cometmq.client.hooks import ConsumeHook, ForbiddenHook, MessageHook, SendHook
    from cometmq.client.outages import OutageHook
    from cometmq.client.sendrequests import SendResult
    from cometmq.client.serializers import Serializer
    from cometmq.client.typed import TypedTopic
    from cometmq.core.clock import Clock
    from cometmq.message.model import MessageView

T = TypeVar("T")


class Client:
    """RocketMQ client: ``async with Client("127.0.0.1:9876") as client: ...``.

    Send with :meth:`send`, consume with :meth:`subscribe`. One client serves a whole program: all
    its senders and consumers share one connection to each broker.

    ``name_servers`` is one address, several addresses separated by ``;``, or a sequence of
    addresses. ``settings`` are fields of ClientConfig; ``config`` replaces both. Raises
    SettingsError for an unknown setting.
    """

    def __init__(
        self,
        name_servers: str | Iterable[str] = (),
        *,
        config: ClientConfig | None = None,
        clock: Clock | None = None,
        **settings: Any,
    ) -> None:
        self.config = config or make_config(name_servers, settings)
        #: Hooks called around the processing of every message; hooks may be added at any time.
        self.consume_hooks: list[ConsumeHook] = []
        self._clock = clock
        self._session: Session | None = None
        self._producer: Producer | None = None
        self._puller: Puller | None = None
        self._subscriptions: list[Subscription] = []
        self._pull_consumers: list[PullConsumer] = []
        self._producers: dict[str, Producer] = {}
        self._asker: Asker | None = None
        self._checkers: CheckerTable | None = None
        self._inquiries: Inquiries | None = None
        self._tracer: Tracer | None = None

    def __repr__(self) -> str:
        servers = ";".join(self.config.name_servers)
        if self._session is None:
            return f"<Client of {servers}, not open>"
        members = len(self._session.members)
        return f"<Client {self.client_id} of {servers}, open, {members} consumers>"

    async def __aenter__(self) -> Client:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Open the client. Connections are made when they are first needed."""
        if self._session is None:
            self._session = Session(self.config, clock=self._clock)
            self._inquiries = Inquiries(self._session)
            self._session.start()
            if self.config.trace:
                self._trace(self._session)

    async def drain(self, timeout_ms: int = DRAIN_MS) -> int:
        """Stop consuming and leave the client open for sends, for example before a service ends.

        All subscriptions stop taking messages, wait up to ``timeout_ms`` for those in progress,
        store their offsets and leave their groups. Returns the number of messages that were not
        finished in time; they are delivered again. Consumers that poll continue.
        """
        drained = [each.close(timeout_ms) for each in self._subscriptions]
        return sum(await asyncio.gather(*drained))

    async def close(self) -> None:
        """Leave all groups and close all connections. Messages in progress have 10 s to finish.

        If the call is cancelled, it closes the connections at once: messages in progress are
        delivered again, and sends that wait for a batch fail. If it is cancelled twice, call it
        again.
        """
        is_settled = False
        try:
            await self._settle()
            is_settled = True
        finally:
            self._forget()
            if (session := self._session) is not None:
                try:
                    await session.close(unregister=is_settled)
                finally:
                    if session.has_ended:
                        self._forget()
                        self._session = None

    async def _settle(self) -> None:
        """End consumers, and send waiting messages and traces."""
        await self.drain()
        for consumer in self._pull_consumers:
            await consumer.close()
        if self._producer is not None:
            await self._producer.flush()
        if (tracer := self._untrace()) is not None:
            await tracer.close()

    def _forget(self) -> None:
        """Drop the objects that belong to the session."""
        self._untrace()
        self._subscriptions.clear()
        self._pull_consumers.clear()
        self._producers.clear()
        self._producer = self._puller = None
        self._asker = self._checkers = None

    def _untrace(self) -> Tracer | None:
        tracer, self._tracer = self._tracer, None
        if tracer is not None:
            self.consume_hooks.remove(tracer.on_consume)
        return tracer

    def _trace(self, session: Session) -> None:
        self._tracer = tracer = Tracer(session, self.config.trace_topic)
        self.send_hooks.append(tracer.on_send)
        self.consume_hooks.append(tracer.on_consume)
        self.producer.transaction_hooks.append(tracer.on_transaction_end)

    @property
    def session(self) -> Session:
        """Connections, routes and memberships that producers, consumers and admin calls share.

        Raises NotOpen (a RuntimeError) outside of ``async with``.
        """
        if self._session is None:
            raise NotOpen("the client is not open: use `async with Client(...)`, or start()")
        return self._session

    @property
    def client_id(self) -> str:
        """Client id under which brokers know this client."""
        return self.session.client_id

    def status(self) -> ClientStatus:
        """Return connections, consumers with their lag, and unavailable servers and topics.

        This sends no request, and any thread may call it. ``status().problem`` is "" if all is
        well. Raises NotOpen.
        """
        session = self.session
        return ClientStatus(
            self.client_id,
            tuple(self.config.name_servers),
            tuple(LinkStatus(*each) for each in sorted(session.remoting.in_flight().items())),
            tuple(each.status() for each in tuple(self._subscriptions) if not each.closed),
            session.outages.current(),
            tuple(each.status() for each in tuple(self._pull_consumers) if not each.closed),
        )

    @property
    def outage_hooks(self) -> list[OutageHook]:
        """Hooks called when a server or topic becomes unavailable or is available again."""
        return self.session.outages.listeners

    @property
    def producer(self) -> Producer:
        """Producer, which sends Message objects; :meth:`send` is the short form."""
        if self._producer is None:
            self._producer = Producer(self.session)
        return self._producer

    @property
    def puller(self) -> Puller:
        """Reader of queues at explicit offsets, without a consumer group."""
        if self._puller is None:
            self._puller = Puller(self.session)
        return self._puller

    @property
    def send_hooks(self) -> list[SendHook]:
        """Hooks called around every send attempt; hooks may be added at any time."""
        return self.producer.hooks

    @property
    def message_hooks(self) -> list[MessageHook]:
        """Hooks called with each message before it is packed, which may add properties to it."""
        return self.producer.message_hooks

    @property
    def forbidden_hooks(self) -> list[ForbiddenHook]:
        """Hooks called before every send attempt; an error that one raises ends the send."""
        return self.producer.forbidden_hooks

    @overload
    async def send(
        self,
        topic: Message,
        body: None = None,
        *,
        order_key: Key | None = None,
        queue: MessageQueue | QueueSelector | None = None,
        timeout_ms: int = 0,
    ) -> SendResult: ...
    @overload
    async def send(
        self,
        topic: str,
        body: bytes,
        *,
        tag: str = "",
        keys: Iterable[Key] | Key = (),
        properties: Mapping[str, str] | None = None,
        delay_level: int = 0,
        delay_s: float = 0,
        deliver_at: datetime | None = None,
        order_key: Key | None = None,
        queue: MessageQueue | QueueSelector | None = None,
        timeout_ms: int = 0,
    ) -> SendResult: ...
    async def send(
        self,
        topic: str | Message,
        body: bytes | None = None,
        *,
        tag: str = "",
        keys: Iterable[Key] | Key = (),
        properties: Mapping[str, str] | None = None,
        delay_level: int = 0,
        delay_s: float = 0,
        deliver_at: datetime | None = None,
        order_key: Key | None = None,
        queue: MessageQueue | QueueSelector | None = None,
        timeout_ms: int = 0,
    ) -> SendResult:
        """Send a message and wait until a broker has stored it; return its queue, offset and id.

        ``await client.send("orders", b"...", tag="paid", keys=["A17"], order_key="A17")``

            topic         name of the topic; or a Message, and then only the last three arguments
            body          bytes: encode text and objects first
            tag           one word by which consumers filter
            keys          texts or integers by which the message can be found later
            properties    texts by name; consumers can filter by them with Sql
            delay_s       delay of the delivery in seconds
            deliver_at    time of the delivery, a datetime with a time zone
            delay_level   a delay level of the broker instead: 1 is 1 s, 2 is 5 s, ... 18 is 2 h
            order_key     text or integer; messages with the same order key stay in order
            queue         a queue of the topic, or a function of the queues and the message
            timeout_ms    limit of all attempts together; 0 means the setting send_timeout_ms

        Raises WrongArgument for a wrong type, MessageIllegal for a message over a limit,
        RouteNotFound if no name server knows the topic, and the last attempt's NotConnected,
        RequestTimedOut or BrokerRefused. A message whose send timed out may be stored.
        """
        message = _message(topic, body, tag, keys, properties, delay_level)
        if delay_s or deliver_at is not None:
            message = msgspec.structs.replace(
                message, delay_ms=delay_of(delay_s), deliver_at_ms=epoch_ms(deliver_at)
            )
        producer = self._producer or self.producer
        # Call the accumulator directly, which saves a coroutine for each message.
        if (
            producer.lingering is not None
            and order_key is None
            and queue is None
            and not timeout_ms
            and not producer.message_hooks
        ):
            return await producer.lingering.add(message)
        return await producer.send(message, order_key=order_key, queue=queue, timeout_ms=timeout_ms)

    @overload
    async def send_soon(
        self,
        topic: Message,
        body: None = None,
        *,
        order_key: Key | None = None,
        queue: MessageQueue | None = None,
    ) -> asyncio.Future[SendResult]: ...
    @overload
    async def send_soon(
        self,
        topic: str,
        body: bytes,
        *,
        tag: str = "",
        keys: Iterable[Key] | Key = (),
        properties: Mapping[str, str] | None = None,
        order_key: Key | None = None,
        queue: MessageQueue | None = None,
    ) -> asyncio.Future[SendResult]: ...
    async def send_soon(
        self,
        topic: str | Message,
        body: bytes | None = None,
        *,
        tag: str = "",
        keys: Iterable[Key] | Key = (),
        properties: Mapping[str, str] | None = None,
        order_key: Key | None = None,
        queue: MessageQueue | None = None,
    ) -> asyncio.Future[SendResult]:
        """Queue a message, to be sent in a batch with others; return the future of its result.

        ``sent = [await client.send_soon("orders", body) for body in bodies]``, then ``await`` each
        of them: one task can have thousands of messages in flight. Arguments are those of
        :meth:`send`. The call waits only while ``linger_buffer_bytes`` are queued or in flight. The
        future raises the errors of :meth:`send`. A message is not sent if its future is cancelled
        before its batch is sent. :meth:`flush` waits for all. Raises WrongArgument and
        MessageIllegal.
        """
        message = _message(topic, body, tag, keys, properties, 0)
        producer = self._producer or self.producer
        accumulator = producer.accumulator
        # Call the accumulator directly, which saves a coroutine for each message.
        if (
            accumulator is None
            or order_key is not None
            or queue is not None
            or producer.message_hooks
        ):
            return await producer.send_soon(message, order_key=order_key, queue=queue)
        sent = accumulator.add(message)
        if accumulator.short:
            await accumulator.wait_for_room(sent)
        return sent

    async def flush(self) -> None:
        """Send the messages of :meth:`send_soon`, and wait until each of them is settled."""
        await self.producer.flush()

    def topic(
        self,
        name: str,
        value_type: type[T],
        *,
        serializer: Serializer[T] | Literal["json", "msgpack"] = "json",
        keys: Callable[[T], Iterable[Key] | Key] | None = None,
        order_key: Callable[[T], Key | None] | None = None,
    ) -> TypedTopic[T]:
        """Return a topic whose messages are values of one type, to send and to subscribe to.

        ``orders = client.topic("orders", Order, keys=lambda order: order.id)``

        ``value_type`` is a msgspec struct, a dataclass, a TypedDict, a pydantic model, or any type
        that ``serializer`` accepts. ``keys`` and ``order_key`` are functions of a value, for sends
        that do not pass these arguments. Raises SettingsError for a type or serializer that cannot
        be used.
        """
        from cometmq.client.serializers import TypedBody
        from cometmq.client.typed import TypedTopic

        body = TypedBody(value_type, serializer, keys=keys, order_key=order_key)
        return TypedTopic(self, name, body)

    async def recall(self, sent: SendResult, *, timeout_ms: int = 0) -> None:
        """Recall a message sent with ``delay_s`` or ``deliver_at`` before it is due.

        ``sent`` is the result of :meth:`send`. Raises the errors of Producer.recall.
        """
        await self.producer.recall(sent, timeout_ms=timeout_ms)

    async def send_oneway(
        self,
        topic: str | Message,
        body: bytes | None = None,
        *,
        tag: str = "",
        keys: Iterable[Key] | Key = (),
        properties: Mapping[str, str] | None = None,
        order_key: Key | None = None,
        queue: MessageQueue | QueueSelector | None = None,
    ) -> None:
        """Send a message without waiting for a response.

        This is fast, but the message is lost without notice if a broker fails. Raises the errors of
        Producer.send_oneway.
        """
        message = _message(topic, body, tag, keys, properties, 0)
        await self.producer.send_oneway(message, order_key=order_key, queue=queue)

    async def send_batch(
        self,
        messages: Iterable[Message],
        *,
        order_key: Key | None = None,
        queue: MessageQueue | QueueSelector | None = None,
        timeout_ms: int = 0,
    ) -> list[SendResult]:
        """Send messages in one request: either all are stored, with consecutive offsets, or none.

        Raises the errors of Producer.send_batch.
        """
        return await self.producer.send_batch(
            messages, order_key=order_key, queue=queue, timeout_ms=timeout_ms
        )

    async def send_many(
        self, messages: Iterable[Message], *, order_key: OrderKey = None, timeout_ms: int = 0
    ) -> list[SendResult]:
        """Send messages in as few batches as the limits allow.

        Raises the errors of Producer.send_many.
        """
        return await self.producer.send_many(messages, order_key=order_key, timeout_ms=timeout_ms)

    def subscribe(
        self,
        topics: str | Mapping[str, str | Sql],
        *,
        group: str,
        filter: str | Sql = "*",  # the name that users of message queues expect
        concurrency: int = 8,
        ordered: bool = False,
        mode: Mode = "clustering",
        start: Start = "last",
        max_reconsume_times: int = -1,
        allocation: Allocation = "average",
    ) -> Subscription:
        """Consume as a member of ``group``; return the Subscription to iterate over or to run.

        ``async for message in client.subscribe("orders", group="billing"): ...``

        ``topics`` is one topic, whose tags match ``filter`` (``insert || update``, or Sql), or a
        mapping of topics to filters. ``ordered`` delivers the messages of each queue one by one.
        ``mode="broadcasting"`` delivers every message to every member. ``start`` is the position at
        which a new group begins. A message that fails more than ``max_reconsume_times`` becomes a
        dead letter. ``allocation`` is the strategy that shares the queues among the members. Raises
        SettingsError and MessageIllegal for invalid options.
        """
        options = make_options(
            topics,
            group=group,
            expression=filter,
            version=self.session.clock.wall_ms(),
            concurrency=concurrency,
            ordered=ordered,
            mode=mode,
            start=start,
            max_reconsume_times=max_reconsume_times,
            allocation=allocation,
            namespace=self.session.namespace,
        )
        subscription = Subscription(self.session, self.producer, options, self.consume_hooks)
        self._subscriptions = [each for each in self._subscriptions if not each.closed]
        self._subscriptions.append(subscription)
        return subscription

    def pull_consumer(
        self,
        topics: str | Mapping[str, str | Sql] | None = None,
        *,
        group: str,
        filter: str | Sql = "*",
        mode: Mode = "clustering",
        start: Start = "last",
        auto_commit: bool = True,
        allocation: Allocation = "average",
        on_assignment: AssignmentListener | None = None,
    ) -> PullConsumer:
        """Return a consumer that fetches messages when it is polled and can seek in its queues.

        It shares ``topics`` with the other members of ``group``. Without topics, it reads the
        queues passed to its ``assign``. Other options are those of :meth:`subscribe`.

        With ``auto_commit`` the messages of a poll are committed some time after the next poll.
        ``on_assignment`` is called with the queues that were added and removed. Raises
        SettingsError and MessageIllegal for invalid options.
        """
        options = make_options(
            topics,
            group=group,
            expression=filter,
            version=self.session.clock.wall_ms(),
            mode=mode,
            start=start,
            allocation=allocation,
            polls=True,
            namespace=self.session.namespace,
        )
        consumer = PullConsumer(
            self.session, options, auto_commit=auto_commit, on_assignment=on_assignment
        )
        self._pull_consumers = [each for each in self._pull_consumers if not each.closed]
        self._pull_consumers.append(consumer)
        return consumer

    def transaction(
        self,
        topic: str | Message,
        body: bytes | None = None,
        *,
        tag: str = "",
        keys: Iterable[Key] | Key = (),
        properties: Mapping[str, str] | None = None,
        order_key: Key | None = None,
        queue: MessageQueue | QueueSelector | None = None,
        group: str = "",
        timeout_ms: int = 0,
    ) -> Transaction:
        """Send a message that consumers see only if a block succeeds.

        ``async with client.transaction("orders", b"...", group="shop"): ...``

        If neither commit nor rollback reaches the broker, it asks the checker of the producer
        ``group`` about the transaction; see :meth:`transaction_checker`. Entering the block raises
        the errors of Producer.send, and BrokerRefused if the message is not stored safely.
        """
        message = _message(topic, body, tag, keys, properties, 0)
        return Transaction(
            self.session,
            self._producer_of(group),
            message,
            order_key=order_key,
            queue=queue,
            timeout_ms=timeout_ms,
        )

    def transaction_checker(
        self, group: str = "", *, topic: str = AUTO_CREATE_TOPIC
    ) -> Callable[[Checker], Checker]:
        """Return a decorator that registers the checker of a producer ``group``.

        Brokers call the checker about open transactions. It receives the message and returns True
        (committed), False (rolled back) or None (not known yet). This client registers with the
        brokers of ``topic`` at once, even if it sends nothing. Raises AlreadyInUse (a ValueError)
        if the group already has a checker.
        """
        session, producer = self.session, self._producer_of(group)
        if self._checkers is None:
            self._checkers = CheckerTable(session, self.producer.transaction_hooks)
        table = self._checkers

        def register(checker: Checker) -> Checker:
            table.add(producer.known_as, checker)
            session.add_producer(producer.known_as)
            known_as = session.namespace.wrap(topic)
            session.hold(known_as)
            session.tasks.spawn(session.refresh(known_as), name=f"route of {known_as}")
            return checker

        return register

    async def request(
        self,
        topic: str | Message,
        body: bytes | None = None,
        *,
        tag: str = "",
        keys: Iterable[Key] | Key = (),
        properties: Mapping[str, str] | None = None,
        order_key: Key | None = None,
        queue: MessageQueue | QueueSelector | None = None,
        timeout_ms: int = 3_000,
    ) -> MessageView:
        """Send a message and wait for the reply of the consumer that receives it.

        Raises the errors of Producer.send, and RequestTimedOut if no reply arrives within
        ``timeout_ms``.
        """
        if self._asker is None:
            self._asker = Asker(self.session, self.producer)
        message = _message(topic, body, tag, keys, properties, 0)
        return await self._asker.ask(
            message, order_key=order_key, queue=queue, timeout_ms=timeout_ms
        )

    def replier(
        self,
        topics: str | Mapping[str, str],
        *,
        group: str,
        concurrency: int = 8,
        start: Start = "last",
    ) -> Callable[[Responder], Responder]:
        """Return a decorator that makes a function reply to the requests of a topic.

        The function runs as a member of ``group``. It receives the message and returns the body of
        the reply, or None for no reply. If it raises, the message is retried later. Raises the
        errors of :meth:`subscribe`.
        """
        subscription = self.subscribe(topics, group=group, concurrency=concurrency, start=start)
        producer = self.producer

        def register(responder: Responder) -> Responder:
            async def handle(message: ReceivedMessage) -> None:
                await respond(producer, message, responder)

            self.session.tasks.spawn(subscription.run(handle), name=f"replier {group}")
            return responder

        return register

    def _producer_of(self, group: str) -> Producer:
        """Return the producer of ``group``; an empty group means the client's own producer."""
        if group in ("", self.producer.group):
            return self.producer
        known = self._producers.get(group)
        if known is None:
            known = self._producers[group] = Producer(self.session, group)
            known.share_hooks(self.producer)
        return known

    async def queues(
        self, topic: str, purpose: Literal["read", "write"] = "read"
    ) -> tuple[MessageQueue, ...]:
        """Return the queues of a topic that may be read or written. Raises RouteNotFound."""
        namespace = self.session.namespace
        known_as = namespace.wrap(topic)
        if purpose == "write":
            queues = await self.session.publish_queues(known_as)
        else:
            queues = await self.session.subscribe_queues(known_as)
        return tuple(map(namespace.unwrap_queue, queues))


def _message(
    topic: str | Message,
    body: bytes | None,
    tag: str,
    keys: Iterable[Key] | Key,
    properties: Mapping[str, str] | None,
    delay_level: int,
) -> Message:
    if type(topic) is not str:
        if isinstance(topic, Message):
            return topic
        check_topic_type(topic)
    if type(body) is not bytes:
        body = checked_body(body)
    texts = key_texts(keys) if keys != () else ()
    return Message(topic, body, tag, texts, delay_level=delay_level, properties=properties or {})
