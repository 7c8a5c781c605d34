"""Which broker is where, and which topics it holds (upstream: RouteInfoManager.java).

Pure tables: time is an argument, and a connection is only a token that is compared. All tables of
a broker change in one step, so no answer ever shows a broker in one of them and not in another.
Answers are encoded once and kept until something that they show changes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cometmq.protocol.bodies import (
    ClusterBroker,
    ClusterInfo,
    DataVersion,
    RegisterBrokerBody,
    TopicConfigTable,
    TopicList,
)
from cometmq.protocol.fastjson import encode_json
from cometmq.protocol.route import (
    MASTER_ID,
    PERM_READ,
    PERM_WRITE,
    BrokerData,
    QueueData,
    TopicRoute,
)

if TYPE_CHECKING:
    from cometmq.protocol.headers import BrokerIdentity, RegisterBroker

#: A broker that was silent for so long is gone (upstream: BROKER_CHANNEL_EXPIRED_TIME).
BROKER_EXPIRY_MS: Final = 120_000


@dataclass(frozen=True, slots=True)
class Registered:
    """What a registering slave learns about its master; both are None for a master."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


@dataclass(slots=True)
class _LiveBroker:
    """One address that registered: when it was last heard, and over which connection."""

    last_seen_ms: int
    data_version: DataVersion
    channel: object
    ha_server_addr: str


@dataclass(slots=True)
class _Broker:
    """One broker name: its cluster and the address of each of its ids."""

    cluster: str
    addresses: dict[int, str] = field(default_factory=dict)


