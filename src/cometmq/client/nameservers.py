"""Requests to name servers: one server is used at a time, the next one after a failure."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from cometmq.core.errors import BrokerRefused, ClientError, CometError, RouteNotFound
from cometmq.net.tasks import ended
from cometmq.protocol import headers as h
from cometmq.protocol.bodies import TopicRoute
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.fastjson import parse_json

if TYPE_CHECKING:
    from cometmq.client.config import ClientConfig
    from cometmq.net.client import Remoting
    from cometmq.protocol.frame import Response

log = logging.getLogger(__name__)


class NameServers:
    """Name servers of one client; all requests go to the same server as long as it responds."""

    def __init__(self, config: ClientConfig, remoting: Remoting) -> None:
        self._config = config
        self._remoting = remoting
        self._used = 0
        self._asking: dict[str, asyncio.Future[TopicRoute | CometError]] = {}

    async def ask(
        self, code: int, header: h.Header | None, body: bytes = b"", *, timeout_ms: int = 0
    ) -> Response:
        """Send a request to the server in use, or to the next ones if it cannot be reached.

        The response may have any code. Raises the last ClientError if no server can be reached.
        """
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
                if self._used == used:  # another request may have switched already
                    self._used += 1
        assert error is not None
        raise error

    async def route(self, topic: str) -> TopicRoute | CometError:
        """Return the route of ``topic``, or the error: RouteNotFound when no name server knows it.

        Concurrent callers share one request for each topic.
        """
        while (asking := self._asking.get(topic)) is not None:
            await ended(asking)
            if not asking.cancelled():
                return asking.result()
            # The task that sent the request was cancelled: one of the waiting callers sends it
            # again.
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
                    topic,
                    response.remark or "no name server has a route for it: create the topic first",
                )
            if response.code != ResponseCode.SUCCESS:
                remark = response.remark or ""
                code = RequestCode.GET_ROUTEINFO_BY_TOPIC
                return BrokerRefused("name server", code, response.code, remark)
            return parse_json(response.body, TopicRoute)
        except CometError as error:
            return error
