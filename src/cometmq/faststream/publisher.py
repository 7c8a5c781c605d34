"""Publishers: those that ``@broker.publisher("invoices")`` declares, and those of replies."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from faststream._internal.configs import PublisherSpecificationConfig, PublisherUsecaseConfig
from faststream._internal.endpoint.publisher import PublisherSpecification, PublisherUsecase
from faststream._internal.endpoint.publisher.fake import FakePublisher
from faststream.response.publish_type import PublishType
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, PublisherSpec

from cometmq.faststream.commands import RocketMQPublishCommand, SendOptions
from cometmq.faststream.config import RocketMQBrokerConfig
from cometmq.faststream.message import REPLY_TO
from cometmq.faststream.producer import REQUEST_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Iterable

    from faststream._internal.producer import ProducerProto
    from faststream._internal.types import PublisherMiddleware
    from faststream.response.response import PublishCommand
    from typing_extensions import Unpack

    from cometmq.message.model import MessageView


@dataclass(kw_only=True)
class RocketMQPublisherConfig(PublisherUsecaseConfig):
    """Settings of a publisher: defaults for each of its messages.

    ``batch`` makes each item of a handler's result a message.
    """

    _outer_config: RocketMQBrokerConfig
    batch: bool = False
    reply_to: str = ""
    headers: dict[str, Any] = field(default_factory=dict)
    options: SendOptions = field(default_factory=SendOptions)


class RocketMQPublisherSpecification(
    PublisherSpecification[RocketMQBrokerConfig, PublisherSpecificationConfig]
):
    """The entry of a publisher in AsyncAPI, which has no bindings for RocketMQ."""

    __slots__ = ("_topic",)

    def __init__(
        self,
        outer: RocketMQBrokerConfig,
        specification: PublisherSpecificationConfig,
        topic: str,
    ) -> None:
        super().__init__(outer, specification)
        self._topic = topic

    @property
    def topic(self) -> str:
        """The topic, with the prefixes of routers."""
        return f"{self._outer_config.prefix}{self._topic}"

    @property
    def name(self) -> str:
        """The name of the channel."""
        return self.config.title_ or f"{self.topic}:Publisher"

    def get_schema(self) -> dict[str, PublisherSpec]:
        """Return the channel by its name."""
        payload = resolve_payloads(self.get_payloads(), "Publisher")
        message = Message(title=f"{self.name}:Message", payload=payload)
        return {
            self.name: PublisherSpec(
                address=self.topic,
                description=self.config.description_,
                operation=Operation(message=message, bindings=None),
                bindings=None,
            )
        }


class RocketMQPublisher(PublisherUsecase):
    """Publisher to one topic. As a decorator it sends the results of handlers."""

    _outer_config: RocketMQBrokerConfig
    specification: RocketMQPublisherSpecification  # type: ignore[assignment]

    def __init__(
        self, config: RocketMQPublisherConfig, specification: PublisherSpecification[Any, Any]
    ) -> None:
        super().__init__(config, specification)
        self._config = config

    @property
    def topic(self) -> str:
        """The topic, with the prefixes of routers."""
        return self.specification.topic

    @property
    def batch(self) -> bool:
        """True if each item of a handler's result is a message of its own."""
        return self._config.batch

    async def publish(
        self,
        message: Any = None,
        /,
        *messages: Any,
        topic: str = "",
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        **options: Unpack[SendOptions],
    ) -> Any:
        """Send a message and return its SendResult; a batch publisher may send several.

        Options and headers that are not given are the publisher's. Raises as
        ``cometmq.Client.send``, and TypeError for several messages without ``batch``.
        """
        if messages and not self.batch:
            raise TypeError(
                f"the publisher of {self.topic!r} sends one message at a time: declare it with "
                "batch=True, or name the arguments after the message"
            )
        cmd = RocketMQPublishCommand(
            message,
            *messages,
            destination=topic,
            headers=headers,
            correlation_id=correlation_id or self._outer_config.id_generator(),
            reply_to=reply_to,
            _publish_type=PublishType.PUBLISH,
            **options,
        )
        return await self._send(cmd, ())

    async def _publish(
        self, cmd: PublishCommand, *, _extra_middlewares: Iterable[PublisherMiddleware]
    ) -> None:
        own = RocketMQPublishCommand.from_cmd(cmd, batch=self.batch)
        if self.batch and not own.batch_bodies:
            return  # an empty result has no message to send
        await self._send(own, _extra_middlewares)

    async def _send(
        self, cmd: RocketMQPublishCommand, middlewares: Iterable[PublisherMiddleware]
    ) -> Any:
        cmd.destination = cmd.destination or self.topic
        cmd.reply_to = cmd.reply_to or self._config.reply_to
        cmd = cmd.with_defaults(self._config.options, self._config.headers)
        send = self._basic_publish_batch if self.batch else self._basic_publish
        return await send(cmd, producer=self._outer_config.producer, _extra_middlewares=middlewares)

    async def request(
        self,
        message: Any = None,
        /,
        *,
        topic: str = "",
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        timeout: float = REQUEST_TIMEOUT_S,
        **options: Unpack[SendOptions],
    ) -> Any:
        """Send a request and return its reply, a RocketMQMessage.

        Raises as ``cometmq.Client.request``, and TimeoutError if no reply arrives within
        ``timeout`` seconds.
        """
        cmd = RocketMQPublishCommand(
            message,
            destination=topic or self.topic,
            headers=headers,
            correlation_id=correlation_id or self._outer_config.id_generator(),
            _publish_type=PublishType.REQUEST,
            **options,
        ).with_defaults(self._config.options, self._config.headers)
        cmd.timeout_s = timeout
        return await self._basic_request(cmd, producer=self._outer_config.producer)


class ReplyPublisher(FakePublisher):
    """Sends the result of a handler to the topic ``reply_to``, or to the client that waits for it.

    ``asked`` is the message of a request whose client waits; otherwise None.
    """

    __slots__ = ("_asked", "_topic")

    def __init__(self, producer: ProducerProto[Any], topic: str, asked: MessageView | None) -> None:
        super().__init__(producer=producer)
        self._topic = topic
        self._asked = asked

    def patch_command(self, cmd: PublishCommand) -> RocketMQPublishCommand:
        """Return the command that sends a result as the reply."""
        own = RocketMQPublishCommand.from_cmd(super().patch_command(cmd))
        own.destination = self._topic
        own.asked = self._asked
        # A handler may return the headers that it received. With REPLY_TO among them, the receiver
        # would reply to the reply, and so on without end.
        own.headers = {name: each for name, each in own.headers.items() if name != REPLY_TO}
        return own
