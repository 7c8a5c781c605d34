"""Subscribers: members of a consumer group, and the handlers that receive its messages.

A subscriber has one ``cometmq.Subscription``, from which ``max_workers`` tasks take messages or
batches. The acknowledgement policy decides how a message is settled:

| acknowledgement policy | handler returns | handler raises |
|---|---|---|
| NACK_ON_ERROR (the default) | acknowledged | retried later |
| REJECT_ON_ERROR | acknowledged | dead letter at once |
| ACK | acknowledged | acknowledged |
| ACK_FIRST | acknowledged before the handler runs | |
| MANUAL | what the handler calls: ``ack()``, ``nack()``, ``reject()`` | |

With MANUAL, a message that the handler does not settle counts against the subscriber's concurrency
(:attr:`Reading.concurrency`). It is delivered again when the subscriber stops, or after the
client's ``consume_timeout_ms``; with ``ordered`` or broadcasting only when the subscriber stops.
The other policies settle every message. If a handler was cancelled, or passed a wrong argument to
``nack``, its message is still open and is retried.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from faststream._internal.configs import SubscriberSpecificationConfig, SubscriberUsecaseConfig
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.subscriber import SubscriberSpecification, SubscriberUsecase
from faststream._internal.endpoint.utils import process_msg
from faststream.exceptions import IncorrectState, SetupError
from faststream.middlewares import AckPolicy
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, SubscriberSpec

from cometmq.client.consumer.received import ReceivedMessage
from cometmq.core.errors import AlreadyInUse
from cometmq.faststream.config import RocketMQBrokerConfig
from cometmq.faststream.message import (
    RocketMQMessage,
    decode,
    decode_batch,
    messages_of,
    parse_batch,
    parse_message,
)
from cometmq.faststream.publisher import ReplyPublisher
from cometmq.message import properties as props
from cometmq.net.tasks import Tasks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from faststream._internal.endpoint.subscriber.call_item import CallsCollection
    from faststream.message import StreamMessage
    from faststream.response import Response

    from cometmq.client.consumer.options import Mode, Sql, Start
    from cometmq.client.consumer.pushconsumer import Subscription

#: Default number of messages of a batch, and default time that a batch waits for more messages.
MAX_RECORDS: Final = 32
BATCH_TIMEOUT_S: Final = 0.2
#: The worker task of the running handler; tasks that the handler starts inherit it.
_worker: ContextVar[asyncio.Task[Any] | None] = ContextVar("worker", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a subscriber reads, and how: arguments of ``cometmq.Client.subscribe``, and batches.

    With ``batch``, handlers receive up to ``max_records`` messages at a time; the first message
    waits at most ``batch_timeout_s`` for the others.
    """

    topics: tuple[str, ...]
    group: str
    filter: str | Sql = "*"
    ordered: bool = False
    mode: Mode = "clustering"
    start: Start = "last"
    max_reconsume_times: int = -1
    max_workers: int = 1
    batch: bool = False
    max_records: int = MAX_RECORDS
    batch_timeout_s: float = BATCH_TIMEOUT_S

    def __post_init__(self) -> None:
        if not self.topics:
            raise SetupError("a subscriber needs a topic: @broker.subscriber('orders', group=...)")
        if callable(self.filter):
            raise SetupError(
                "filter is a tag expression, such as 'paid || sent', or a cometmq.Sql; a function "
                "goes to the handler: sub = broker.subscriber(...), then @sub(filter=...)"
            )
        if self.batch and self.ordered:
            raise SetupError(
                "batch and ordered exclude each other: an ordered queue hands out its next message "
                "when the one before is settled"
            )
        if self.max_workers < 1 or self.max_records < 1:
            raise SetupError("max_workers and max_records are 1 or more")

    @property
    def concurrency(self) -> int:
        """Largest number of messages in progress."""
        return self.max_workers * self.max_records if self.batch else self.max_workers


