"""Routes: the addresses of brokers, and their topics (upstream: RouteInfoManager.java).

The tables do no I/O: time is an argument, and a connection is only a token to compare. All tables
change in one step, so no response shows a broker in one table that is missing in another.

The JSON of a route is joined from encoded parts: one for each broker, one for each queue layout.
Many topics of many brokers have the same layout, so its text is stored once. No other cache is
needed for fast responses.

Any machine may register, so everything that a registration leaves in memory is bounded
(:class:`Limits`). A registration over a limit is refused with a remark that names the limit, and
changes nothing.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import filterfalse, islice
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from cometmq.core.errors import BadRequest
from cometmq.protocol.bodies import (
    MASTER_ID,
    PERM_READ,
    PERM_WRITE,
    BrokerData,
    ClusterBroker,
    ClusterInfo,
    DataVersion,
    QueueData,
    TopicConfig,
    TopicList,
)
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.fastjson import encode_json

if TYPE_CHECKING:
    from cometmq.protocol.headers import BrokerIdentity, RegisterBroker

#: Time of silence after which a broker is removed (upstream: BROKER_CHANNEL_EXPIRED_TIME).
BROKER_EXPIRY_MS: Final = 120_000
#: Limit of shared layouts. Topics usually have few different ones. At the limit the table of shared
#: ones is cleared, so new layouts are not shared with earlier ones.
_SHARED_LAYOUTS: Final = 10_000
#: Memory counted for a topic of a broker besides its name, and for one queue layout.
ENTRY_BYTES: Final = 64
LAYOUT_BYTES: Final = 400
#: Topics whose flags are checked without a pause.
FLAG_RUN: Final = 1_024
_INT32: Final = 1 << 31
_SHOWN: Final = 80


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a route table.

    Lengths are in characters. ``brokers`` limits the addresses, and also the names.
    ``host_brokers`` limits the addresses registered by one machine, ``connection_brokers`` those
    registered on one connection. ``name_addresses`` and ``name_clusters`` limit the addresses and
    clusters of one name, ``address_names`` the names of one address. A broker has at most
    ``topics`` topics with ``layouts`` different queue layouts. ``topic_bytes`` limits the memory
    counted for the topics of all brokers: the name and ENTRY_BYTES for each topic, and LAYOUT_BYTES
    for each layout.
    """

    name_length: int = 255
    topic_length: int = 512
    brokers: int = 4_096
    host_brokers: int = 1_024
    connection_brokers: int = 64
    name_addresses: int = 64
    address_names: int = 16
    name_clusters: int = 16
    filter_servers: int = 16
    topics: int = 250_000
    layouts: int = 1_024
    topic_bytes: int = 1 << 30


