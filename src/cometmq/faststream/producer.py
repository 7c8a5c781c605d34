"""The producer of a broker: it turns publish commands into messages and sends them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import BatchCodecProto, DefaultCodec
from faststream._internal.producer import ProducerProto
from faststream.exceptions import FeatureNotSupportedException, IncorrectState

from cometmq.client.arguments import delay_of, epoch_ms, key_texts
from cometmq.client.requestreply import reply
from cometmq.client.serializers import CONTENT_TYPE
from cometmq.core.errors import RequestTimedOut
from cometmq.faststream.commands import RocketMQPublishCommand
from cometmq.faststream.message import CORRELATION_ID, REPLY_TO, decode, parse_message
from cometmq.message.model import Message

if TYPE_CHECKING:
    from fast_depends.library.serializer import SerializerProto
    from faststream._internal.parser import CodecProto
    from faststream._internal.types import CustomCallable

    from cometmq.client.client import Client
    from cometmq.faststream.commands import SendOptions
    from cometmq.message.model import MessageView

#: Default time that a request waits for its reply, as in RocketMQ's client.
REQUEST_TIMEOUT_S: Final = 3.0
_DELAYS: Final = ("delay_level", "delay_s", "deliver_at")


class RocketMQProducer(ProducerProto[RocketMQPublishCommand]):
    """Sends through the client that :meth:`connect` received.

    ``parser`` and ``decoder`` are those of the broker; they are used for replies.
    """

    def __init__(self, parser: CustomCallable | None, decoder: CustomCallable | None) -> None:
        self._parser = ParserComposition(parser, parse_message)
        self._decoder = ParserComposition(decoder, decode)
        self.codec: CodecProto = DefaultCodec()
        self._serializer: SerializerProto | None = None
        self._client: Client | None = None

    def connect(
        self, client: Client, serializer: SerializerProto | None, codec: CodecProto | None
    ) -> None:
        """Send through an open client from now on."""
        self._client = client
        self._serializer = serializer
        self.use(codec)

    def use(self, codec: CodecProto | None) -> None:
        """Encode bodies, and decode those of replies, with ``codec``; None is the default codec."""
        self.codec = codec or DefaultCodec()
        if codec is not None:
            self._decoder = ParserComposition(None, codec.decode)

    def disconnect(self) -> None:
        """Forget the client."""
        self._client = None

    @property
    def client(self) -> Client:
        """The client. Raises IncorrectState if the broker is not connected."""
        if self._client is None:
            raise IncorrectState("the broker is not connected: use `async with broker`, or start()")
        return self._client

    async def publish(self, cmd: RocketMQPublishCommand) -> Any:
        """Send a message, and return its SendResult.

        If the command has ``asked``, sends its body as the reply to that request and returns None.
        Raises as ``cometmq.Client.send``.
        """
        body, content_type = await self.codec.encode(cmd.body, self._serializer)
        properties = properties_of(cmd, content_type)
        if cmd.asked is not None:
            return await reply(self.client.producer, cmd.asked, body, properties)
        return await self.client.send(cmd.destination, body, properties=properties, **cmd.options)

    async def publish_batch(self, cmd: RocketMQPublishCommand) -> Any:
        """Send messages in as few batches as the limits allow; return their SendResults.

        Raises as ``cometmq.Client.send_many``, and FeatureNotSupportedException for delays.
        """
        refuse_delays(cmd.options, "a batch")
        messages = [
            message_of(cmd, body, content_type)
            for body, content_type in await encode_all(self.codec, cmd, self._serializer)
        ]
        return await self.client.send_many(messages, order_key=cmd.options.get("order_key"))

    async def request(self, cmd: RocketMQPublishCommand) -> MessageView:
        """Send a request and return its reply.

        Raises as ``cometmq.Client.request``, TimeoutError if no reply arrives in time, and
        FeatureNotSupportedException for delays.
        """
        refuse_delays(cmd.options, "a request")
        body, content_type = await self.codec.encode(cmd.body, self._serializer)
        options = cmd.options
        try:
            return await self.client.request(
                cmd.destination,
                body,
                tag=options.get("tag", ""),
                keys=options.get("keys", ()),
                order_key=options.get("order_key"),
                properties=properties_of(cmd, content_type),
                timeout_ms=max(1, math.ceil(cmd.timeout_s * 1000)),
            )
        except RequestTimedOut as error:
            raise TimeoutError(str(error)) from error


async def encode_all(
    codec: CodecProto, cmd: RocketMQPublishCommand, serializer: SerializerProto | None
) -> list[tuple[bytes, str | None]]:
    """Encode the bodies of a batch; return them with their content types."""
    if isinstance(codec, BatchCodecProto):
        return await codec.encode_batch(cmd.batch_bodies, serializer)
    return [await codec.encode(each, serializer) for each in cmd.batch_bodies]


def properties_of(cmd: RocketMQPublishCommand, content_type: str | None) -> dict[str, str]:
    """Return the user properties of a message: its headers as texts, and what it answers to.

    RocketMQ has no empty property: headers that are None or "" are left out. Bytes are left for the
    client to refuse.
    """
    found: dict[str, Any] = {}
    for name, value in cmd.headers.items():
        text = value if isinstance(value, bytes | bytearray) else header_text(value)
        if text:
            found[name] = text
    if content_type:
        found.setdefault(CONTENT_TYPE, content_type)
    if cmd.correlation_id:
        found[CORRELATION_ID] = str(cmd.correlation_id)
    if cmd.reply_to:
        found[REPLY_TO] = cmd.reply_to
    return found


def header_text(value: Any) -> str:
    """Return the value of a header as text; for a member of an Enum of texts, its value."""
    if value is None:
        return ""
    return str.__str__(value) if isinstance(value, str) else str(value)


def message_of(cmd: RocketMQPublishCommand, body: bytes, content_type: str | None) -> Message:
    """Return one message of a command."""
    options = cmd.options
    return Message(
        cmd.destination,
        body,
        options.get("tag", ""),
        key_texts(options.get("keys", ())),
        properties=properties_of(cmd, content_type),
        delay_level=options.get("delay_level", 0),
        delay_ms=delay_of(options.get("delay_s", 0)),
        deliver_at_ms=epoch_ms(options.get("deliver_at")),
    )


def refuse_delays(options: SendOptions, what: str) -> None:
    """Raise FeatureNotSupportedException if ``options`` have a delay; ``what`` cannot have one."""
    given = [name for name in _DELAYS if options.get(name)]
    if given:
        raise FeatureNotSupportedException(
            f"{what} cannot be delayed: leave out {given[0]}, or publish the messages one by one"
        )
