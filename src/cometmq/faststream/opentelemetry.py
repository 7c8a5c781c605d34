"""OpenTelemetry traces and metrics of handlers and publishers, with FastStream's names.

The trace context is sent in message headers, that is in user properties. ``cometmq.otel`` uses the
same properties: use only one of the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from faststream.opentelemetry import TelemetrySettingsProvider
from faststream.opentelemetry.consts import MESSAGING_DESTINATION_PUBLISH_NAME
from faststream.opentelemetry.middleware import TelemetryMiddleware

from cometmq.faststream.commands import RocketMQPublishCommand
from cometmq.faststream.message import messages_of

if TYPE_CHECKING:
    from faststream.message import StreamMessage
    from opentelemetry.metrics import Meter, MeterProvider
    from opentelemetry.trace import TracerProvider

_SYSTEM: Final = "messaging.system"
_DESTINATION: Final = "messaging.destination.name"
_CONVERSATION: Final = "messaging.message.conversation_id"
_MESSAGE_ID: Final = "messaging.message.id"
_BYTES: Final = "messaging.message.payload_size_bytes"
_COUNT: Final = "messaging.batch.message_count"


class RocketMQTelemetrySettings(TelemetrySettingsProvider[Any, RocketMQPublishCommand]):
    """Attributes of spans, as in OpenTelemetry's conventions for messaging."""

    __slots__ = ("messaging_system",)

    def __init__(self) -> None:
        self.messaging_system = "rocketmq"

    def get_consume_attrs_from_message(self, msg: StreamMessage[Any]) -> dict[str, Any]:
        """Return the attributes of one call of a handler."""
        messages = messages_of(msg.raw_message)
        found = {
            _SYSTEM: self.messaging_system,
            _MESSAGE_ID: msg.message_id,
            _CONVERSATION: msg.correlation_id,
            _BYTES: sum(len(each.body) for each in messages),
            MESSAGING_DESTINATION_PUBLISH_NAME: messages[0].topic,
        }
        is_batch = isinstance(msg.raw_message, tuple)
        return found | {_COUNT: len(messages)} if is_batch else found

    def get_consume_destination_name(self, msg: StreamMessage[Any]) -> str:
        """Return the topic of a message, or of the first of a batch."""
        return messages_of(msg.raw_message)[0].topic

    def get_publish_attrs_from_cmd(self, cmd: RocketMQPublishCommand) -> dict[str, Any]:
        """Return the attributes of a publish command."""
        return {
            _SYSTEM: self.messaging_system,
            _DESTINATION: cmd.destination,
            _CONVERSATION: cmd.correlation_id,
        }

    def get_publish_destination_name(self, cmd: RocketMQPublishCommand) -> str:
        """Return the topic of a publish command."""
        return cmd.destination


class RocketMQTelemetryMiddleware(TelemetryMiddleware[RocketMQPublishCommand]):
    """Middleware for ``RocketMQBroker(middlewares=[RocketMQTelemetryMiddleware()])``.

    Providers that are not given are the global ones.
    """

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        meter: Meter | None = None,
        include_messages_counters: bool = True,
    ) -> None:
        super().__init__(
            settings_provider_factory=lambda _: RocketMQTelemetrySettings(),
            tracer_provider=tracer_provider,
            meter_provider=meter_provider,
            meter=meter,
            include_messages_counters=include_messages_counters,
        )