@dataclass(frozen=True, slots=True)
class Registered:
    """Response to a slave about its master. Both fields are None for a master, or without one."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class QueueLayout(Struct, frozen=True, eq=False, gc=False):
    """Queue counts and permissions of a topic on a broker.

    ``text`` is their JSON in a route, after the broker's name. The garbage collector does not track
    layouts, nor tables that hold nothing else.
    """

    perm: int
    read_queue_nums: int
    topic_sys_flag: int
    write_queue_nums: int
    text: bytes


@dataclass(frozen=True, slots=True)
class Registration:
    """Content of a broker's registration.

    ``topics`` is None if they were not read, because this version of them is known.
    """

    version: DataVersion
    topics: Mapping[str, QueueLayout] | None
    filter_servers: list[str]


@dataclass(slots=True)
class _LiveBroker:
    """One registered address.

    ``last_seen_ms`` is the time of the last heartbeat, ``channel`` the connection, ``host`` the
    machine. ``names`` are the broker names that use the address.
    """

    last_seen_ms: int
    data_version: DataVersion
    channel: object
    ha_server_addr: str
    host: str
    names: set[str]


@dataclass(slots=True)
class _Broker:
    """One broker name: its cluster, the address of each id, its topics, and its texts in routes.

    ``clusters`` are all clusters in which it registered. ``layouts`` is an upper bound of the
    number of different queue layouts of its topics; ``topic_bytes`` is the memory counted for its
    topics without layouts.
    """

    name: str
    cluster: str
    addresses: dict[int, str] = field(default_factory=dict)
    topics: dict[str, QueueLayout] = field(default_factory=dict)
    clusters: set[str] = field(default_factory=set)
    layouts: int = 0
    topic_bytes: int = 0
    text: bytes = b""
    queues_text: bytes = b""

    def data(self) -> BrokerData:
        addresses = {str(broker_id): at for broker_id, at in sorted(self.addresses.items())}
        return BrokerData(self.name, addresses, self.cluster)

    def moved(self) -> None:
        """Update the texts after a change of addresses."""
        self.text = encode_json(self.data())
        self.queues_text = b'{"brokerName":' + encode_json(self.name) + b","


class RouteTable:
    """Brokers, clusters and topics of one name server.

    ``expiry_ms`` is the time after which a silent broker is removed.
    """

    def __init__(self, *, expiry_ms: int = BROKER_EXPIRY_MS, limits: Limits | None = None) -> None:
        self._expiry_ms = expiry_ms
        self.limits = limits or Limits()
        self._live: dict[str, _LiveBroker] = {}
        self._over: dict[object, dict[str, None]] = {}  # addresses by connection
        self._hosts: Counter[str] = Counter()  # addresses by the machine that registered them
        self._topic_bytes = 0
        self._brokers: dict[str, _Broker] = {}  # in the order of their names
        self._clusters: dict[str, set[str]] = {}
        self._filter_servers: dict[str, list[str]] = {}
        self._layouts: dict[tuple[int, int, int, int], QueueLayout] = {}

    @property
    def broker_count(self) -> int:
        """Number of registered addresses."""
        return len(self._live)

    # ------------------------------------------------------------------------------ brokers come

    def layouts(self, topics: Mapping[str, TopicConfig]) -> dict[str, QueueLayout]:
        """Return the queue layout of each topic, with equal layouts and names stored once.

        Raise BadRequest for a name that is too long, and for numbers of more than 32 bits.
        """
        check_topic_names(topics, self.limits)
        layout = self._layout
        return {
            sys.intern(name): layout(
                config.perm, config.read_queue_nums, config.topic_sys_flag, config.write_queue_nums
            )
            for name, config in topics.items()
        }

    def _layout(self, perm: int, read: int, flag: int, write: int) -> QueueLayout:
        key = perm, read, flag, write
        found = self._layouts.get(key)
        if found is None:
            check_numbers(perm=perm, readQueueNums=read, topicSysFlag=flag, writeQueueNums=write)
            if len(self._layouts) >= _SHARED_LAYOUTS:
                self._layouts.clear()
            text = encode_json(QueueData("", read, write, perm, flag)).partition(b",")[2]
            found = self._layouts[key] = QueueLayout(*key, text)
        return found

    def wants_topics(self, broker: RegisterBroker, version: DataVersion) -> bool:
        """Return whether the topics of a registration must be read.

        That is so for a master that is not registered, or whose data version has changed.
        """
        if broker.broker_id != MASTER_ID:
            return False
        known = self._brokers.get(broker.broker_name)
        return (
            known is None
            or MASTER_ID not in known.addresses
            or self.data_version(broker.broker_addr) != version
        )

    def register(
        self,
        broker: RegisterBroker,
        content: Registration,
        channel: object,
        now_ms: int,
        host: str = "",
    ) -> Registered:
        """Register a broker's address and topics, over a connection from the machine ``host``.

        Topics that a registration does not list stay, because a broker may register only a topic
        that it has created. Raise BadRequest if a limit is exceeded; nothing has changed then.
        """
        name, address = broker.broker_name, broker.broker_addr
        wanted = self.wants_topics(broker, content.version)
        assert content.topics is not None or not wanted
        known = self._brokers.get(name)
        topics = content.topics if wanted and content.topics else {}
        self._check_broker(broker, content, channel, host)
        layouts, topic_bytes = self._check_topics(known, topics)
        self._clusters.setdefault(broker.cluster_name, set()).add(name)
        if known is None:
            known = _Broker(name, broker.cluster_name)
            self._brokers = dict(sorted([*self._brokers.items(), (name, known)]))
        known.clusters.add(broker.cluster_name)
        self._displace(known, broker.broker_id, address, channel)
        if topics:
            known.topics.update(topics)
            self._resize(known, topic_bytes, layouts)
        former = self._drop(address)
        names = {name} if former is None else former.names | {name}
        self._live[address] = _LiveBroker(
            now_ms, content.version, channel, broker.ha_server_addr, host, names
        )
        self._over.setdefault(channel, {})[address] = None
        self._hosts[host] += 1
        self._filter_servers.pop(address, None)
        if content.filter_servers:
            self._filter_servers[address] = content.filter_servers
        return self._master_of(known) if broker.broker_id != MASTER_ID else Registered()

    def _check_broker(
        self, broker: RegisterBroker, content: Registration, channel: object, host: str
    ) -> None:
        """Raise BadRequest if there are too many brokers, or if a text of this one is too long."""
        limits, address = self.limits, broker.broker_addr
        check_texts(broker, content.filter_servers, limits)
        over = self._over.get(channel, {})
        if address not in over:
            check_count("brokers on one connection", len(over) + 1, limits.connection_brokers)
        live = self._live.get(address)
        if live is None:
            check_count("brokers", len(self._live) + 1, limits.brokers)
        elif broker.broker_name not in live.names:
            check_count("brokers at one address", len(live.names) + 1, limits.address_names)
        if live is None or live.host != host:
            check_count("brokers of one machine", self._hosts[host] + 1, limits.host_brokers)
        known = self._brokers.get(broker.broker_name)
        if known is None:
            check_count("broker names", len(self._brokers) + 1, limits.brokers)
            return
        if broker.broker_id not in known.addresses and address not in known.addresses.values():
            count = len(known.addresses) + 1
            check_count("addresses of one broker", count, limits.name_addresses)
        clusters = len({*known.clusters, broker.cluster_name})
        check_count("clusters of one broker", clusters, limits.name_clusters)

    def _check_topics(
        self, known: _Broker | None, topics: Mapping[str, QueueLayout]
    ) -> tuple[int, int]:
        """Return the broker's number of layouts and its topic bytes after these topics are added.

        Raise BadRequest if a limit is exceeded.
        """
        limits = self.limits
        held = {} if known is None else known.topics
        layouts, size_bytes = (0, 0) if known is None else (known.layouts, known.topic_bytes)
        if not topics:
            return layouts, size_bytes
        new = list(filterfalse(held.__contains__, topics))
        check_count("topics of one broker", len(held) + len(new), limits.topics)
        layouts += len(set(topics.values()))
        if layouts > limits.layouts:
            texts = {layout.text for layout in held.values()}
            layouts = len(texts.union([layout.text for layout in topics.values()]))
            check_count("kinds of queues of one broker", layouts, limits.layouts)
        added = size_of(new, len(new))
        former = 0 if known is None else known.layouts
        total = self._topic_bytes + added + (layouts - former) * LAYOUT_BYTES
        if added:
            check_count("bytes for the topics of all brokers", total, limits.topic_bytes)
        return layouts, size_bytes + added

    def _resize(self, known: _Broker, topic_bytes: int, layouts: int) -> None:
        """Update the memory counted for a broker's topics."""
        grown = (layouts - known.layouts) * LAYOUT_BYTES
        self._topic_bytes += topic_bytes - known.topic_bytes + grown
        known.topic_bytes, known.layouts = topic_bytes, layouts

    def _displace(self, known: _Broker, broker_id: int, address: str, channel: object) -> None:
        """Store an address under its broker id, in place of the former address of that id.

        The former address is removed if it was registered over the same connection.
        """
        former = known.addresses.get(broker_id, address)
        _place(known, broker_id, address)
        live = self._live.get(former)
        if former != address and live is not None:
            live.names.discard(known.name)
        if former != address and live is not None and live.channel is channel:
            self._forget(former)

    def heartbeat(self, address: str, version: DataVersion, now_ms: int) -> bool:
        """Note a heartbeat and return False; or return True if the broker must register again."""
        live = self._live.get(address)
        if live is None or live.data_version != version:
            return True
        live.last_seen_ms = now_ms
        return False

    def data_version(self, address: str) -> DataVersion | None:
        """Return the version last registered by ``address``, or None."""
        live = self._live.get(address)
        return None if live is None else live.data_version

    def rival_of(self, broker: RegisterBroker, channel: object) -> str:
        """Return the address of another live master that has the name of a registering master.

        Return "" if there is none, or if it is the same broker (connection) with a former address.
        """
        known = self._brokers.get(broker.broker_name)
        if known is None or broker.broker_id != MASTER_ID:
            return ""
        address = known.addresses.get(MASTER_ID, broker.broker_addr)
        live = self._live.get(address)
        if address == broker.broker_addr or live is None or live.channel is channel:
            return ""
        return address

    def _master_of(self, broker: _Broker) -> Registered:
        address = broker.addresses.get(MASTER_ID)
        master = None if address is None else self._live.get(address)
        return Registered() if master is None else Registered(master.ha_server_addr, address)

    # -------------------------------------------------------------------------------- brokers go

    def unregister(self, broker: BrokerIdentity) -> bool:
        """Remove the address of a broker that stops.

        Return False and do nothing if the address is not registered under this name and id, for
        example because another address has taken over the id.
        """
        known = self._brokers.get(broker.broker_name)
        if known is None or known.addresses.get(broker.broker_id) != broker.broker_addr:
            return False
        self._forget(broker.broker_addr)
        return True

    def channel_closed(self, channel: object) -> list[str]:
        """Remove the brokers whose last registration came over a closed connection.

        Return their addresses. The time depends on the number of these brokers, not of all.
        """
        gone = list(self._over.get(channel, ()))
        for address in gone:
            self._forget(address)
        return gone

    def expire(self, now_ms: int) -> list[tuple[str, object]]:
        """Remove every broker that was silent for too long.

        Return their addresses and connections. The caller closes the connections.
        """
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
        """Remove an address from every table; a broker name is removed with its last address."""
        live = self._drop(address)
        self._filter_servers.pop(address, None)
        for name in () if live is None else live.names:
            broker = self._brokers[name]
            for broker_id in [key for key, at in broker.addresses.items() if at == address]:
                del broker.addresses[broker_id]
            if broker.addresses:
                broker.moved()
            else:
                self._forget_name(name)

    def _drop(self, address: str) -> _LiveBroker | None:
        """Remove an address from the tables of addresses, connections and machines."""
        live = self._live.pop(address, None)
        if live is not None:
            over = self._over[live.channel]
            del over[address]
            if not over:
                del self._over[live.channel]
            self._hosts[live.host] -= 1
            if not self._hosts[live.host]:
                del self._hosts[live.host]
        return live

    def _forget_name(self, name: str) -> None:
        broker = self._brokers.pop(name)
        self._resize(broker, 0, 0)
        for cluster in broker.clusters:
            names = self._clusters[cluster]
            names.discard(name)
            if not names:
                del self._clusters[cluster]

    # ------------------------------------------------------------------------------------ topics

    def pick(self, topic: str, order_topic_conf: str | None = None) -> bytes | None:
        """Return the route of a topic as JSON (``TopicRoute``); None if no broker has the topic."""
        holding: list[_Broker] = []
        queues: list[bytes] = []
        for broker in self._brokers.values():
            layout = broker.topics.get(topic)
            if layout is not None:
                holding.append(broker)
                queues.append(broker.queues_text + layout.text)
        if not holding:
            return None
        order = b"" if order_topic_conf is None else _member("orderTopicConf", order_topic_conf)
        return b"".join(
            (
                b'{"brokerDatas":[',
                b",".join([broker.text for broker in holding]),
                b'],"filterServerTable":',
                self._filter_servers_of(holding) if self._filter_servers else b"{}",
                order,
                b',"queueDatas":[',
                b",".join(queues),
                b"]}",
            )
        )

    def _filter_servers_of(self, brokers: list[_Broker]) -> bytes:
        return encode_json(
            {
                address: self._filter_servers[address]
                for broker in brokers
                for address in broker.addresses.values()
                if address in self._filter_servers
            }
        )

    def wipe_write_perm(self, name: str) -> int:
        """Remove write permission from every topic of a broker; return their number.

        The change lasts until the broker registers a new data version, as upstream.
        """
        return self._set_perm(name, keep=~PERM_WRITE, add=0)

    def add_write_perm(self, name: str) -> int:
        """Make every topic of a broker readable and writable; return their number."""
        return self._set_perm(name, keep=0, add=PERM_READ | PERM_WRITE)

    def _set_perm(self, name: str, *, keep: int, add: int) -> int:
        broker = self._brokers.get(name)
        if broker is None:
            return 0
        changed = {
            old: self._layout(
                old.perm & keep | add, old.read_queue_nums, old.topic_sys_flag, old.write_queue_nums
            )
            for old in set(broker.topics.values())
        }
        broker.topics = {topic: changed[layout] for topic, layout in broker.topics.items()}
        return len(broker.topics)

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Remove a topic, in all clusters or in one."""
        for name in self._clusters.get(cluster, ()) if cluster else self._brokers:
            broker = self._brokers[name]
            if broker.topics.pop(topic, None) is not None:
                self._resize(broker, broker.topic_bytes - size_of([topic], 1), broker.layouts)

    # ------------------------------------------------------------------------------------- lists

    def topics(self, cluster: str | None = None) -> list[Collection[str]]:
        """Return the topics of each broker, in all clusters or in one, as live views."""
        names = self._brokers if cluster is None else self._clusters.get(cluster, ())
        return [self._brokers[name].topics.keys() for name in names]

    def flagged_topics(self, is_wanted: Callable[[int], bool]) -> Iterator[list[str]]:
        """Yield the topics whose flags ``is_wanted`` accepts, in lists; a topic of several brokers
        is yielded for each."""
        for name in list(self._brokers):
            broker = self._brokers.get(name)
            left = iter(list(broker.topics.items()) if broker else ())
            while some := list(islice(left, FLAG_RUN)):
                yield [topic for topic, layout in some if is_wanted(layout.topic_sys_flag)]

    def system_topics(self) -> TopicList:
        """Return the system topics of a cluster: the names of clusters and brokers.

        The response also has the address of one broker, which mqadmin asks for further ones.
        """
        names = sorted({*self._clusters, *self._brokers})
        addresses = (at for broker in self._brokers.values() for at in broker.addresses.values())
        return TopicList(names, next(addresses, None))

    def clusters(self) -> ClusterInfo:
        """Return the addresses of every broker, and the brokers of every cluster."""
        brokers = {}
        for name, broker in self._brokers.items():
            brokers[name] = ClusterBroker(name, broker.data().broker_addrs, broker.cluster)
        return ClusterInfo(
            brokers, {cluster: sorted(names) for cluster, names in self._clusters.items()}
        )


def _place(broker: _Broker, broker_id: int, address: str) -> None:
    """Store an address under its broker id."""
    if broker.addresses.get(broker_id) == address:
        return
    # A slave that became the master keeps its address, and must not stay under its old id.
    for other in [key for key, value in broker.addresses.items() if value == address]:
        del broker.addresses[other]
    broker.addresses[broker_id] = address
    broker.moved()


def _member(name: str, value: str) -> bytes:
    return b"," + encode_json(name) + b":" + encode_json(value)


def check_texts(broker: RegisterBroker, filter_servers: list[str], limits: Limits) -> None:
    """Raise BadRequest (SYSTEM_ERROR) if a registration has a text that is too long, or too many
    filter servers."""
    most = limits.name_length
    texts = {
        "brokerName": broker.broker_name,
        "brokerAddr": broker.broker_addr,
        "clusterName": broker.cluster_name,
        "haServerAddr": broker.ha_server_addr,
    }
    for name, text in texts.items():
        if len(text) > most:
            raise refused(f"{name} {text[:_SHOWN]!r}... has {len(text)} characters", most)
    check_count("filter servers of a broker", len(filter_servers), limits.filter_servers)
    for server in filter_servers:
        if len(server) > most:
            raise refused(
                f"filter server {server[:_SHOWN]!r}... has {len(server)} characters", most
            )


def check_topic_names(names: Iterable[str], limits: Limits) -> None:
    """Raise BadRequest (SYSTEM_ERROR) if the name of a topic is too long."""
    longest = max(names, key=len, default="")
    if len(longest) > limits.topic_length:
        raise refused(
            f"topic {longest[:_SHOWN]!r}... has {len(longest)} characters", limits.topic_length
        )


def check_numbers(**numbers: int) -> None:
    """Raise BadRequest (SYSTEM_ERROR) for a number that does not fit 32 bits."""
    for name, number in numbers.items():
        if not -_INT32 <= number < _INT32:
            raise BadRequest(
                ResponseCode.SYSTEM_ERROR,
                f"registration refused: {name} of a topic is no 32-bit number",
            )


def check_count(what: str, count: int, most: int) -> None:
    """Raise BadRequest (SYSTEM_ERROR) if ``count`` is over the limit ``most``."""
    if count > most:
        raise refused(f"{count} {what}", most)


def refused(what: str, most: int) -> BadRequest:
    """Return the error that refuses a registration."""
    return BadRequest(
        ResponseCode.SYSTEM_ERROR,
        f"registration refused: {what}; this name server takes at most {most}",
    )


def size_of(names: Iterable[str], count: int) -> int:
    """Return the memory counted for ``count`` topics with these names."""
    return sum(map(len, names)) + ENTRY_BYTES * count