@dataclass(kw_only=True)
class RocketMQSubscriberConfig(SubscriberUsecaseConfig):
    """Settings of one subscriber."""

    _outer_config: RocketMQBrokerConfig
    reading: Reading

    @property
    def ack_policy(self) -> AckPolicy:
        """The subscriber's policy, or that of its router or broker."""
        for policy in (self._ack_policy, self._outer_config.ack_policy):
            if policy is not EMPTY:
                return policy
        return AckPolicy.NACK_ON_ERROR


class RocketMQSubscriberSpecification(
    SubscriberSpecification[RocketMQBrokerConfig, SubscriberSpecificationConfig]
):
    """The entry of a subscriber in AsyncAPI: a channel per topic, without RocketMQ bindings."""

    __slots__ = ("_topics",)

    def __init__(
        self,
        outer: RocketMQBrokerConfig,
        specification: SubscriberSpecificationConfig,
        calls: CallsCollection[Any],
        topics: tuple[str, ...],
    ) -> None:
        super().__init__(outer, specification, calls)
        self._topics = topics

    @property
    def channel_labels(self) -> list[str]:
        """The topics, with the prefixes of routers."""
        return [f"{self._outer_config.prefix}{topic}" for topic in self._topics]

    def get_schema(self) -> dict[str, SubscriberSpec]:
        """Return the channels by their names."""
        payload = resolve_payloads(self.get_payloads())
        labels = self.channel_labels
        found = {}
        for topic in labels:
            name = self._channel_key(topic, split=len(labels) > 1)
            message = Message(title=f"{name}:Message", payload=payload)
            found[name] = SubscriberSpec(
                address=topic,
                description=self.description,
                operation=Operation(message=message, bindings=None),
                bindings=None,
            )
        return found


