"""Requests of clients, administrators and brokers (upstream: DefaultRequestProcessor.java).

Each handler reads its typed header, queries the tables and builds the response. The number in its
docstring is the request code. Changes of the key-value file wait for the disk and therefore run in
tasks.

A registration may list many thousands of topics, so its body is read in slices, one body at a time.
Changes of brokers are applied in order of arrival, after a registration that is still being read. A
registration takes effect as a whole at the end; until then routes do not change.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from cometmq.core.clock import Slices
from cometmq.core.errors import BadRequest, CometError, SettingsError
from cometmq.core.settings import (
    changed_fields,
    format_properties,
    parse_properties,
    to_properties,
    to_wire_name,
)
from cometmq.namesrv.config import apply, kept_path, plan_change
from cometmq.namesrv.kv import ORDER_TOPIC_NAMESPACE
from cometmq.namesrv.routes import QueueLayout, Registration, check_count
from cometmq.protocol import headers as h
from cometmq.protocol.bodies import DataVersion, KvTable
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.fastjson import REQUEST_DIALECT_MAX_BYTES, encode_json, parse_json
from cometmq.protocol.fields import truth
from cometmq.protocol.frame import Reply
from cometmq.protocol.registerbody import RegisterBodyReader
from cometmq.store.files import Files, PosixFiles
from cometmq.store.settingsfile import keep_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from cometmq.core.clock import Clock
    from cometmq.namesrv.config import NamesrvConfig
    from cometmq.namesrv.kv import KvTables
    from cometmq.namesrv.routes import RouteTable
    from cometmq.net.peer import Peer
    from cometmq.net.router import Handler
    from cometmq.protocol.frame import Request

log = logging.getLogger(__name__)

#: Settings that decide file locations: no request may change them.
_PROTECTED: Final = frozenset(
    {"kvConfigPath", "configStorePath", "configBlackList", "rocketmqHome"}
)
#: Bits of ``topicSysFlag`` (upstream: TopicSysFlag.java).
UNIT_FLAG: Final = 1
UNIT_SUBSCRIBED_FLAG: Final = 2
#: Maximum length of a topic in an error.
TOPIC_SHOWN: Final = 512
#: Topic names that are sorted or encoded without a pause.
RUN_NAMES: Final = 1_024


class RouteHandlers:
    """Serves queries for routes, brokers and topic lists."""

    def __init__(
        self, routes: RouteTable, kv: KvTables, config: NamesrvConfig, *, clock: Clock
    ) -> None:
        self._routes = routes
        self._kv = kv
        self._clock = clock
        self._config = config
        #: Held while a list of topics is built, so that only one list at a time needs the memory.
        self._listing = asyncio.Lock()

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self.route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self.clusters,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self.topics,
            RequestCode.GET_TOPICS_BY_CLUSTER: self.topics_of_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self.system_topics,
            RequestCode.GET_UNIT_TOPIC_LIST: self.unit_topics,
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: self.unit_subscribed_topics,
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self.only_unit_subscribed_topics,
        }

    def route(self, peer: Peer, request: Request[h.Topic]) -> Reply:
        """Serve 105: return the route of a topic."""
        topic = request.header.topic
        is_ordered = self._config.order_message_enable
        conf = self._kv.get(ORDER_TOPIC_NAMESPACE, topic) if is_ordered else None
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
        return await self._names(self._routes.topics())

    async def topics_of_cluster(self, peer: Peer, request: Request[h.Cluster]) -> Reply:
        """Serve 224: return the topics of one cluster."""
        return await self._names(self._routes.topics(request.header.cluster))

    async def unit_topics(self, peer: Peer, request: Request[h.NoFields]) -> Reply:
        """Serve 311: return the topics that belong to a unit."""
        return await self._flagged(lambda flags: bool(flags & UNIT_FLAG))

    async def unit_subscribed_topics(self, peer: Peer, request: Request[h.NoFields]) -> Reply:
        """Serve 312: return the topics that a unit subscribes to."""
        return await self._flagged(lambda flags: bool(flags & UNIT_SUBSCRIBED_FLAG))

    async def only_unit_subscribed_topics(self, peer: Peer, request: Request[h.NoFields]) -> Reply:
        """Serve 313: return the topics of no unit to which a unit subscribes."""
        both = UNIT_FLAG | UNIT_SUBSCRIBED_FLAG
        return await self._flagged(lambda flags: flags & both == UNIT_SUBSCRIBED_FLAG)

    async def _flagged(self, is_wanted: Callable[[int], bool]) -> Reply:
        return await self._names(self._routes.flagged_topics(is_wanted))

    async def _names(self, found: Iterable[Collection[str]]) -> Reply:
        async with self._listing:
            return Reply(body=await self._list_of(found))

    async def _list_of(self, found: Iterable[Collection[str]]) -> bytes:
        slices = Slices(self._clock)
        names: set[str] = set()
        for some in found:
            names.update(some)
            await slices.pause()
        # Sort and encode in runs: there may be millions of names, and other requests wait.
        left, runs = iter(names), []
        while run := sorted(islice(left, RUN_NAMES)):
            runs.append(run)
            await slices.pause()
        merged, pieces = heapq.merge(*runs), []
        while some := list(islice(merged, RUN_NAMES)):
            pieces.append(encode_json(some)[1:-1])
            await slices.pause()
        return b'{"topicList":[' + b",".join(pieces) + b"]}"

    def system_topics(self, peer: Peer, request: Request[h.NoFields]) -> Reply:
        """Serve 304: return the system topics: the names of clusters and brokers."""
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
        """Serve 100: set a key; respond once it is on disk."""
        header = request.header
        await self._kv.put(header.namespace, header.key, header.value)
        log.info("key set namespace=%s key=%s peer=%s", header.namespace, header.key, peer.address)
        return Reply()

    def get(self, peer: Peer, request: Request[h.KvKey]) -> Reply:
        """Serve 101: return one value."""
        header = request.header
        value = self._kv.get(header.namespace, header.key)
        if value is None:
            raise _not_found(f"Namespace: {header.namespace} Key: {header.key}")
        return Reply(header=h.KvValueResponse(value))

    async def delete(self, peer: Peer, request: Request[h.KvKey]) -> Reply:
        """Serve 102: remove a key; respond once it is removed on disk."""
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
            raise _not_found(f"Namespace: {request.header.namespace}")
        return Reply(body=encode_json(KvTable(table)))


def _not_found(what: str) -> BadRequest:
    return BadRequest(ResponseCode.QUERY_NOT_FOUND, f"No config item, {what}")


#: Limit of all registration bodies that wait to be read: some 100 brokers with 10 000 topics each.
MAX_WAITING_BYTES: Final = 256 * 1024 * 1024


class BrokerHandlers:
    """Serves the registration of brokers, and changes of their registrations by administrators."""

    def __init__(self, routes: RouteTable, kv: KvTables, *, clock: Clock) -> None:
        self._routes = routes
        self._kv = kv
        self._clock = clock
        self._watched: set[Peer] = set()
        self._changing = asyncio.Lock()
        self._waiting_bytes = 0

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {
            RequestCode.REGISTER_BROKER: self.register,
            RequestCode.UNREGISTER_BROKER: self.unregister,
            RequestCode.QUERY_DATA_VERSION: self.query_data_version,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self.wipe_write_perm,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self.add_write_perm,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self.delete_topic,
        }

    async def register(self, peer: Peer, request: Request[h.RegisterBroker]) -> Reply:
        """Serve 103: register a broker's address and topics; return the order configuration."""
        size_bytes = len(request.body)
        if self._waiting_bytes + size_bytes > MAX_WAITING_BYTES:
            raise BadRequest(
                ResponseCode.SYSTEM_BUSY,
                f"[OVERLOAD]{self._waiting_bytes} bytes of registrations wait to be read: "
                "register again later",
            )
        self._waiting_bytes += size_bytes
        try:
            async with self._changing:
                return await self._register(peer, request)
        finally:
            self._waiting_bytes -= size_bytes

    async def _register(self, peer: Peer, request: Request[h.RegisterBroker]) -> Reply:
        broker, routes = request.header, self._routes
        content = await self._read(request)
        while content.topics is None and routes.wants_topics(broker, content.version):
            # The body was read without its topics, because they were known. During the read the
            # broker and its topics were removed, so read them now.
            content = await self._read(request)
        if peer.closed:
            # The connection was closed meanwhile: do not register the broker. No response is sent.
            return Reply()
        is_new = routes.data_version(broker.broker_addr) is None
        rival = routes.rival_of(broker, peer)
        if rival:
            log.warning(
                "master_displaced name=%s address=%s by=%s reason=%r",
                broker.broker_name, rival, broker.broker_addr,
                "both are running: stop one of them",
            )  # fmt: skip
        result = routes.register(
            broker, content, peer, self._clock.monotonic_ms(), peer.address.rpartition(":")[0]
        )
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
        return Reply(
            header=h.RegisterBrokerResponse(result.ha_server_addr, result.master_addr),
            body=self._kv.encoded(ORDER_TOPIC_NAMESPACE),
        )

    async def _read(self, request: Request[h.RegisterBroker]) -> Registration:
        broker, routes = request.header, self._routes
        slices = Slices(self._clock)
        reader = RegisterBodyReader(
            request.body, compressed=truth(broker.compressed), crc32=broker.body_crc32
        )
        topics: dict[str, QueueLayout] = {}
        for piece in reader.pieces(lambda version: routes.wants_topics(broker, version)):
            topics |= routes.layouts(piece)
            check_count("topics of one broker", len(topics), routes.limits.topics)
            await slices.pause()
        return Registration(
            reader.data_version, topics if reader.has_topics else None, reader.filter_servers
        )

    async def unregister(self, peer: Peer, request: Request[h.BrokerIdentity]) -> Reply:
        """Serve 104: remove a broker that stops."""
        broker = request.header
        async with self._changing:
            was_known = self._routes.unregister(broker)
        if was_known:
            log.info(
                "broker unregistered name=%s id=%d address=%s peer=%s",
                broker.broker_name,
                broker.broker_id,
                broker.broker_addr,
                peer.address,
            )
        return Reply()

    def query_data_version(self, peer: Peer, request: Request[h.BrokerIdentity]) -> Reply:
        """Serve 322: return whether a broker must register again.

        If not, the request counts as the broker's heartbeat.
        """
        address = request.header.broker_addr
        if len(request.body) > REQUEST_DIALECT_MAX_BYTES:
            raise BadRequest(
                ResponseCode.SYSTEM_ERROR, f"a data version has no {len(request.body)} bytes"
            )
        version = parse_json(request.body, DataVersion, dialect_max_bytes=REQUEST_DIALECT_MAX_BYTES)
        known = self._routes.data_version(address)
        changed = self._routes.heartbeat(address, version, self._clock.monotonic_ms())
        return Reply(
            header=h.QueryDataVersionResponse(changed),
            body=b"" if known is None else encode_json(known),
        )

    async def wipe_write_perm(self, peer: Peer, request: Request[h.BrokerName]) -> Reply:
        """Serve 205: remove write permission, so that producers stop sending to a broker."""
        name = request.header.broker_name
        async with self._changing:
            count = self._routes.wipe_write_perm(name)
        log.info("write permission wiped broker=%s topics=%d peer=%s", name, count, peer.address)
        return Reply(header=h.WipeWritePermResponse(count))

    async def add_write_perm(self, peer: Peer, request: Request[h.BrokerName]) -> Reply:
        """Serve 327: restore write permission, so that producers may send to a broker again."""
        name = request.header.broker_name
        async with self._changing:
            count = self._routes.add_write_perm(name)
        log.info("write permission added broker=%s topics=%d peer=%s", name, count, peer.address)
        return Reply(header=h.AddWritePermResponse(count))

    async def delete_topic(self, peer: Peer, request: Request[h.DeleteTopicInNamesrv]) -> Reply:
        """Serve 216: remove a topic from one cluster, or from all if none is named."""
        header = request.header
        async with self._changing:
            self._routes.delete_topic(header.topic, header.cluster_name)
        log.info(
            "topic deleted topic=%s cluster=%s peer=%s",
            header.topic,
            header.cluster_name or "all",
            peer.address,
        )
        return Reply()

    def _closed(self, peer: Peer) -> None:
        self._watched.discard(peer)
        for address in self._routes.channel_closed(peer):
            log.warning("broker gone address=%s reason=connection closed", address)


