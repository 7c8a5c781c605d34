"""Declaration of subscribers and publishers, on a broker or on a router."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict, cast

from faststream._internal.broker.registrator import Registrator
from faststream._internal.broker.router import ArgsContainer, BrokerRouter, SubscriberRoute
from faststream._internal.configs import (
    PublisherSpecificationConfig,
    SubscriberSpecificationConfig,
)
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.subscriber.call_item import CallsCollection

from cometmq.faststream.commands import SendOptions, checked_options
from cometmq.faststream.config import (
    EndpointDefaults,
    RocketMQBrokerConfig,
    config_keywords,
)
from cometmq.faststream.keywords import refuse_unknown
from cometmq.faststream.producer import refuse_delays
from cometmq.faststream.publisher import (
    RocketMQPublisher,
    RocketMQPublisherConfig,
    RocketMQPublisherSpecification,
)
from cometmq.faststream.subscriber import (
    Reading,
    RocketMQSubscriber,
    RocketMQSubscriberConfig,
    RocketMQSubscriberSpecification,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from fast_depends.dependencies import Dependant
    from faststream._internal.parser import CodecProto
    from faststream._internal.types import BrokerMiddleware, CustomCallable
    from faststream.middlewares import AckPolicy
    from typing_extensions import Unpack

    from cometmq.client.consumer.options import Mode, Sql, Start


class Described(TypedDict, total=False):
    """Keywords for the entry of an endpoint in AsyncAPI."""

    title: str | None
    description: str | None
    include_in_schema: bool
    #: False: the broker keeps only a weak reference to the endpoint. Stop a subscriber before
    #: dropping it.
    persistent: bool


class PublisherOptions(Described, SendOptions, total=False):
    """Keywords of a publisher: defaults for each message, and its entry in AsyncAPI."""

    headers: dict[str, Any]
    reply_to: str
    batch: bool
    schema: Any


class SubscriberOptions(Described, total=False):
    """Keywords of a subscriber: how it reads (:class:`Reading`), and FastStream's own."""

    filter: str | Sql
    ordered: bool
    mode: Mode
    start: Start
    max_reconsume_times: int
    max_workers: int
    batch: bool
    max_records: int
    batch_timeout_s: float
    ack_policy: AckPolicy
    no_reply: bool
    dependencies: Sequence[Dependant]
    parser: CustomCallable | None
    decoder: CustomCallable | None
    codec: CodecProto | None


_READING = frozenset(Reading.__dataclass_fields__)


