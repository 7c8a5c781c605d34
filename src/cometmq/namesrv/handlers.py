"""The requests that a name server answers (upstream: DefaultRequestProcessor.java).

Each handler reads its typed header, asks the tables and shapes the answer; what changes the
key-value file waits for the disk and therefore runs in the task lane.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from cometmq.core.errors import BadRequest
from cometmq.net.router import Reply
from cometmq.protocol import headers as h
from cometmq.protocol.bodies import DataVersion, KvTable
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.fastjson import REQUEST_DIALECT_MAX_BYTES, encode_json, parse_json
from cometmq.protocol.fields import truth
from cometmq.protocol.registerbody import decode_register_body

if TYPE_CHECKING:
    from cometmq.core.clock import Clock
    from cometmq.namesrv.kv import KvTables
    from cometmq.namesrv.routes import RouteTable
    from cometmq.net.peer import Peer
    from cometmq.net.router import Handler
    from cometmq.protocol.frame import Request

log = logging.getLogger(__name__)

#: Where the queues of ordered topics are kept (upstream: NamesrvUtil.java).
ORDER_TOPIC_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"


class RouteHandlers:
    """Brokers registering, clients asking for routes, and the administration of both."""

    def __init__(
        self, routes: RouteTable, kv: KvTables, *, clock: Clock, order_message_enable: bool
    ) -> None:
        self._routes = routes
        self._kv = kv
        self._clock = clock
        self._order_message_enable = order_message_enable
        self._watched: set[Peer] = set()

    def handlers(self) -> dict[int, Handler]:
        """By request code."""
        return {
            RequestCode.REGISTER_BROKER: self.register,
            RequestCode.UNREGISTER_BROKER: self.unregister,
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self.route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self.clusters,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self.wipe_write_perm,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self.add_write_perm,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self.topics,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self.delete_topic,
            RequestCode.GET_TOPICS_BY_CLUSTER: self.topics_of_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self.system_topics,
            RequestCode.QUERY_DATA_VERSION: self.query_data_version,
        }

    def register(self, peer: Peer, request: Request[h.RegisterBroker]) -> Reply:
        """103: a broker's address and topics; answered with the order configuration."""
        broker = request.header
        body = decode_register_body(
            request.body, compressed=truth(broker.compressed), crc32=broker.body_crc32
        )
        is_new = self._routes.data_version(broker.broker_addr) is None
        result = self._routes.register(broker, body, peer, self._clock.monotonic_ms())
        if is_new:
            log.info(
                "broker registered name=%s id=%d address=%s cluster=%s peer=%s",
                broker.broker_name,
                broker.broker_id,
                broker.broker_addr,
                broker.cluster_name,
                peer.address,
            )
        if peer not in self._watched:
            self._watched.add(peer)
            peer.on_close.append(self._closed)
        order = self._kv.table(ORDER_TOPIC_NAMESPACE)
        return Reply(
            header=h.RegisterBrokerResponse(result.ha_server_addr, result.master_addr),
            body=encode_json(KvTable(order)) if order else b"",
        )

    def unregister(self, peer: Peer, request: Request[h.BrokerIdentity]) -> Reply:
        """104: a broker stops."""
        broker = request.header
        self._routes.unregister(broker)
        log.info(
            "broker unregistered name=%s id=%d address=%s peer=%s",
            broker.broker_name,
            broker.broker_id,
            broker.broker_addr,
            peer.address,
        )
        return Reply()

    def query_data_version(self, peer: Peer, request: Request[h.BrokerIdentity]) -> Reply:
        """322: whether a broker must register again. When not, this is its heartbeat."""
        address = request.header.broker_addr
        version = parse_json(request.body, DataVersion, dialect_max_bytes=REQUEST_DIALECT_MAX_BYTES)
        known = self._routes.data_version(address)
        changed = self._routes.heartbeat(address, version, self._clock.monotonic_ms())
        return Reply(
            header=h.QueryDataVersionResponse(changed),
            body=b"" if known is None else encode_json(known),
        )

    def route(self, peer: Peer, request: Request[h.Topic]) -> Reply:
        """105: where a topic is."""
        topic = request.header.topic
        conf = self._kv.get(ORDER_TOPIC_NAMESPACE, topic) if self._order_message_enable else None
        body = self._routes.pick(topic, conf)
        if body is None:
            raise BadRequest(
                ResponseCode.TOPIC_NOT_EXIST,
                f"No topic route info in name server for the topic: {topic}; create it, or send to "
                "a broker that creates topics (autoCreateTopicEnable)",
            )
        return Reply(body=body)

    def clusters(self, peer: Peer, request: Request[h.NoFields]) -> Reply:
        """106: all brokers and clusters."""
        return Reply(body=encode_json(self._routes.clusters()))

    def wipe_write_perm(self, peer: Peer, request: Request[h.BrokerName]) -> Reply:
        """205: producers stop sending to a broker."""
        name = request.header.broker_name
        count = self._routes.wipe_write_perm(name)
        log.info("write permission wiped broker=%s topics=%d peer=%s", name, count, peer.address)
        return Reply(header=h.WipeWritePermResponse(count))

    def add_write_perm(self, peer: Peer, request: Request[h.BrokerName]) -> Reply:
        """327: producers may send to a broker again."""
        name = request.header.broker_name
        count = self._routes.add_write_perm(name)
        log.info("write permission added broker=%s topics=%d peer=%s", name, count, peer.address)
        return Reply(header=h.AddWritePermResponse(count))

    def topics(self, peer: Peer, request: Request[h.NoFields]) -> Reply:
        """206: all topics."""
        return Reply(body=encode_json(self._routes.topics()))

    def delete_topic(self, peer: Peer, request: Request[h.DeleteTopicInNamesrv]) -> Reply:
        """216: forget a topic, in one cluster when it is named."""
        header = request.header
        self._routes.delete_topic(header.topic, header.cluster_name)
        log.info(
            "topic deleted topic=%s cluster=%s peer=%s",
            header.topic,
            header.cluster_name or "all",
            peer.address,
        )
        return Reply()

    def topics_of_cluster(self, peer: Peer, request: Request[h.Cluster]) -> Reply:
        """224: the topics of one cluster."""
        return Reply(body=encode_json(self._routes.topics_of_cluster(request.header.cluster)))

    def system_topics(self, peer: Peer, request: Request[h.NoFields]) -> Reply:
        """304: topics that clusters and brokers are named after."""
        return Reply(body=encode_json(self._routes.system_topics()))

    def _closed(self, peer: Peer) -> None:
        self._watched.discard(peer)
        for address in self._routes.channel_closed(peer):
            log.warning("broker gone address=%s reason=connection closed", address)


