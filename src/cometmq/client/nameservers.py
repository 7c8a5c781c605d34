"""Name servers: one is asked at a time, the next one when it fails."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from cometmq.core.errors import BrokerRefused, ClientError, CometError, NotConnected, RouteNotFound
from cometmq.protocol import headers as h
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.fastjson import parse_json
from cometmq.protocol.route import TopicRoute

if TYPE_CHECKING:
    from cometmq.client.config import ClientConfig
    from cometmq.net.client import Remoting
    from cometmq.net.tasks import Tasks
    from cometmq.protocol.frame import Response

log = logging.getLogger(__name__)


class NameServers:
    """Those of one client; all its requests go to the same one, as long as it answers."""

    def __init__(self, config: ClientConfig, remoting: Remoting, tasks: Tasks) -> None:
        self._config = config
        self._remoting = remoting
        self._tasks = tasks
        self._used = 0
        self._asking: dict[str, asyncio.Task[TopicRoute | CometError]] = {}

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
        task = self._asking.get(topic)
        if task is None:
            task = self._tasks.spawn(self._fetch_route(topic), name=f"route of {topic}")
            self._asking[topic] = task
            task.add_done_callback(lambda _: self._asking.pop(topic, None))
        await asyncio.wait((task,))
        if task.cancelled():
            return NotConnected("name server", "this client is closed")
        return task.result()

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