class ConfigHandlers:
    """Serves queries and changes of the name server's settings."""

    def __init__(self, config: NamesrvConfig, files: Files | None = None) -> None:
        self._config = config
        self._files = files or PosixFiles()
        self._changing = asyncio.Lock()

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {
            RequestCode.UPDATE_NAMESRV_CONFIG: self.update,
            RequestCode.GET_NAMESRV_CONFIG: self.show,
        }

    async def update(self, peer: Peer, request: Request[h.NoFields]) -> Reply:
        """Serve 318: change settings and save them; either all of those sent or none."""
        try:
            values = parse_properties(request.body.decode("utf-8", "replace"))
            if _PROTECTED & values.keys():
                raise BadRequest(ResponseCode.NO_PERMISSION, "Can not update config in black list.")
            async with self._changing:
                wanted = plan_change(self._config, values)
                if wanted != self._config:
                    await self._keep(wanted)
                changed = apply(self._config, wanted)
        except SettingsError as error:
            raise BadRequest(ResponseCode.SYSTEM_ERROR, str(error)) from None
        log.warning("settings changed by=%s changed=%s", peer.address, ",".join(changed) or "none")
        return Reply()

    async def _keep(self, wanted: NamesrvConfig) -> None:
        """Add the changed settings to the file of saved ones. Raise CometError if that fails."""
        texts = to_properties(wanted)
        names = [to_wire_name(name) for name in changed_fields(wanted, self._config)]
        changed = {name: texts[name] for name in names}
        path = kept_path(self._config)
        try:
            await asyncio.to_thread(keep_settings, path, changed, self._files)
        except OSError as error:
            reason = error.strerror or str(error)
            raise CometError(f"{path} cannot be written, so nothing changed: {reason}") from error

    def show(self, peer: Peer, request: Request[h.NoFields]) -> Reply:
        """Serve 319: return all settings as a property file."""
        return Reply(body=format_properties(to_properties(self._config)).encode())
