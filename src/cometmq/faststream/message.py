"""Received messages as FastStream's messages, and the decoding of bodies and headers.

| attribute of the message | where it is in RocketMQ |
|---|---|
| ``headers`` | the user properties |
| ``content_type``, ``correlation_id`` | user properties ``content-type``, ``correlation_id`` |
| ``reply_to`` | user property ``reply_to``; of a request the client id of the requester |
| ``message_id`` | the unique key |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
from faststream.message import StreamMessage, decode_message

from cometmq.client.consumer.received import ReceivedMessage
from cometmq.client.serializers import CONTENT_TYPE, MESSAGEPACK
from cometmq.message import properties as props

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cometmq.message.model import MessageView

#: User properties for attributes of FastStream that RocketMQ does not have.
CORRELATION_ID: Final = "correlation_id"
REPLY_TO: Final = "reply_to"


class RocketMQMessage(StreamMessage[Any]):
    """A message, or the messages of a batch.

    ``raw_message`` is a ``cometmq.ReceivedMessage``, or a tuple of them for a batch. For the reply
    to a request it is a ``cometmq.MessageView``, which is not acknowledged.
    """

    @property
    def raw_messages(self) -> tuple[MessageView, ...]:
        """The messages of a batch, or the single message."""
        return messages_of(self.raw_message)

    async def ack(self) -> None:
        """Acknowledge the message, so that it is not delivered again."""
        if self.committed is None:
            for each in self.raw_messages:
                if isinstance(each, ReceivedMessage):
                    each.ack()
        await super().ack()

    async def nack(self, delay_level: int = 0, *, pause_ms: int = 0) -> None:
        """Request a later redelivery; the arguments are those of ``cometmq.ReceivedMessage.retry``.

        ``raise NackMessage(delay_level=3)`` in a handler passes arguments.
        """
        if self.committed is None:
            for each in self.raw_messages:
                if isinstance(each, ReceivedMessage):
                    await each.retry(delay_level, pause_ms=pause_ms)
        await super().nack()

    async def reject(self) -> None:
        """Move the message to the dead-letter queue at once."""
        if self.committed is None:
            for each in self.raw_messages:
                if isinstance(each, ReceivedMessage):
                    await each.retry(-1)
        await super().reject()


def messages_of(raw: Any) -> tuple[MessageView, ...]:
    """Return the messages of a batch; of a single message, a tuple with it."""
    return raw if isinstance(raw, tuple) else (raw,)


def headers_of(message: MessageView) -> dict[str, Any]:
    """Return the user properties of a message."""
    found = message.properties
    return {name: value for name, value in found.items() if name not in props.RESERVED}


async def parse_message(message: MessageView) -> RocketMQMessage:
    """Return FastStream's message for a received one."""
    headers = headers_of(message)
    return RocketMQMessage(
        message,
        message.body,
        headers=headers,
        reply_to=headers.get(REPLY_TO) or message.properties.get(props.REPLY_TO_CLIENT, ""),
        content_type=headers.get(CONTENT_TYPE),
        correlation_id=headers.get(CORRELATION_ID),
        message_id=message.message_id,
    )


async def parse_batch(messages: Sequence[MessageView]) -> RocketMQMessage:
    """Return one FastStream message for a batch of at least one message.

    Its body is the list of their bodies, and its headers are those of the first message.
    """
    headers = [headers_of(each) for each in messages]
    return RocketMQMessage(
        tuple(messages),
        [each.body for each in messages],
        headers=headers[0],
        batch_headers=headers,
        content_type=headers[0].get(CONTENT_TYPE),
        correlation_id=headers[0].get(CORRELATION_ID),
        message_id=messages[0].message_id,
    )


async def decode(message: StreamMessage[Any]) -> Any:
    """Decode a body by its content type: JSON, MessagePack, text or bytes."""
    kind = (message.content_type or "").partition(";")[0].strip().lower()
    if kind == MESSAGEPACK:
        return msgspec.msgpack.decode(message.body)
    return decode_message(message)


# FastStream recognises the decoder of batches by this name.
async def decode_batch(message: StreamMessage[Any]) -> list[Any]:
    """Decode the bodies of a batch."""
    return [await decode(await parse_message(each)) for each in message.raw_message]
