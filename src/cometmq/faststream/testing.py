"""An in-memory broker for unit tests: messages go to handlers directly, without a cluster.

In ``async with TestRocketMQBroker(broker) as tested:``, ``tested.publish`` returns after all
handlers have returned, and raises their errors. Filters by tag and SQL92 work. Delays, retries and
sharing among processes need a cluster: use ``with_real=True``, or cometmq's pytest fixture.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, overload

from faststream._internal.testing.broker import EnterType, TestBroker
from faststream.exceptions import SubscriberNotFound

from cometmq.client.consumer.options import Sql, parse_filter
from cometmq.client.limits import check_message, check_target
from cometmq.client.sendrequests import SendResult, SendStatus
from cometmq.core.clock import SystemClock
from cometmq.faststream.broker import RocketMQBroker
from cometmq.faststream.commands import RocketMQPublishCommand
from cometmq.faststream.producer import RocketMQProducer, encode_all, message_of, refuse_delays
from cometmq.faststream.subscriber import RocketMQSubscriber, shared_group
from cometmq.filter.sql92 import SqlFilter
from cometmq.message import properties as props
from cometmq.message.model import MessageView, StoredMessage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator, Iterator, Sequence

    from cometmq.client.consumer.received import ReceivedMessage
    from cometmq.faststream.publisher import RocketMQPublisher


class TestRocketMQBroker(TestBroker[RocketMQBroker, EnterType], broker=RocketMQBroker):
    """Runs brokers in memory, or on their cluster if ``with_real``; see the module.

    ``async with`` returns the broker, or a list of several.
    """

    @overload
    def __init__(
        self: TestRocketMQBroker[RocketMQBroker],
        broker: RocketMQBroker,
        /,
        *,
        with_real: bool = False,
        connect_only: bool | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: TestRocketMQBroker[list[RocketMQBroker]],
        *brokers: RocketMQBroker,
        with_real: bool = False,
        connect_only: bool | None = None,
    ) -> None: ...
    def __init__(
        self, *brokers: RocketMQBroker, with_real: bool = False, connect_only: bool | None = None
    ) -> None:
        super().__init__(*brokers, with_real=with_real, connect_only=connect_only)

    def create_publisher_fake_subscriber(
        self, broker: RocketMQBroker, publisher: RocketMQPublisher
    ) -> tuple[RocketMQSubscriber, bool]:
        """Return a subscriber that receives all messages of ``publisher``.

        The second value is True if the application declared the subscriber.
        """
        for known in subscribers_of(self.brokers):
            # A subscriber with a filter would miss some of the publisher's messages.
            if publisher.topic in known.topics and known.reading.filter == "*":
                return known, True
        group = f"test-{uuid.uuid4().hex}"
        made = broker.subscriber(
            publisher.topic,
            group=group,
            start="first",
            batch=publisher.batch,
            persistent=False,
        )
        return made, False

    def _fake_start(self, broker: RocketMQBroker, *args: Any, **keywords: Any) -> None:
        for group, count in Counter(
            each.reading.group for each in subscribers_of([broker])
        ).items():
            if count > 1:
                raise shared_group(group)
        super()._fake_start(broker, *args, **keywords)

    @contextmanager
    def _patch_producer(self, broker: RocketMQBroker) -> Generator[None, None, None]:
        config = broker.config.broker_config
        real, config.producer = config.producer, MemoryProducer(broker, self.brokers)
        try:
            yield
        finally:
            config.producer.client.end()
            config.producer = real

    async def _fake_connect(  # type: ignore[override]
        self, broker: RocketMQBroker, *_args: Any, **_keywords: Any
    ) -> MemoryClient:
        return MemoryClient()


def subscribers_of(brokers: Sequence[RocketMQBroker]) -> Iterator[RocketMQSubscriber]:
    """Return the subscribers of all brokers under test."""
    for broker in brokers:
        for each in broker.subscribers:
            assert isinstance(each, RocketMQSubscriber)
            yield each


class MemoryProducer(RocketMQProducer):
    """Passes messages to the subscribers of all brokers under test, one after the other."""

    def __init__(self, broker: RocketMQBroker, brokers: Sequence[RocketMQBroker]) -> None:
        super().__init__(broker._parser, broker._decoder)
        self.use(broker.config.broker_codec)
        self._serializer = broker.config.fd_config._serializer
        self._brokers = brokers
        self._max_message_bytes = broker.client_config.max_message_bytes
        self._ends: Counter[str] = Counter()
        self._memory = MemoryClient()

    @property
    def client(self) -> Any:
        """A client whose subscriptions have no messages."""
        return self._memory

    async def publish(self, cmd: RocketMQPublishCommand) -> SendResult:
        """Call all handlers of a message. Raises their errors."""
        encoded = await self.codec.encode(cmd.body, self._serializer)
        return (await self._deliver(cmd, [encoded]))[0]

    async def publish_batch(self, cmd: RocketMQPublishCommand) -> list[SendResult]:
        """Call all handlers of the messages. Raises their errors."""
        refuse_delays(cmd.options, "a batch")
        return await self._deliver(cmd, await encode_all(self.codec, cmd, self._serializer))

    async def request(self, cmd: RocketMQPublishCommand) -> MessageView:
        """Call the handlers of a request, and return the first reply.

        Raises the errors of handlers, TimeoutError if there is no reply, and SubscriberNotFound.
        """
        refuse_delays(cmd.options, "a request")
        asked = self._stored(cmd, *await self.codec.encode(cmd.body, self._serializer))
        readers = [each for each in subscribers_of(self._brokers) if reads(each, asked)]
        if not readers:
            raise SubscriberNotFound(f"no subscriber of topic {cmd.destination!r}")
        replies = []
        async with asyncio.timeout(cmd.timeout_s):
            for subscriber in readers:
                result = await subscriber.process_message(payload(subscriber, [asked]))
                if subscriber.replies:
                    replies.append(result)
        if not replies:
            raise TimeoutError(f"no replier of topic {cmd.destination!r}")
        answer = RocketMQPublishCommand.from_cmd(replies[0].as_publish_command())
        answer.destination = cmd.destination
        encoded = await self.codec.encode(answer.body, self._serializer)
        return self._stored(answer, *encoded)

    async def _deliver(
        self, cmd: RocketMQPublishCommand, encoded: Sequence[tuple[bytes, str | None]]
    ) -> list[SendResult]:
        views = [self._stored(cmd, body, content_type) for body, content_type in encoded]
        for subscriber in list(subscribers_of(self._brokers)):
            wanted = [view for view in views if reads(subscriber, view)]
            step = subscriber.reading.max_records if subscriber.reading.batch else 1
            for at in range(0, len(wanted), step):
                await subscriber.process_message(payload(subscriber, wanted[at : at + step]))
        return [
            SendResult(SendStatus.OK, view.message_id, "", view.queue, view.queue_offset)
            for view in views
        ]

    def _stored(
        self, cmd: RocketMQPublishCommand, body: bytes, content_type: str | None
    ) -> MessageView:
        """Return a message as if a broker had stored it.

        Raises the errors of the client for messages that it would not send.
        """
        sent = message_of(cmd, body, content_type)
        check_target(sent.topic)
        check_message(sent, self._max_message_bytes)
        now_ms = SystemClock().wall_ms()
        offset = self._ends[cmd.destination]
        self._ends[cmd.destination] += 1
        stored = StoredMessage(
            topic=cmd.destination,
            queue_id=0,
            queue_offset=offset,
            physical_offset=0,
            body=body,
            properties=sent.to_properties() | {props.UNIQ_KEY: uuid.uuid4().hex.upper()},
            flag=0,
            sys_flag=0,
            born_ms=now_ms,
            born_host=bytes(8),
            store_ms=now_ms,
            store_host=bytes(8),
            reconsume_times=0,
            prepared_offset=0,
            size_bytes=len(body),
            broker_name="memory",
        )
        return MessageView(stored)


def reads(subscriber: RocketMQSubscriber, message: MessageView) -> bool:
    """Return whether a subscriber reads the topic of a message and its filter matches."""
    if message.topic not in subscriber.topics:
        return False
    wanted = parse_filter(subscriber.reading.filter)
    if isinstance(wanted, Sql):
        return SqlFilter(wanted.expression).accepts(props.encode(message.properties))
    return wanted.accepts(message.tag)


def payload(subscriber: RocketMQSubscriber, messages: list[MessageView]) -> Any:
    """Return the raw message for a subscriber: a tuple for a batch, otherwise the message."""
    return tuple(messages) if subscriber.reading.batch else messages[0]


class MemoryClient:
    """Replaces the client of a broker under test."""

    def __init__(self) -> None:
        self._subscriptions: list[MemorySubscription] = []

    def subscribe(self, *_arguments: Any, **_keywords: Any) -> MemorySubscription:
        """Return a subscription that has no messages."""
        made = MemorySubscription()
        self._subscriptions.append(made)
        return made

    def end(self) -> None:
        """Close all subscriptions."""
        for each in self._subscriptions:
            each.end()


class MemorySubscription:
    """A subscription without messages; iterating over it waits until it is closed."""

    def __init__(self) -> None:
        self._closed = asyncio.Event()

    @property
    def closed(self) -> bool:
        """True after :meth:`end` or :meth:`close`."""
        return self._closed.is_set()

    async def start(self) -> None:
        """Do nothing: there is no group to join."""

    def end(self) -> None:
        """End the iterations."""
        self._closed.set()

    async def close(self, _timeout_ms: int = 0) -> int:
        """End the iterations; return 0, the number of unfinished messages."""
        self.end()
        return 0

    def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        return self

    async def __anext__(self) -> ReceivedMessage:
        await self._closed.wait()
        raise StopAsyncIteration
