"""Settings that a broker and its routers share with their subscribers and publishers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypedDict

from faststream._internal.configs import BrokerConfig
from faststream._internal.constants import EMPTY

from cometmq.faststream.producer import RocketMQProducer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fast_depends.dependencies import Dependant
    from faststream._internal.parser import CodecProto
    from faststream._internal.types import BrokerMiddleware, CustomCallable
    from faststream.middlewares import AckPolicy


#: Default address of the name server.
NAME_SERVER: Final = "127.0.0.1:9876"


class EndpointDefaults(TypedDict, total=False):
    """Keywords that brokers and routers share; FastStream defines their meaning."""

    dependencies: Sequence[Dependant]
    middlewares: Sequence[BrokerMiddleware[Any, Any]]
    parser: CustomCallable | None
    decoder: CustomCallable | None
    codec: CodecProto | None
    ack_policy: AckPolicy


@dataclass(kw_only=True)
class RocketMQBrokerConfig(BrokerConfig):
    """FastStream's configuration of a broker or router, with RocketMQ's producer."""

    producer: RocketMQProducer = field(default_factory=lambda: RocketMQProducer(None, None))


def config_keywords(given: EndpointDefaults) -> dict[str, Any]:
    """Return the fields of a RocketMQBrokerConfig for these keywords."""
    return {
        "broker_dependencies": given.get("dependencies", ()),
        "broker_middlewares": given.get("middlewares", ()),
        "broker_parser": given.get("parser"),
        "broker_decoder": given.get("decoder"),
        "broker_codec": given.get("codec"),
        "ack_policy": given.get("ack_policy", EMPTY),
    }
