"""Publish commands for the producer, and responses of handlers, which become commands.

:class:`SendOptions` are RocketMQ's keywords for a message besides its body and headers. Those of a
command override those of its publisher.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from faststream.response import Response
from faststream.response.publish_type import PublishType
from faststream.response.response import BatchPublishCommand, PublishCommand

from cometmq.client.arguments import key_texts
from cometmq.faststream.keywords import refuse_unknown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime
    from typing import Self

    from typing_extensions import Unpack

    from cometmq.client.arguments import Key
    from cometmq.message.model import MessageView


class SendOptions(TypedDict, total=False):
    """Keywords of a send, with the same meaning as those of ``cometmq.Client.send``."""

    tag: str
    keys: Iterable[Key] | Key
    order_key: Key | None
    delay_level: int
    delay_s: float
    deliver_at: datetime | None


def checked_options(what: str, given: SendOptions) -> SendOptions:
    """Return the keywords of a send, with ``keys`` as a tuple of texts.

    An iterator of keys is thus read only once, even for several messages. Raises TypeError for
    other keywords, naming ``what``, and WrongArgument for values that cannot be keys.
    """
    refuse_unknown(what, given, SendOptions)
    return {**given, "keys": key_texts(given["keys"])} if "keys" in given else given


class RocketMQResponse(Response):
    """Result of a handler with headers and send options: ``return RocketMQResponse(body,
    tag="paid", order_key=order.id)``.
    """

    def __init__(
        self,
        body: Any,
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        **options: Unpack[SendOptions],
    ) -> None:
        super().__init__(body=body, headers=headers, correlation_id=correlation_id)
        self.options = checked_options("RocketMQResponse()", options)

    def as_publish_command(self) -> RocketMQPublishCommand:
        """Return the command that publishes the response."""
        return RocketMQPublishCommand(
            self.body,
            headers=self.headers,
            correlation_id=self.correlation_id,
            _publish_type=PublishType.PUBLISH,
            **self.options,
        )


class RocketMQPublishCommand(BatchPublishCommand):
    """Command to publish one message, or several of one topic with equal headers and options.

    ``timeout_s`` is the time that a request waits for its reply. ``asked`` is set for a reply: it
    is the message of the request.
    """

    def __init__(
        self,
        body: Any,
        /,
        *bodies: Any,
        destination: str = "",
        correlation_id: str | None = None,
        headers: dict[str, Any] | None = None,
        reply_to: str = "",
        _publish_type: PublishType,
        **options: Unpack[SendOptions],
    ) -> None:
        super().__init__(
            body,
            *bodies,
            destination=destination,
            correlation_id=correlation_id,
            headers=headers,
            reply_to=reply_to,
            _publish_type=_publish_type,
        )
        self.options = checked_options("publish()", options)
        self.timeout_s = 0.0
        self.asked: MessageView | None = None
        self._is_empty = False

    @property
    def batch_bodies(self) -> tuple[Any, ...]:
        """The bodies of a batch. A body may be None, which is a message with an empty body."""
        return () if self._is_empty else (self.body, *self.extra_bodies)

    @batch_bodies.setter
    def batch_bodies(self, value: Sequence[Any]) -> None:
        self._is_empty = not value
        self.body, self.extra_bodies = (value[0], tuple(value[1:])) if value else (None, ())

    @classmethod
    def from_cmd(cls, cmd: PublishCommand | Self, *, batch: bool = False) -> Self:
        """Convert a command of any broker to this class.

        With ``batch`` each item of its body becomes a message; None becomes no message.
        """
        if isinstance(cmd, cls) and not batch:
            return cmd
        options = cmd.options if isinstance(cmd, RocketMQPublishCommand) else SendOptions()
        made = cls(
            cmd.body,
            destination=cmd.destination,
            correlation_id=cmd.correlation_id,
            headers=cmd.headers,
            reply_to=cmd.reply_to,
            _publish_type=cmd.publish_type,
            **options,
        )
        if batch:
            made.batch_bodies = items_of(cmd.body)
        return made

    def with_defaults(self, options: SendOptions, headers: Mapping[str, Any]) -> Self:
        """Add the options and headers that the command does not have, and return the command."""
        self.options = {**options, **self.options}
        self.add_headers(dict(headers), override=False)
        return self


def items_of(result: Any) -> tuple[Any, ...]:
    """Return the bodies of the messages for a handler's result.

    None has no body, a list or tuple has its items, and any other result is one body.
    """
    if result is None:
        return ()
    if isinstance(result, Sequence) and not isinstance(result, str | bytes | bytearray):
        return tuple(result)
    return (result,)
