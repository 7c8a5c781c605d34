"""A FastAPI router with subscribers and publishers. It starts and stops its own broker.

The annotations in this module are for handlers on such a router, whose arguments FastAPI passes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypedDict, cast

from fastapi.datastructures import Default
from faststream._internal.fastapi.context import Context, ContextRepo, Logger
from faststream._internal.fastapi.router import StreamRouter

from cometmq.client import client
from cometmq.faststream import broker, message
from cometmq.faststream.config import NAME_SERVER
from cometmq.faststream.registration import SubscriberOptions

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fastapi.types import IncEx
    from typing_extensions import Unpack

    from cometmq.client.config import ClientConfig
    from cometmq.faststream.publisher import RocketMQPublisher
    from cometmq.faststream.registration import PublisherOptions
    from cometmq.faststream.subscriber import RocketMQSubscriber


Client = Annotated[client.Client, Context("broker._connection")]
RocketMQBroker = Annotated[broker.RocketMQBroker, Context("broker")]
RocketMQMessage = Annotated[message.RocketMQMessage, Context("message")]

__all__ = [
    "Client", "Context", "ContextRepo", "Logger", "RocketMQBroker", "RocketMQMessage",
    "RocketMQRouter",
]  # fmt: skip


class ResponseOptions(TypedDict, total=False):
    """FastAPI's keywords for the result of a handler."""

    response_model: Any
    response_model_include: IncEx | None
    response_model_exclude: IncEx | None
    response_model_by_alias: bool
    response_model_exclude_unset: bool
    response_model_exclude_defaults: bool
    response_model_exclude_none: bool


class EndpointOptions(SubscriberOptions, ResponseOptions, total=False):
    """Keywords of a subscriber on a FastAPI router."""


class RocketMQRouter(StreamRouter[Any]):
    """A FastAPI router with a broker: ``app.include_router(router)``.

    FastAPI resolves the dependencies of handlers. ``options`` are those of FastAPI's APIRouter, of
    FastStream's StreamRouter, and of RocketMQBroker without ``dependencies``, ``tags`` and
    ``apply_types``.
    """

    broker_class = broker.RocketMQBroker
    broker: broker.RocketMQBroker

    def __init__(
        self,
        name_servers: str | Iterable[str] = NAME_SERVER,
        *,
        config: ClientConfig | None = None,
        **options: Any,
    ) -> None:
        options.setdefault("context", None)
        super().__init__(name_servers, config=config, **options)

    def subscriber(  # type: ignore[override]
        self, *topics: str, group: str, **options: Unpack[EndpointOptions]
    ) -> RocketMQSubscriber:
        """Declare a subscriber as RocketMQBroker.subscriber does, with FastAPI's handlers."""
        given: dict[str, Any] = {**_RESPONSE_DEFAULTS, "dependencies": (), **options}
        return cast("RocketMQSubscriber", super().subscriber(*topics, group=group, **given))

    def publisher(  # type: ignore[override]
        self, topic: str, **options: Unpack[PublisherOptions]
    ) -> RocketMQPublisher:
        """Declare a publisher as RocketMQBroker.publisher does."""
        return self.broker.publisher(topic, **options)


_RESPONSE_DEFAULTS: dict[str, Any] = {
    "response_model": Default(None),
    "response_model_include": None,
    "response_model_exclude": None,
    "response_model_by_alias": True,
    "response_model_exclude_unset": False,
    "response_model_exclude_defaults": False,
    "response_model_exclude_none": False,
}