class RocketMQSubscriber(SubscriberUsecase[Any]):
    """Member of a consumer group that passes messages to the handlers that it decorates.

    Without handlers, call :meth:`get_one` or iterate over the subscriber.
    """

    _outer_config: RocketMQBrokerConfig

    def __init__(
        self,
        config: RocketMQSubscriberConfig,
        specification: SubscriberSpecification[Any, Any],
        calls: CallsCollection[Any],
    ) -> None:
        config.parser = parse_batch if config.reading.batch else parse_message
        config.decoder = decode_batch if config.reading.batch else decode
        super().__init__(config, specification, calls)
        self.reading = config.reading
        self._config = config
        #: Error that ended reading; "" otherwise.
        self.problem = ""
        self._subscription: Subscription | None = None
        self._tasks = Tasks()
        self._latest: RocketMQMessage | None = None
        self._stopped = False

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics, with the prefixes of routers."""
        return tuple(self.specification.channel_labels)

    @property
    def replies(self) -> bool:
        """True if results of handlers are sent as replies; never for batches."""
        return not self._no_reply and not self.reading.batch

    # ------------------------------------------------------------------ life

    async def start(self) -> None:
        """Join the group, and begin to call handlers.

        Raises SetupError if another subscriber of this broker has the same group, and as
        ``cometmq.Subscription.start``.
        """
        await super().start()
        if self._subscription is None or self._subscription.closed:
            self._subscription = await self._join()
        self._post_start()
        if self.calls and not len(self._tasks):
            name = f"subscriber {self.reading.group}"
            for number in range(self.reading.max_workers):
                self._tasks.spawn(self._work(self._subscription), name=f"{name} {number}")

    def _post_start(self) -> None:
        super()._post_start()
        self._stopped = False

    def _build_fastdepends_model(self) -> None:
        # FastStream reads the policy when a subscriber is declared. On a router that is before the
        # broker includes it, so the broker's policy is not known yet. Read it again here.
        self.ack_policy = self._config.ack_policy
        self._SubscriberUsecase__auto_ack_disabled = self._config.auto_ack_disabled
        super()._build_fastdepends_model()

    async def _join(self) -> Subscription:
        reading = self.reading
        joined = self._outer_config.producer.client.subscribe(
            dict.fromkeys(self.topics, reading.filter),
            group=reading.group,
            concurrency=reading.concurrency,
            ordered=reading.ordered,
            mode=reading.mode,
            start=reading.start,
            max_reconsume_times=reading.max_reconsume_times,
        )
        try:
            await joined.start()
        except BaseException as error:
            await joined.close(0)  # otherwise a cancelled start could still join later
            if not isinstance(error, AlreadyInUse):
                raise
            raise shared_group(reading.group) from error
        self.problem = ""
        return joined

    async def stop(self) -> None:
        """Take no more messages, wait for those in progress, and leave the group.

        Waits for the broker's ``graceful_timeout`` at most. A handler that calls it waits for the
        whole time, because its own message is in progress, and then continues.
        """
        self.running = False
        self._stopped = True
        subscription, self._subscription = self._subscription, None
        tasks, self._tasks = self._tasks, Tasks()
        self._latest = None
        try:
            if subscription is not None:
                await subscription.close(int((self._outer_config.graceful_timeout or 0) * 1000))
        finally:
            # Not super().stop(), which would wait for the handlers once more.
            await tasks.close(spared=_worker.get())

    async def _work(self, subscription: Subscription) -> None:
        """Pass messages to the handlers until the subscription is closed or fails."""
        _worker.set(asyncio.current_task())
        try:
            while (taken := await self._take(subscription)) is not None:
                await self.consume(taken)
        except Exception as error:
            if not self.problem:
                self.problem = f"group {self.reading.group}: {error!r}"
                self._log(logging.CRITICAL, f"Nothing is read any more: {error}", exc_info=error)

    async def _take(
        self, subscription: Subscription, timeout_s: float | None = None
    ) -> ReceivedMessage | tuple[ReceivedMessage, ...] | None:
        """Return the next message or batch; None once the subscription is closed.

        Raises TimeoutError if no message arrives within ``timeout_s``. A batch may take longer
        after its first message.
        """
        ends = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s
        while True:
            async with asyncio.timeout_at(ends):
                first = await anext(subscription, None)
            if first is None or not self.reading.batch:
                return first
            batch = await self._collect(subscription, first)
            if batch or batch is None:
                return batch

    async def _collect(
        self, subscription: Subscription, first: ReceivedMessage
    ) -> tuple[ReceivedMessage, ...] | None:
        """Return a batch that begins with ``first``; None once the subscription is closed.

        Messages whose queue moved to another member in the meantime are left out, so the batch may
        be empty.
        """
        batch = [first]
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.reading.batch_timeout_s):
                    while len(batch) < self.reading.max_records:
                        another = await anext(subscription, None)
                        if another is None:
                            return None  # what was collected is delivered again
                        batch.append(another)
        except BaseException:
            for each in batch:
                each.give_back()
            raise
        for each in batch:
            if each.is_given_up:
                each.give_back()
        return tuple(each for each in batch if not each.is_given_up)

    # ------------------------------------------------------------------ messages

    async def consume(self, msg: Any) -> Any:
        """Process a message or a batch; failures are logged."""
        try:
            return await super().consume(msg)
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            return None  # the handler awaited a cancelled task: the worker itself goes on

    async def process_message(self, msg: Any) -> Response:
        """Process a message or a batch, with the client's consume hooks around it."""
        received = received_of(msg)
        async with AsyncExitStack() as stack:
            for each in received:
                await stack.enter_async_context(each.processing(settle=False))
            try:
                return await super().process_message(msg)
            finally:
                if self.ack_policy is not AckPolicy.MANUAL:
                    await settle_open(received)

    async def get_one(self, *, timeout: float = 5.0) -> RocketMQMessage | None:
        """Return the next message or batch; None if there is none within ``timeout`` seconds.

        A call acknowledges the previous message, unless it is settled already or the policy is
        MANUAL; call ``ack()`` on the last one. If a parser or a middleware raises, the message is
        settled as the policy says for a handler that raises, and the error is raised here. Raises
        AssertionError if there are handlers, as FastStream's subscribers do, and IncorrectState
        after :meth:`stop`.
        """
        if self._stopped:
            raise IncorrectState(f"the subscriber of group {self.reading.group!r} is stopped")
        try:
            return await self._next(timeout)
        except TimeoutError:
            return None

    async def __aiter__(self) -> AsyncIterator[RocketMQMessage]:
        """Iterate over messages or batches until :meth:`stop`; acknowledges as get_one does."""
        while (message := await self._next(None)) is not None:
            yield message

    async def _next(self, timeout_s: float | None) -> RocketMQMessage | None:
        assert not self.calls, "a subscriber with handlers passes its messages to them only"
        latest, self._latest = self._latest, None
        if latest is not None and self.ack_policy is not AckPolicy.MANUAL:
            await latest.ack()
        if self._stopped:
            return None
        if self._subscription is None:
            self._subscription = await self._join()
        raw = await self._take(self._subscription, timeout_s)
        if raw is None:
            return None
        try:
            found = await self._parse(raw)
        except Exception:
            await self._refuse(raw)
            raise
        except BaseException:
            await settle_open(received_of(raw))
            raise
        if self.ack_policy is AckPolicy.ACK_FIRST:
            await found.ack()
        self._latest = found
        return found

    async def _parse(self, raw: ReceivedMessage | tuple[ReceivedMessage, ...]) -> RocketMQMessage:
        context = self._outer_config.context
        parser, decoder = self._get_parser_and_decoder()
        found = await process_msg(
            raw,
            middlewares=(each(raw, context=context) for each in self._broker_middlewares),
            parser=parser,
            decoder=decoder,
        )
        assert isinstance(found, RocketMQMessage)
        return found

    async def _refuse(self, raw: ReceivedMessage | tuple[ReceivedMessage, ...]) -> None:
        """Settle a message that cannot be parsed like one whose handler raises."""
        for each in received_of(raw):
            if self.ack_policy in (AckPolicy.ACK, AckPolicy.ACK_FIRST):
                each.ack()
            else:
                await each.retry(-1 if self.ack_policy is AckPolicy.REJECT_ON_ERROR else 0)

    def _make_response_publisher(self, message: StreamMessage[Any]) -> Iterable[ReplyPublisher]:
        asked = message.raw_message
        waits = not isinstance(asked, tuple) and props.REPLY_TO_CLIENT in asked.properties
        producer = self._outer_config.producer
        return (ReplyPublisher(producer, message.reply_to, asked if waits else None),)

    def get_log_context(self, message: StreamMessage[Any] | None) -> dict[str, str]:
        """Return the values of a message for log lines."""
        return {
            "topic": ",".join(self.topics),
            "group": self.reading.group,
            "message_id": getattr(message, "message_id", ""),
        }


def shared_group(group: str) -> SetupError:
    """Return the error for two subscribers of a broker with the same group."""
    return SetupError(
        f"two subscribers have the group {group!r}: members of a group read the same topics, so "
        "give each subscriber a group of its own, or all topics to one"
    )


def received_of(raw: Any) -> list[ReceivedMessage]:
    """Return the messages, of a single one or of a batch, that can be settled."""
    return [each for each in messages_of(raw) if isinstance(each, ReceivedMessage)]


async def settle_open(messages: Iterable[ReceivedMessage]) -> None:
    """Request redelivery of the messages that are not settled.

    They are delivered again at once if this task is being cancelled, otherwise later. Settled
    messages are not affected.
    """
    for each in messages:
        if is_cancelled():
            each.give_back()
        else:
            await each.retry()


def is_cancelled() -> bool:
    """Return whether this task is being cancelled; handlers too can raise CancelledError."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
