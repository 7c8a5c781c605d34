"""Prometheus metrics of handlers and publishers, with FastStream's names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from faststream._internal.constants import EMPTY
from faststream.prometheus import MetricsSettingsProvider
from faststream.prometheus.middleware import PrometheusMiddleware

from cometmq.faststream.commands import RocketMQPublishCommand
from cometmq.faststream.message import messages_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from faststream.message import StreamMessage
    from faststream.prometheus import ConsumeAttrs
    from prometheus_client import CollectorRegistry


class RocketMQMetricsSettings(MetricsSettingsProvider[Any, RocketMQPublishCommand]):
    """Labels and sizes of messages; each message of a batch is counted."""

    __slots__ = ("messaging_system",)

    def __init__(self) -> None:
        self.messaging_system = "rocketmq"

    def get_consume_attrs_from_message(self, msg: StreamMessage[Any]) -> ConsumeAttrs:
        """Return the topic of one call of a handler, and bytes and number of its messages."""
        messages = messages_of(msg.raw_message)
        return {
            "destination_name": messages[0].topic,
            "message_size": sum(len(each.body) for each in messages),
            "messages_count": len(messages),
        }

    def get_publish_destination_name_from_cmd(self, cmd: RocketMQPublishCommand) -> str:
        """Return the topic of a publish command."""
        return cmd.destination


class RocketMQPrometheusMiddleware(PrometheusMiddleware[Any, RocketMQPublishCommand]):
    """``RocketMQBroker(middlewares=[RocketMQPrometheusMiddleware(registry=registry)])``."""

    def __init__(
        self,
        *,
        registry: CollectorRegistry,
        app_name: str = EMPTY,
        metrics_prefix: str = "faststream",
        received_messages_size_buckets: Sequence[float] | None = None,
        custom_labels: dict[str, str | Callable[[Any], str]] | None = None,
    ) -> None:
        super().__init__(
            settings_provider_factory=lambda _: RocketMQMetricsSettings(),
            registry=registry,
            app_name=app_name,
            metrics_prefix=metrics_prefix,
            received_messages_size_buckets=received_messages_size_buckets,
            custom_labels=custom_labels,
        )