class RouteTable:
    """Brokers, clusters and topics of one name server.

    ``expiry_ms`` is how long a silent broker stays.
    """

    def __init__(self, *, expiry_ms: int = BROKER_EXPIRY_MS) -> None:
        self._expiry_ms = expiry_ms
        self._live: dict[str, _LiveBroker] = {}
        self._brokers: dict[str, _Broker] = {}
        self._clusters: dict[str, set[str]] = {}
        self._topics: dict[str, dict[str, QueueData]] = {}
        self._filter_servers: dict[str, list[str]] = {}
        self._encoded: dict[str, bytes] = {}

    # ------------------------------------------------------------------------------ brokers come

    def register(
        self, broker: RegisterBroker, body: RegisterBrokerBody, channel: object, now_ms: int
    ) -> Registered:
        """A broker says that it lives, where, and which topics it has.

        Topics count only from the master, and only when its data version differs from the last.
        Those that a registration lacks stay: a Java broker registers a created topic alone.
        """
        name, address = broker.broker_name, broker.broker_addr
        self._clusters.setdefault(broker.cluster_name, set()).add(name)
        known = self._brokers.setdefault(name, _Broker(broker.cluster_name))
        is_new = self._place(known, broker.broker_id, address)
        version = body.topic_config_serialize_wrapper.data_version
        if broker.broker_id == MASTER_ID and (is_new or self.is_changed(address, version)):
            self._accept_topics(name, body.topic_config_serialize_wrapper)
        self._live[address] = _LiveBroker(now_ms, version, channel, broker.ha_server_addr)
        self._set_filter_servers(address, body.filter_server_list)
        return self._master_of(known) if broker.broker_id != MASTER_ID else Registered()

    def is_changed(self, address: str, version: DataVersion) -> bool:
        """True when the topics known of ``address`` are not those of ``version``."""
        live = self._live.get(address)
        return live is None or live.data_version != version

    def heartbeat(self, address: str, version: DataVersion, now_ms: int) -> bool:
        """A broker asks whether it must register again; when not, this counts as a sign of life."""
        live = self._live.get(address)
        if live is None or live.data_version != version:
            return True
        live.last_seen_ms = now_ms
        return False

    def data_version(self, address: str) -> DataVersion | None:
        """The version last registered by ``address``."""
        live = self._live.get(address)
        return None if live is None else live.data_version

    def _place(self, broker: _Broker, broker_id: int, address: str) -> bool:
        """Put an address under its id; True when that id had none."""
        previous = broker.addresses.get(broker_id)
        if previous != address:
            # A slave that became master keeps its address and must not stay under its old id.
            for other in [key for key, value in broker.addresses.items() if value == address]:
                del broker.addresses[other]
            broker.addresses[broker_id] = address
            self._encoded.clear()
        return previous is None

    def _accept_topics(self, name: str, table: TopicConfigTable) -> None:
        for topic, config in table.topic_config_table.items():
            data = QueueData(
                name,
                config.read_queue_nums,
                config.write_queue_nums,
                config.perm,
                config.topic_sys_flag,
            )
            queues = self._topics.setdefault(topic, {})
            if queues.get(name) != data:
                queues[name] = data
                self._encoded.pop(topic, None)

    def _set_filter_servers(self, address: str, servers: list[str]) -> None:
        if self._filter_servers.get(address, []) != servers:
            if servers:
                self._filter_servers[address] = servers
            else:
                del self._filter_servers[address]
            self._encoded.clear()

    def _master_of(self, broker: _Broker) -> Registered:
        address = broker.addresses.get(MASTER_ID)
        master = None if address is None else self._live.get(address)
        return Registered() if master is None else Registered(master.ha_server_addr, address)

    # -------------------------------------------------------------------------------- brokers go

    def unregister(self, broker: BrokerIdentity) -> None:
        """A broker says that it stops. An id that another address took over meanwhile stays."""
        known = self._brokers.get(broker.broker_name)
        if known is not None and known.addresses.get(broker.broker_id) == broker.broker_addr:
            self._forget(broker.broker_addr)

    def channel_closed(self, channel: object) -> list[str]:
        """A connection ended: the brokers that registered over it last are gone. Their addresses
        are given back."""
        gone = [address for address, live in self._live.items() if live.channel is channel]
        for address in gone:
            self._forget(address)
        return gone

    def expire(self, now_ms: int) -> list[tuple[str, object]]:
        """Remove every broker that was silent too long; gives their addresses and connections,
        which are to be closed."""
        limit_ms = now_ms - self._expiry_ms
        due = [
            (address, live.channel)
            for address, live in self._live.items()
            if live.last_seen_ms < limit_ms
        ]
        for address, _ in due:
            self._forget(address)
        return due

    def _forget(self, address: str) -> None:
        """Take an address out of every table; with its last address a broker name goes too."""
        self._live.pop(address, None)
        self._filter_servers.pop(address, None)
        self._encoded.clear()
        for name, broker in list(self._brokers.items()):
            for broker_id in [key for key, at in broker.addresses.items() if at == address]:
                del broker.addresses[broker_id]
            if not broker.addresses:
                self._forget_name(name)

    def _forget_name(self, name: str) -> None:
        del self._brokers[name]
        for cluster, names in list(self._clusters.items()):
            names.discard(name)
            if not names:
                del self._clusters[cluster]
        for topic in self._topics_of({name}):
            self._drop_queues(topic, name)

    def _drop_queues(self, topic: str, name: str) -> None:
        queues = self._topics[topic]
        del queues[name]
        if not queues:
            del self._topics[topic]
        self._encoded.pop(topic, None)

    # ------------------------------------------------------------------------------------ topics

    def pick(self, topic: str, order_topic_conf: str | None = None) -> bytes | None:
        """The route of a topic as JSON, None when no broker holds it."""
        if order_topic_conf is not None:
            return self._encode(topic, order_topic_conf)
        encoded = self._encoded.get(topic)
        if encoded is None:
            encoded = self._encode(topic, None)
            if encoded is not None:
                self._encoded[topic] = encoded
        return encoded

    def route(self, topic: str, order_topic_conf: str | None = None) -> TopicRoute | None:
        """The route of a topic, None when no broker holds it."""
        queues = self._topics.get(topic)
        if queues is None:
            return None
        names = sorted(queues)
        filter_servers = {
            address: self._filter_servers[address]
            for name in names
            for address in self._brokers[name].addresses.values()
            if address in self._filter_servers
        }
        return TopicRoute(
            [self._broker_data(name) for name in names],
            [queues[name] for name in names],
            filter_servers,
            order_topic_conf,
        )

    def _encode(self, topic: str, order_topic_conf: str | None) -> bytes | None:
        route = self.route(topic, order_topic_conf)
        return None if route is None else encode_json(route)

    def _broker_data(self, name: str) -> BrokerData:
        broker = self._brokers[name]
        addresses = {str(broker_id): at for broker_id, at in sorted(broker.addresses.items())}
        return BrokerData(name, addresses, broker.cluster)

    def wipe_write_perm(self, name: str) -> int:
        """Take the write permission from every topic of a broker; gives their number.

        It lasts until the broker registers a new data version (upstream does the same).
        """
        return self._set_perm(name, keep=~PERM_WRITE, add=0)

    def add_write_perm(self, name: str) -> int:
        """Make every topic of a broker readable and writable; gives their number."""
        return self._set_perm(name, keep=0, add=PERM_READ | PERM_WRITE)

    def _set_perm(self, name: str, *, keep: int, add: int) -> int:
        topics = self._topics_of({name})
        for topic in topics:
            old = self._topics[topic][name]
            self._topics[topic][name] = QueueData(
                name,
                old.read_queue_nums,
                old.write_queue_nums,
                old.perm & keep | add,
                old.topic_sys_flag,
            )
            self._encoded.pop(topic, None)
        return len(topics)

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Forget a topic, in all clusters or in one."""
        names = set(self._topics.get(topic, {}))
        if cluster:
            names &= self._clusters.get(cluster, set())
        for name in names:
            self._drop_queues(topic, name)

    def _topics_of(self, names: set[str]) -> list[str]:
        return [topic for topic, queues in self._topics.items() if not names.isdisjoint(queues)]

    # ------------------------------------------------------------------------------------- lists

    def topics(self) -> TopicList:
        """All topics."""
        return TopicList(sorted(self._topics))

    def topics_of_cluster(self, cluster: str) -> TopicList:
        """The topics that some broker of a cluster holds."""
        return TopicList(sorted(self._topics_of(self._clusters.get(cluster, set()))))

    def system_topics(self) -> TopicList:
        """The names that are system topics everywhere: clusters and broker names, and one broker's
        address, which mqadmin asks for the rest."""
        names = sorted({*self._clusters, *self._brokers})
        addresses = (at for broker in self._brokers.values() for at in broker.addresses.values())
        return TopicList(names, next(addresses, None))

    def clusters(self) -> ClusterInfo:
        """Every broker's addresses, and every cluster's brokers."""
        brokers = {}
        for name, broker in self._brokers.items():
            data = self._broker_data(name)
            brokers[name] = ClusterBroker(name, data.broker_addrs, broker.cluster)
        return ClusterInfo(
            brokers, {cluster: sorted(names) for cluster, names in self._clusters.items()}
        )