class RocketMQRegistrator(Registrator[Any, RocketMQBrokerConfig]):
    """Part of brokers and routers that declares subscribers and publishers."""

    def subscriber(  # type: ignore[override]
        self, *topics: str, group: str, **options: Unpack[SubscriberOptions]
    ) -> RocketMQSubscriber:
        """Declare a subscriber of topics: a member of ``group``, and a decorator of handlers.

        Each subscriber of a broker needs its own group; all processes with that group share the
        messages. Raises SetupError for arguments that exclude each other.
        """
        refuse_unknown("subscriber()", options, SubscriberOptions)
        given: dict[str, Any] = dict(options)
        reading = Reading(
            topics=topics,
            group=group,
            **{name: given.pop(name) for name in _READING & given.keys()},
        )
        outer = cast("RocketMQBrokerConfig", self.config)
        calls = CallsCollection[Any]()
        described = SubscriberSpecificationConfig(
            title_=given.pop("title", None),
            description_=given.pop("description", None),
            include_in_schema=given.pop("include_in_schema", True),
        )
        subscriber = RocketMQSubscriber(
            RocketMQSubscriberConfig(
                _outer_config=outer,
                reading=reading,
                no_reply=given.pop("no_reply", False),
                _ack_policy=given.pop("ack_policy", EMPTY),
            ),
            RocketMQSubscriberSpecification(outer, described, calls, topics),
            calls,
        )
        super().subscriber(subscriber, persistent=given.pop("persistent", True))
        return subscriber.add_call(
            parser_=given.pop("parser", None) or self._parser,
            decoder_=given.pop("decoder", None) or self._decoder,
            codec_=given.pop("codec", None),
            dependencies_=given.pop("dependencies", ()),
        )

    def publisher(  # type: ignore[override]
        self, topic: str, **options: Unpack[PublisherOptions]
    ) -> RocketMQPublisher:
        """Declare a publisher to a topic, which is also a decorator of handlers: it sends results.

        With ``batch`` each item of a result is a message. Raises FeatureNotSupportedException for
        ``batch`` with a delay.
        """
        refuse_unknown("publisher()", options, PublisherOptions)
        given: dict[str, Any] = dict(options)
        described = PublisherSpecificationConfig(
            title_=given.pop("title", None),
            description_=given.pop("description", None),
            include_in_schema=given.pop("include_in_schema", True),
            schema_=given.pop("schema", None),
        )
        persistent = given.pop("persistent", True)
        batch, reply_to = given.pop("batch", False), given.pop("reply_to", "")
        headers = given.pop("headers", None) or {}
        sending = checked_options("publisher()", cast("SendOptions", given))
        if batch:
            refuse_delays(sending, "a batch")
        outer = cast("RocketMQBrokerConfig", self.config)
        config = RocketMQPublisherConfig(
            _outer_config=outer,
            batch=batch,
            reply_to=reply_to,
            headers=headers,
            options=sending,
        )
        publisher = RocketMQPublisher(
            config, RocketMQPublisherSpecification(outer, described, topic)
        )
        super().publisher(publisher, persistent=persistent)
        return publisher

    def include_router(
        self,
        router: RocketMQRegistrator,  # type: ignore[override]
        *,
        prefix: str = "",
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any, Any]] = (),
        include_in_schema: bool | None = None,
    ) -> None:
        """Add the subscribers and publishers of a router; their topics get the ``prefix``.

        Raises TypeError for the router of another kind of broker.
        """
        if not isinstance(router, RocketMQRegistrator):
            raise TypeError(
                f"a {type(router).__name__} belongs to another broker: use a RocketMQRouter"
            )
        super().include_router(
            router,
            prefix=prefix,
            dependencies=dependencies,
            middlewares=middlewares,
            include_in_schema=include_in_schema,
        )


class RocketMQPublisherRoute(ArgsContainer):
    """A publisher of a RocketMQRoute: the arguments of ``router.publisher``."""

    def __init__(self, topic: str, **options: Unpack[PublisherOptions]) -> None:
        super().__init__(topic, **options)


class RocketMQRoute(SubscriberRoute):
    """A handler and the arguments of ``router.subscriber``: an item of a router's ``handlers``."""

    def __init__(
        self,
        call: Callable[..., Any],
        *topics: str,
        group: str,
        publishers: Iterable[RocketMQPublisherRoute] = (),
        **options: Unpack[SubscriberOptions],
    ) -> None:
        super().__init__(call, *topics, group=group, publishers=publishers, **options)


class RocketMQRouter(RocketMQRegistrator, BrokerRouter[Any, RocketMQBrokerConfig]):
    """Subscribers and publishers for a broker to include; their topics get the ``prefix``."""

    def __init__(
        self,
        prefix: str = "",
        handlers: Iterable[RocketMQRoute] = (),
        *,
        routers: Iterable[RocketMQRegistrator] = (),
        include_in_schema: bool | None = None,
        **defaults: Unpack[EndpointDefaults],
    ) -> None:
        refuse_unknown("RocketMQRouter()", defaults, EndpointDefaults)
        super().__init__(
            handlers=handlers,
            config=RocketMQBrokerConfig(
                prefix=prefix, include_in_schema=include_in_schema, **config_keywords(defaults)
            ),
            routers=routers,
        )
