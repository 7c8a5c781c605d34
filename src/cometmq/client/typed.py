"""Typed topics of the asyncio client: values are sent, and received messages have a ``value``.

:meth:`Undecodable.settle` settles messages that cannot be decoded.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar, Unpack

import msgspec

from cometmq.client.arguments import (
    check_function,
    check_topic_type,
    delay_of,
    epoch_ms,
    key_texts,
)
from cometmq.client.consumer.pushconsumer import DRAIN_MS
from cometmq.client.serializers import Delayed
from cometmq.core.errors import SettingsError, UndecodableMessage, WrongArgument
from cometmq.message.model import Message, MessageView

if TYPE_CHECKING:
    from cometmq.client.consumer.options import Allocation, Mode, Sql, Start
    from cometmq.client.consumer.pushconsumer import Subscription
    from cometmq.client.consumer.received import Processing, ReceivedMessage
    from cometmq.client.requestreply import Responder
    from cometmq.client.sendrequests import SendResult
    from cometmq.client.serializers import (
        Content,
        PromptKeywords,
        SendKeywords,
        TypedBody,
    )
    from cometmq.client.transactions import Transaction

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")
S_co = TypeVar("S_co", covariant=True)

#: Treatment of a message that cannot be decoded. A function gets the message and the error. If it
#: returns, the message is acknowledged; if it raises, the message is retried.
OnUndecodable = (
    Literal["retry", "dead_letter"]
    | Callable[["ReceivedMessage", UndecodableMessage], Awaitable[Any] | None]
)

_DEAD_LETTER_LEVEL = -1


class TypedMessage(MessageView, Generic[T]):
    """A message of a typed subscription, with its ``value``. Settle it as a ReceivedMessage."""

    __slots__ = ("_received", "value")

    def __init__(self, received: ReceivedMessage, value: T) -> None:
        super().__init__(received.stored)
        self._received = received
        self.value = value

    def processing(self, *, reraise: bool = False) -> Processing:
        """Return a block that settles the message; see ReceivedMessage.processing."""
        return self._received.processing(reraise=reraise)

    def ack(self) -> None:
        """Acknowledge the message: it is not delivered again."""
        self._received.ack()

    async def retry(self, delay_level: int = 0, *, pause_ms: int = 0) -> None:
        """Have the message delivered again later; see ReceivedMessage.retry."""
        await self._received.retry(delay_level, pause_ms=pause_ms)


TypedHandler = Callable[[TypedMessage[T]], Awaitable[Any] | None]


class Settled(Protocol[S_co]):
    """A received message of either client."""

    def retry(self, delay_level: int = 0, *, pause_ms: int = 0) -> S_co:
        """Have the message delivered again; a negative level makes it a dead letter."""
        ...


class Undecodable:
    """Settles the messages of a subscription that cannot be decoded, and counts them.

    ``action`` is "retry", "dead_letter", or a function of the message and the error.
    """

    def __init__(self, action: str | Callable[[Any, UndecodableMessage], Any]) -> None:
        if action not in ("retry", "dead_letter") and not callable(action):
            raise SettingsError(
                "on_undecodable", f"{action!r} is neither retry, dead_letter nor a function"
            )
        self._action = action
        self.count = 0

    def settle(self, message: Settled[Any], error: UndecodableMessage) -> Awaitable[Any] | None:
        """Settle a message inside the block that processes it.

        Returns an awaitable to wait for, or None. Raises ``error`` to have the message retried.
        """
        self.count += 1
        if callable(self._action):
            found = self._action(message, error)
        elif self._action == "dead_letter":
            log.warning(
                "message_undecodable topic=%s message=%s action=dead_letter reason=%r",
                error.topic, error.message_id, error.reason,
            )  # fmt: skip
            found = message.retry(_DEAD_LETTER_LEVEL)
        else:
            raise error
        return found if inspect.isawaitable(found) else None


class TypedSubscription(Generic[T]):
    """Membership in a consumer group whose messages have a ``value``; see Subscription."""

    def __init__(
        self, subscription: Subscription, body: TypedBody[T], on_undecodable: OnUndecodable
    ) -> None:
        self._subscription = subscription
        self._body = body
        self._undecodable = Undecodable(on_undecodable)

    def __repr__(self) -> str:
        return f"<TypedSubscription {self._subscription!r}>"

    @property
    def undecodable_count(self) -> int:
        """Number of deliveries that could not be decoded."""
        return self._undecodable.count

    async def __aenter__(self) -> TypedSubscription[T]:
        await self._subscription.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def __aiter__(self) -> AsyncIterator[TypedMessage[T]]:
        return self

    async def __anext__(self) -> TypedMessage[T]:
        while True:
            received = await anext(self._subscription)
            try:
                return TypedMessage(received, self._body.decode(received))
            except UndecodableMessage as error:
                async with received.processing():
                    settled = self._undecodable.settle(received, error)
                    if settled is not None:
                        await settled

    async def start(self) -> None:
        """Join the group now; see Subscription.start."""
        await self._subscription.start()

    async def run(self, handler: TypedHandler[T], *, reraise: bool = False) -> None:
        """Call ``handler`` with every message that can be decoded; see Subscription.run.

        ``reraise`` also applies to the errors of messages that are retried because they cannot be
        decoded.
        """
        check_function("handler", handler)
        decode, undecodable = self._body.decode, self._undecodable

        def handle(received: ReceivedMessage) -> Awaitable[Any] | None:
            try:
                value = decode(received)
            except UndecodableMessage as error:
                return undecodable.settle(received, error)
            return handler(TypedMessage(received, value))

        await self._subscription.run(handle, reraise=reraise)

    async def close(self, timeout_ms: int = DRAIN_MS) -> int:
        """Leave the group; see Subscription.close."""
        return await self._subscription.close(timeout_ms)


class TopicClient(Protocol):
    """Methods of Client that a typed topic needs, with the same keywords."""

    async def send(self, *args: Any, **keywords: Any) -> SendResult:
        """Send a body."""
        ...

    async def send_oneway(self, *args: Any, **keywords: Any) -> None:
        """Send a body without waiting for a response."""
        ...

    async def send_batch(self, *args: Any, **keywords: Any) -> list[SendResult]:
        """Send messages in one request."""
        ...

    def transaction(self, *args: Any, **keywords: Any) -> Transaction:
        """Send a body in a transaction."""
        ...

    async def request(self, *args: Any, **keywords: Any) -> MessageView:
        """Send a body and wait for the reply."""
        ...

    def replier(self, *args: Any, **keywords: Any) -> Callable[[Responder], Responder]:
        """Return a decorator of a function that replies."""
        ...

    def subscribe(self, *args: Any, **keywords: Any) -> Subscription:
        """Join a group."""
        ...


class TypedTopic(Generic[T]):
    """A topic whose messages are values of one type, created by :meth:`Client.topic`."""

    def __init__(self, client: TopicClient, name: str, body: TypedBody[T]) -> None:
        check_topic_type(name)
        self.name = name
        self._client = client
        self._body = body

    def __repr__(self) -> str:
        kind = self._body.kind
        return f"<TypedTopic {self.name!r} of {getattr(kind, '__name__', kind)}>"

    def decode(self, message: MessageView) -> T:
        """Return the value of a message, for example from a Puller. Raises UndecodableMessage."""
        return self._body.decode(message)

    def message(self, value: T, **keywords: Unpack[Delayed]) -> Message:
        """Return a value as a message, for ``send_batch`` and ``send_many`` of the client.

        The message does not contain the order key: pass that to the send. Raises WrongArgument.
        """
        return typed_message(self.name, self._body, value, keywords)

    async def send(self, value: T, **keywords: Unpack[SendKeywords]) -> SendResult:
        """Send a value and wait until a broker has stored it.

        Keywords and errors are those of Client.send, and WrongArgument for a value of another type.
        """
        body = self._body.encode(value)
        return await self._client.send(self.name, body, **self._body.filled(value, keywords))

    async def send_oneway(self, value: T, **keywords: Unpack[Content]) -> None:
        """Send a value without waiting for a response; see Client.send_oneway."""
        body = self._body.encode(value)
        await self._client.send_oneway(self.name, body, **self._body.filled(value, keywords))

    async def send_batch(
        self, values: Iterable[T], *, timeout_ms: int = 0, **keywords: Unpack[Content]
    ) -> list[SendResult]:
        """Send values in one request: all are stored, or none; see Client.send_batch.

        A batch goes to one queue. Raises WrongArgument if no ``order_key`` is passed and the
        topic's ``order_key`` function returns different keys for the values.
        """
        given = list(values)
        order_key = self._body.shared_order_key(given, keywords)
        keywords.pop("order_key", None)
        messages = [self.message(value, **keywords) for value in given]
        return await self._client.send_batch(messages, order_key=order_key, timeout_ms=timeout_ms)

    def transaction(
        self, value: T, *, group: str = "", **keywords: Unpack[PromptKeywords]
    ) -> Transaction:
        """Send a value that consumers see only if a block succeeds; see Client.transaction."""
        body = self._body.encode(value)
        filled = self._body.filled(value, keywords)
        return self._client.transaction(self.name, body, group=group, **filled)

    async def request(self, value: T, reply: type[R], **keywords: Unpack[PromptKeywords]) -> R:
        """Send a value and return the reply, a value of type ``reply``; see Client.request.

        The reply is MessagePack if the topic's serializer is msgpack, otherwise JSON. Raises
        UndecodableMessage, too.
        """
        body = self._body.encode(value)
        answer = await self._client.request(self.name, body, **self._body.filled(value, keywords))
        return self._body.reply(reply).decode(answer)

    def replier(
        self, reply: type[R], *, group: str, concurrency: int = 8, start: Start = "last"
    ) -> Callable[[Callable[[T], Awaitable[R | None]]], Callable[[T], Awaitable[R | None]]]:
        """Return a decorator for a function that takes a value and returns the reply.

        The function returns None for no reply. A request that cannot be decoded is retried. See
        Client.replier.
        """
        register = self._client.replier(
            self.name, group=group, concurrency=concurrency, start=start
        )
        replies = self._body.reply(reply)

        def decorate(
            function: Callable[[T], Awaitable[R | None]],
        ) -> Callable[[T], Awaitable[R | None]]:
            async def respond(message: MessageView) -> bytes | None:
                answer = await function(self._body.decode(message))
                return None if answer is None else replies.encode(answer)

            register(respond)
            return function

        return decorate

    def subscribe(
        self,
        *,
        group: str,
        filter: str | Sql = "*",
        concurrency: int = 8,
        ordered: bool = False,
        mode: Mode = "clustering",
        start: Start = "last",
        max_reconsume_times: int = -1,
        allocation: Allocation = "average",
        on_undecodable: OnUndecodable = "retry",
    ) -> TypedSubscription[T]:
        """Consume values as a member of ``group``; other keywords are those of Client.subscribe.

        ``on_undecodable`` is the treatment of a message that is not a value of this topic: "retry",
        as if its processing had failed (with ``ordered`` it blocks its queue), "dead_letter" at
        once, or a function of the message and the error. Raises SettingsError and MessageIllegal
        for invalid options.
        """
        subscription = self._client.subscribe(
            self.name,
            group=group,
            filter=filter,
            concurrency=concurrency,
            ordered=ordered,
            mode=mode,
            start=start,
            max_reconsume_times=max_reconsume_times,
            allocation=allocation,
        )
        return TypedSubscription(subscription, self._body, on_undecodable)


def typed_message(topic: str, body: TypedBody[T], value: T, keywords: Mapping[str, Any]) -> Message:
    """Return a value as a message. Raises WrongArgument."""
    for keyword in keywords:
        if keyword not in Delayed.__annotations__:
            raise WrongArgument(keyword, "is no keyword of a typed message")
    filled = body.filled(value, keywords)
    message = Message(
        topic,
        body.encode(value),
        filled.get("tag", ""),
        key_texts(filled.get("keys", ())),
        delay_level=filled.get("delay_level", 0),
        properties=filled["properties"],
    )
    delay_s, deliver_at = filled.get("delay_s", 0), filled.get("deliver_at")
    if not delay_s and deliver_at is None:
        return message
    return msgspec.structs.replace(
        message, delay_ms=delay_of(delay_s), deliver_at_ms=epoch_ms(deliver_at)
    )
