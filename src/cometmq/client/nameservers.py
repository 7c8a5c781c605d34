"""Name servers: one is asked at a time, the next one when it fails."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from cometmq.core.errors import BrokerRefused, ClientError, CometError, RouteNotFound
from cometmq.net.tasks import ended
from cometmq.protocol import headers as h
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.fastjson import parse_json
from cometmq.protocol.route import TopicRoute

if TYPE_CHECKING:
    from cometmq.client.config import ClientConfig
    from cometmq.net.client import Remoting
    from cometmq.protocol.frame import Response

log = logging.getLogger(__name__)


class NameServers:
    """Those of one client; all its requests go to the same one, as long as it answers."""

    def __init__(self, config: ClientConfig, remoting: Remoting) -> None:
        self._config = config
        self._remoting = remoting
        self._used = 0
        self._asking: dict[str, asyncio.Future[TopicRoute | CometError]] = {}

    async def ask(
        self, code: int, header: h.Header | None, body: bytes = b"", *, timeout_ms: int = 0
    ) -> Response:
        """Ask the one in use, or the next ones when it cannot be reached; the response has
        any code. Raises the last ClientError when none can."""
        servers = self._config.name_servers
        error: ClientError | None = None
        for _ in servers:
            used = self._used
            address = servers[used % len(servers)]
            try:
                return await self._remoting.request(
                    address,
                    code,
                    header,
                    body,
                    timeout_ms=timeout_ms or self._config.request_timeout_ms,
                )
            except ClientError as failure:
                log.warning("name_server_failed address=%s error=%s", address, failure)
                error = failure
                if self._used == used:  # others may have moved on already
                    self._used += 1
        assert error is not None
        raise error

    async def route(self, topic: str) -> TopicRoute | CometError:
        """The route of ``topic``, or why there is none: RouteNotFound when nobody knows it. One
        question at a time for each topic, however many wait for it."""
        while (asking := self._asking.get(topic)) is not None:
            await ended(asking)
            if not asking.cancelled():
                return asking.result()
            # Who asked gave up: one of those who wait asks in its place.
        asking = self._asking[topic] = asyncio.get_running_loop().create_future()
        try:
            result = await self._fetch_route(topic)
        except BaseException:
            asking.cancel()
            raise
        finally:
            del self._asking[topic]
        asking.set_result(result)
        return result

    async def _fetch_route(self, topic: str) -> TopicRoute | CometError:
        try:
            response = await self.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, h.Topic(topic=topic))
            if response.code == ResponseCode.TOPIC_NOT_EXIST:
                return RouteNotFound(
                    topic, response.remark or "no name server knows it: create it first"
                )
            if response.code != ResponseCode.SUCCESS:
                remark = response.remark or ""
                code = RequestCode.GET_ROUTEINFO_BY_TOPIC
                return BrokerRefused("name server", code, response.code, remark)
            return parse_json(response.body, TopicRoute)
        except CometError as error:
            return error