class KvHandlers:
    """The key-value tables."""

    def __init__(self, kv: KvTables) -> None:
        self._kv = kv

    def handlers(self) -> dict[int, Handler]:
        """By request code."""
        return {
            RequestCode.PUT_KV_CONFIG: self.put,
            RequestCode.GET_KV_CONFIG: self.get,
            RequestCode.DELETE_KV_CONFIG: self.delete,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self.table,
        }

    async def put(self, peer: Peer, request: Request[h.PutKvConfig]) -> Reply:
        """100: set a key; answered when it is on disk."""
        header = request.header
        await self._kv.put(header.namespace, header.key, header.value)
        log.info("key set namespace=%s key=%s peer=%s", header.namespace, header.key, peer.address)
        return Reply()

    def get(self, peer: Peer, request: Request[h.KvKey]) -> Reply:
        """101: one value."""
        header = request.header
        value = self._kv.get(header.namespace, header.key)
        if value is None:
            raise _nothing(f"Namespace: {header.namespace} Key: {header.key}")
        return Reply(header=h.KvValueResponse(value))

    async def delete(self, peer: Peer, request: Request[h.KvKey]) -> Reply:
        """102: remove a key; answered when it is off the disk."""
        header = request.header
        await self._kv.delete(header.namespace, header.key)
        log.info(
            "key deleted namespace=%s key=%s peer=%s", header.namespace, header.key, peer.address
        )
        return Reply()

    def table(self, peer: Peer, request: Request[Any]) -> Reply:
        """219: all keys of a namespace."""
        table = self._kv.table(request.header.namespace)
        if table is None:
            raise _nothing(f"Namespace: {request.header.namespace}")
        return Reply(body=encode_json(KvTable(table)))


def _nothing(what: str) -> BadRequest:
    return BadRequest(ResponseCode.QUERY_NOT_FOUND, f"No config item, {what}")
