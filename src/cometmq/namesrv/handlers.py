"""Requests of clients and administrators (upstream: DefaultRequestProcessor.java).

Each handler reads its typed header, queries the tables and builds the answer. Changes of the
key-value file wait for the disk and therefore run in tasks.
"""

from __future__ import annotations

import heapq
import logging
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from cometmq.core.errors import BadRequest
from cometmq.core.slices import Slices
from cometmq.namesrv.kv import ORDER_TOPIC_NAMESPACE
from cometmq.net.reply import Reply
from cometmq.protocol import headers as h
from cometmq.protocol.bodies import KvTable
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.fastjson import encode_json

if TYPE_CHECKING:
    from cometmq.core.clock import Clock
    from cometmq.namesrv.kv import KvTables
    from cometmq.namesrv.routes import RouteTable
    from cometmq.net.peer import Peer
    from cometmq.net.router import Handler
    from cometmq.protocol.frame import Request

log = logging.getLogger(__name__)

#: Characters of a topic that an error repeats.
TOPIC_SHOWN: Final = 512
#: Names sorted or encoded in one piece.
RUN_NAMES: Final = 1_024


class RouteHandlers:
    """Serves queries for routes, brokers and topic lists."""

    def __init__(
        self, routes: RouteTable, kv: KvTables, *, clock: Clock, order_message_enable: bool
    ) -> None:
        self._routes = routes
        self._kv = kv
        self._clock = clock
        self._order_message_enable = order_message_enable

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self.route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self.clusters,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self.topics,
            RequestCode.GET_TOPICS_BY_CLUSTER: self.topics_of_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self.system_topics,
        }

    def route(self, peer: Peer, request: Request[h.Topic]) -> Reply:
        """Serve 105: return the route of a topic."""
        topic = request.header.topic
        conf = self._kv.get(ORDER_TOPIC_NAMESPACE, topic) if self._order_message_enable else None
        body = self._routes.pick(topic, conf)
        if body is None:
            raise BadRequest(
                ResponseCode.TOPIC_NOT_EXIST,
                f"No topic route info in name server for the topic: {topic[:TOPIC_SHOWN]}; create "
                "it, or send to a broker that creates topics (autoCreateTopicEnable)",
            )
        return Reply(body=body)

    def clusters(self, peer: Peer, request: Request[h.NoFields]) -> Reply:
        """Serve 106: return all brokers and clusters."""
        return Reply(body=encode_json(self._routes.clusters()))

    async def topics(self, peer: Peer, request: Request[h.NoFields]) -> Reply:
        """Serve 206: return all topics."""
        return await self._names(None)

    async def topics_of_cluster(self, peer: Peer, request: Request[h.Cluster]) -> Reply:
        """Serve 224: return the topics of one cluster."""
        return await self._names(request.header.cluster)

    async def _names(self, cluster: str | None) -> Reply:
        slices = Slices(self._clock)
        names: set[str] = set()
        for some in self._routes.topics(cluster):
            names.update(some)
            await slices.pause()
        # Sorted and encoded in runs: there may be millions of names, and other requests wait.
        left, runs = iter(names), []
        while run := sorted(islice(left, RUN_NAMES)):
            runs.append(run)
            await slices.pause()
        merged, pieces = heapq.merge(*runs), []
        while some := list(islice(merged, RUN_NAMES)):
            pieces.append(encode_json(some)[1:-1])
            await slices.pause()
        return Reply(body=b'{"topicList":[' + b",".join(pieces) + b"]}")

    def system_topics(self, peer: Peer, request: Request[h.NoFields]) -> Reply:
        """Serve 304: return the system topics, which are named after clusters and brokers."""
        return Reply(body=encode_json(self._routes.system_topics()))


class KvHandlers:
    """Serves the key-value tables."""

    def __init__(self, kv: KvTables) -> None:
        self._kv = kv

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {
            RequestCode.PUT_KV_CONFIG: self.put,
            RequestCode.GET_KV_CONFIG: self.get,
            RequestCode.DELETE_KV_CONFIG: self.delete,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self.table,
        }

    async def put(self, peer: Peer, request: Request[h.PutKvConfig]) -> Reply:
        """Serve 100: set a key; answer once it is on disk."""
        header = request.header
        await self._kv.put(header.namespace, header.key, header.value)
        log.info("key set namespace=%s key=%s peer=%s", header.namespace, header.key, peer.address)
        return Reply()

    def get(self, peer: Peer, request: Request[h.KvKey]) -> Reply:
        """Serve 101: return one value."""
        header = request.header
        value = self._kv.get(header.namespace, header.key)
        if value is None:
            raise _nothing(f"Namespace: {header.namespace} Key: {header.key}")
        return Reply(header=h.KvValueResponse(value))

    async def delete(self, peer: Peer, request: Request[h.KvKey]) -> Reply:
        """Serve 102: remove a key; answer once it is removed on disk."""
        header = request.header
        await self._kv.delete(header.namespace, header.key)
        log.info(
            "key deleted namespace=%s key=%s peer=%s", header.namespace, header.key, peer.address
        )
        return Reply()

    def table(self, peer: Peer, request: Request[Any]) -> Reply:
        """Serve 219: return all keys of a namespace."""
        table = self._kv.table(request.header.namespace)
        if table is None:
            raise _nothing(f"Namespace: {request.header.namespace}")
        return Reply(body=encode_json(KvTable(table)))


def _nothing(what: str) -> BadRequest:
    return BadRequest(ResponseCode.QUERY_NOT_FOUND, f"No config item, {what}")
