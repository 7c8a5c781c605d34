"""FastStream's broker: it reads from and sends to a RocketMQ cluster with ``cometmq.Client``."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from fast_depends import dependency_provider
from faststream._internal.broker import BrokerUsecase
from faststream._internal.constants import EMPTY
from faststream._internal.context.repository import ContextRepo
from faststream._internal.di import FastDependsConfig
from faststream._internal.logger import DefaultLoggerStorage, make_logger_state
from faststream._internal.logger.logging import get_broker_logger
from faststream.message import gen_cor_id
from faststream.response.publish_type import PublishType
from faststream.specification.schema import BrokerSpec

from cometmq.admin.api import Admin
from cometmq.client.client import Client
from cometmq.client.config import ClientConfig
from cometmq.core.errors import CometError
from cometmq.faststream.commands import RocketMQPublishCommand
from cometmq.faststream.config import (
    NAME_SERVER,
    EndpointDefaults,
    RocketMQBrokerConfig,
    config_keywords,
)
from cometmq.faststream.keywords import refuse_unknown
from cometmq.faststream.producer import REQUEST_TIMEOUT_S, RocketMQProducer
from cometmq.faststream.registration import RocketMQRegistrator
from cometmq.faststream.security import secured
from cometmq.faststream.subscriber import RocketMQSubscriber

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from fast_depends import Provider
    from fast_depends.library.serializer import SerializerProto
    from faststream._internal.basic_types import LoggerProto
    from faststream._internal.types import IdGenerator
    from faststream.security import BaseSecurity
    from faststream.specification.schema.extra import Tag, TagDict
    from typing_extensions import Unpack

    from cometmq.faststream.commands import SendOptions

_PING_TIMEOUT_S: Final = 3.0
_MESSAGE_ID_CHARS: Final = 32


class BrokerOptions(EndpointDefaults, total=False):
    """Keywords of a broker; FastStream defines their meaning."""

    graceful_timeout: float | None
    routers: Iterable[RocketMQRegistrator]
    id_generator: IdGenerator
    security: BaseSecurity | None
    # AsyncAPI
    specification_url: str | Iterable[str] | None
    protocol: str | None
    protocol_version: str | None
    description: str | None
    tags: Iterable[Tag | TagDict]
    # logging
    logger: LoggerProto | None
    log_level: int
    # dependencies
    apply_types: bool
    serializer: SerializerProto | None
    provider: Provider | None
    context: ContextRepo | None


class RocketMQBroker(RocketMQRegistrator, BrokerUsecase[Any, Client, RocketMQBrokerConfig]):
    """FastStream's broker for RocketMQ and CometMQ.

    ``name_servers`` are the addresses that ``cometmq.Client`` takes. ``config`` replaces them and
    has all other settings of the client. ``security`` is a SASLPlaintext with an access key and its
    secret key, or a BaseSecurity for TLS alone.
    """

    def __init__(
        self,
        name_servers: str | Iterable[str] = NAME_SERVER,
        *,
        config: ClientConfig | None = None,
        **options: Unpack[BrokerOptions],
    ) -> None:
        refuse_unknown("RocketMQBroker()", options, BrokerOptions)
        security = options.get("security")
        self.client_config = secured(config or ClientConfig.recommended(name_servers), security)
        servers = self.client_config.name_servers
        shown = options.get("specification_url") or [f"rocketmq://{each}" for each in servers]
        parser, decoder = options.get("parser"), options.get("decoder")
        super().__init__(
            routers=options.get("routers", ()),
            config=RocketMQBrokerConfig(
                producer=RocketMQProducer(parser, decoder),
                logger=make_logger_state(
                    logger=options.get("logger", EMPTY),
                    log_level=options.get("log_level", logging.INFO),
                    default_storage_cls=LoggerStorage,
                ),
                fd_config=FastDependsConfig(
                    use_fastdepends=options.get("apply_types", True),
                    serializer=options.get("serializer", EMPTY),
                    provider=options.get("provider") or dependency_provider,
                    context=options.get("context") or ContextRepo(),
                ),
                graceful_timeout=options.get("graceful_timeout", 15.0),
                id_generator=options.get("id_generator", gen_cor_id),
                extra_context={"broker": self},
                **config_keywords(options),
            ),
            specification=BrokerSpec(
                description=options.get("description"),
                url=[shown] if isinstance(shown, str) else list(shown),
                protocol=options.get("protocol") or "rocketmq",
                protocol_version=options.get("protocol_version"),
                tags=options.get("tags", ()),
                security=security,
            ),
        )

    # ------------------------------------------------------------------ life

    async def _connect(self) -> Client:
        client = Client(config=self.client_config)
        await client.start()
        config = self.config.broker_config
        config.producer.connect(client, config.fd_config._serializer, self.config.broker_codec)
        return client

    async def start(self) -> None:
        """Connect, and start all subscribers.

        Raises as RocketMQSubscriber.start; the broker is then stopped first, so that none of its
        subscribers keeps running.
        """
        await self.connect()
        try:
            await super().start()
        except BaseException:
            await self.stop()
            raise

    async def stop(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> None:
        """Stop all subscribers, finish sends in progress, and close the client."""
        try:
            await super().stop(exc_type, exc_val, exc_tb)
        finally:
            client, self._connection = self._connection, None
            if client is not None:
                try:
                    await client.close()
                except asyncio.CancelledError:
                    await client.close()  # close what is left: connections and tasks
                    raise
                finally:
                    self.config.broker_config.producer.disconnect()

    async def ping(self, timeout: float | None = None) -> bool:
        """Return whether the name server knows a broker, and no subscriber has failed.

        Returns False after ``timeout`` seconds.
        """
        client = self._connection
        if client is None:
            return False
        if any(isinstance(each, RocketMQSubscriber) and each.problem for each in self.subscribers):
            return False
        try:
            async with asyncio.timeout(timeout or _PING_TIMEOUT_S):
                return bool(await Admin(client.session).brokers())
        except (CometError, TimeoutError, OSError):
            return False

    # ------------------------------------------------------------------ messages

    async def publish(
        self,
        message: Any = None,
        topic: str = "",
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        **options: Unpack[SendOptions],
    ) -> Any:
        """Send a message and return its SendResult.

        Headers become user properties; those that are None or "" are left out. A handler that
        receives the message sends its result to the topic ``reply_to``. Raises as
        ``cometmq.Client.send``.
        """
        cmd = RocketMQPublishCommand(
            message,
            destination=topic,
            headers=headers,
            correlation_id=correlation_id or self.config.id_generator(),
            reply_to=reply_to,
            _publish_type=PublishType.PUBLISH,
            **options,
        )
        return await self._basic_publish(cmd, producer=self.config.producer)

    async def publish_batch(  # type: ignore[override]
        self,
        *messages: Any,
        topic: str,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        **options: Unpack[SendOptions],
    ) -> Any:
        """Send messages in as few batches as possible, and return their SendResults in order.

        Raises as ``cometmq.Client.send_many``, and FeatureNotSupportedException for delays.
        """
        if not messages:
            return []
        cmd = RocketMQPublishCommand(
            *messages,
            destination=topic,
            headers=headers,
            correlation_id=correlation_id or self.config.id_generator(),
            reply_to=reply_to,
            _publish_type=PublishType.PUBLISH,
            **options,
        )
        return await self._basic_publish_batch(cmd, producer=self.config.producer)

    async def request(  # type: ignore[override]
        self,
        message: Any = None,
        topic: str = "",
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        timeout: float = REQUEST_TIMEOUT_S,
        **options: Unpack[SendOptions],
    ) -> Any:
        """Send a request and return its reply, a RocketMQMessage.

        This is RocketMQ's request-reply: any RocketMQ consumer may reply, and handlers reply to
        requests of any RocketMQ client. Raises as ``cometmq.Client.request``, and TimeoutError if
        no reply arrives within ``timeout`` seconds.
        """
        cmd = RocketMQPublishCommand(
            message,
            destination=topic,
            headers=headers,
            correlation_id=correlation_id or self.config.id_generator(),
            _publish_type=PublishType.REQUEST,
            **options,
        )
        cmd.timeout_s = timeout
        return await self._basic_request(cmd, producer=self.config.producer)


class LoggerStorage(DefaultLoggerStorage):
    """Creates the logger of a broker, whose lines have columns for topic and group."""

    __slots__ = ("_columns", "_level")

    def __init__(self) -> None:
        super().__init__()
        self._level = logging.INFO
        self._columns = {"topic": 4, "group": 4}

    def set_level(self, level: int) -> None:
        """Log lines of this level and above."""
        self._level = level

    def register_subscriber(self, params: dict[str, Any]) -> None:
        """Widen the columns for the topic and group of a subscriber."""
        for name, width in self._columns.items():
            self._columns[name] = max(width, len(params.get(name, "")))

    def get_logger(self, *, context: ContextRepo) -> LoggerProto:
        """Return the broker's logger; create it on the first call."""
        known = self._get_logger_ref()
        if known is not None:
            return known
        columns = "".join(f"%({name})-{width}s | " for name, width in self._columns.items())
        made = get_broker_logger(
            name="rocketmq",
            default_context=dict.fromkeys(self._columns, ""),
            message_id_ln=_MESSAGE_ID_CHARS,
            fmt=f"%(asctime)s %(levelname)-8s - {columns}"
            f"%(message_id)-{_MESSAGE_ID_CHARS}s - %(message)s",
            context=context,
            log_level=self._level,
        )
        self._logger_ref.add(made)
        return made
