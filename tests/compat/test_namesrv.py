"""CometMQ's name server and the real one are asked the same things and answer alike.

What differs on purpose: the order of brokers, remarks, bare integer keys (docs/wire.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.topics.registration import BrokerPlace, Registration
from cometmq.core.clock import SystemClock
from cometmq.net.client import Remoting
from cometmq.net.tasks import Tasks
from cometmq.protocol import headers as h
from cometmq.protocol.bodies import DataVersion, TopicConfig, TopicConfigTable
from cometmq.protocol.codes import RequestCode as Code
from cometmq.protocol.fastjson import parse_json
from cometmq.protocol.frame import BINARY, JSON, Response
from cometmq.protocol.registerbody import body_crc32
from tests.broker.world import open_tables
from tests.compat.anchor import JavaCluster, fetch_jars
from tests.namesrv.serving import Served, name_server, until
from tests.protocol.registering import encode

TOPICS = {
    "t": TopicConfig("t", 4, 4),
    "u": TopicConfig("u", 8, 2, 4, topic_sys_flag=1, order=True),
}
BROKER = h.BrokerIdentity("broker-a", "127.0.0.1:1", "c", 0)
SLAVE = h.BrokerIdentity("broker-a", "127.0.0.1:5", "c", 1)
OTHER = h.BrokerIdentity("broker-b", "127.0.0.1:8", "d", 0)


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real name server."""
    cluster = JavaCluster(fetch_jars(), tmp_path_factory.mktemp("java"))
    cluster.namesrv_server.start()
    yield cluster.namesrv
    cluster.kill()


@pytest.fixture
async def ours(tmp_path: Path) -> AsyncIterator[Served]:
    async with name_server(tmp_path) as served:
        yield served


class Pair:
    """Asks both and compares."""

    def __init__(self, java: str, ours: str, remoting: Remoting) -> None:
        self.addresses = (java, ours)
        self._remoting = remoting

    async def ask(
        self, code: int, header: h.Header | None = None, body: bytes = b"", codec: int = JSON
    ) -> Response:
        theirs, mine = [
            await self._remoting.request(
                address, code, header, body, timeout_ms=10_000, codec=codec
            )
            for address in self.addresses
        ]
        assert alike(code, mine) == alike(code, theirs)
        return mine

    async def register(
        self,
        broker: h.BrokerIdentity,
        topics: dict[str, TopicConfig],
        *,
        version: int = 1,
        compressed: bool = False,
        filter_servers: tuple[str, ...] = (),
    ) -> None:
        table = TopicConfigTable(DataVersion(version, 5), topics)
        body = encode(table, filter_servers, compressed=compressed)
        header = h.RegisterBroker(
            *(broker.broker_name, broker.broker_addr, broker.cluster_name),
            *("127.0.0.1:9", broker.broker_id),
            compressed=compressed,
            body_crc32=body_crc32(body),
        )
        assert (await self.ask(Code.REGISTER_BROKER, header, body)).code == 0

    async def look(self, *, known: int | None = None) -> None:
        """Compare everything that can be read; ``known`` is how many of the topics have routes."""
        found = 0
        for topic in ("t", "u", "late", "nowhere"):
            for codec in (JSON, BINARY):
                answer = await self.ask(Code.GET_ROUTEINFO_BY_TOPIC, h.Topic(topic), codec=codec)
            found += answer.code == 0
        for code in (
            Code.GET_BROKER_CLUSTER_INFO,
            Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
            Code.GET_SYSTEM_TOPIC_LIST_FROM_NS,
        ):
            await self.ask(code)
        for cluster in ("c", "d", "nowhere"):
            await self.ask(Code.GET_TOPICS_BY_CLUSTER, h.Cluster(cluster))
        assert known is None or found == known


def alike(code: int, response: Response) -> Any:
    """What must be equal in two answers."""
    body = parse_json(response.body) if response.body else None
    if isinstance(body, dict):
        if code == Code.GET_SYSTEM_TOPIC_LIST_FROM_NS:
            body["brokerAddr"] = "brokerAddr" in body  # any broker's will do
        body = {key: by_name(value) for key, value in body.items()}
    return response.code, response.ext, response.remark is None, body


def by_name(value: Any) -> Any:
    return sorted(value, key=str) if isinstance(value, list) else value


@pytest.fixture
async def pair(java: str, ours: Served) -> AsyncIterator[Pair]:
    tasks = Tasks()
    remoting = Remoting(clock=SystemClock(), tasks=tasks)
    yield Pair(java, ours.address, remoting)
    await remoting.close()
    await tasks.close()


async def test_brokers_come_and_go(pair: Pair) -> None:
    await pair.register(BROKER, TOPICS, filter_servers=("f:1", "f:2"))
    await pair.look(known=2)
    await pair.register(BROKER, {**TOPICS, "late": TopicConfig("late", 1, 1)})
    await pair.look(known=2)
    await pair.register(BROKER, {"late": TopicConfig("late", 1, 1)}, version=2)
    await pair.look(known=3)
    await pair.register(SLAVE, TOPICS, compressed=True)
    await pair.register(OTHER, {"t": TopicConfig("t", 2, 2)}, compressed=True)
    await pair.look(known=3)
    await pair.ask(Code.UNREGISTER_BROKER, BROKER)
    await pair.look(known=3)
    await pair.ask(Code.UNREGISTER_BROKER, SLAVE)
    await pair.look(known=1)
    await pair.ask(Code.UNREGISTER_BROKER, OTHER)
    await pair.look(known=0)


async def test_a_slave_becomes_the_master(pair: Pair) -> None:
    await pair.register(BROKER, TOPICS)
    await pair.register(SLAVE, {})
    await pair.look(known=2)
    promoted = h.BrokerIdentity("broker-a", SLAVE.broker_addr, "c", 0)
    await pair.register(promoted, TOPICS, version=3)
    await pair.look(known=2)
    await pair.ask(Code.UNREGISTER_BROKER, promoted)
    await pair.look(known=0)


async def test_versions(pair: Pair) -> None:
    await pair.register(BROKER, TOPICS)
    for broker in (BROKER, SLAVE):
        for body in (b'{"counter":1,"timestamp":5}', b'{"counter":2,"timestamp":5}'):
            await pair.ask(Code.QUERY_DATA_VERSION, broker, body)
    await pair.ask(Code.UNREGISTER_BROKER, BROKER)


async def test_permissions_and_deletion(pair: Pair) -> None:
    await pair.register(BROKER, TOPICS)
    await pair.register(OTHER, TOPICS)
    for name in ("broker-a", "nobody"):
        for code in (Code.WIPE_WRITE_PERM_OF_BROKER, Code.ADD_WRITE_PERM_OF_BROKER):
            await pair.ask(code, h.BrokerName(name))
            await pair.look(known=2)
    await pair.ask(Code.WIPE_WRITE_PERM_OF_BROKER, h.BrokerName("broker-b"))
    await pair.register(OTHER, TOPICS)
    await pair.look(known=2)
    await pair.register(OTHER, TOPICS, version=2)
    await pair.look(known=2)
    await pair.ask(Code.DELETE_TOPIC_IN_NAMESRV, h.DeleteTopicInNamesrv("t", "c"))
    await pair.look(known=2)
    await pair.ask(Code.DELETE_TOPIC_IN_NAMESRV, h.DeleteTopicInNamesrv("u"))
    await pair.look(known=1)
    for broker in (BROKER, OTHER):
        await pair.ask(Code.UNREGISTER_BROKER, broker)
    await pair.look(known=0)


async def test_keys_and_values(pair: Pair) -> None:
    key, namespace = h.KvKey("n", "k"), h.KvNamespace("n")
    await pair.ask(Code.GET_KV_CONFIG, key)
    await pair.ask(Code.GET_KVLIST_BY_NAMESPACE, namespace)
    await pair.ask(Code.PUT_KV_CONFIG, h.PutKvConfig("n", "k", "v"))
    await pair.ask(Code.PUT_KV_CONFIG, h.PutKvConfig("ORDER_TOPIC_CONFIG", "t", "broker-a:4"))
    await pair.ask(Code.GET_KV_CONFIG, key)
    await pair.ask(Code.GET_KVLIST_BY_NAMESPACE, namespace)
    await pair.register(BROKER, TOPICS)
    await pair.look(known=2)
    for gone in (key, key, h.KvKey("ORDER_TOPIC_CONFIG", "t")):
        await pair.ask(Code.DELETE_KV_CONFIG, gone)
        await pair.ask(Code.GET_KVLIST_BY_NAMESPACE, namespace)
    await pair.ask(Code.UNREGISTER_BROKER, BROKER)


@pytest.mark.parametrize(
    ("header", "body"),
    [
        (h.RegisterBroker("b", "x:1", "c", "x:2", 0, body_crc32=5), b"{}"),
        (h.RegisterBroker("b", "x:1", "c", "x:2", 0), b"{"),
        (h.RegisterBroker("b", "x:1", "c", "x:2", 0, compressed=True), b"{}"),
    ],
)
async def test_bad_registrations(pair: Pair, header: h.RegisterBroker, body: bytes) -> None:
    assert (await pair.ask(Code.REGISTER_BROKER, header, body)).code == 1
    await pair.look(known=0)


async def test_our_broker_registers_with_both(pair: Pair, tmp_path: Path) -> None:
    """All topics at first, then only those that changed."""
    async with open_tables(tmp_path) as tables:
        remoting = Remoting(clock=tables.clock, tasks=tables.tasks)
        for config in TOPICS.values():
            tables.topics.put(config)
        registration = Registration(
            pair.addresses, remoting=remoting, clock=tables.clock, tasks=tables.tasks
        )
        tables.topics.on_change.append(registration.changed)
        place = BrokerPlace("c", "broker-a", 0, "127.0.0.1:1", "127.0.0.1:2")
        await registration.start(place, tables.topics)
        async with asyncio.timeout(60):
            await until(lambda: len(registration.registered_with) == 2)
        await pair.look(known=2)
        tables.topics.put(TopicConfig("late", 1, 1))
        await registration.announced()
        await pair.look(known=3)
        tables.topics.put(TopicConfig("late", 2, 2))
        tables.topics.delete("u")  # which name servers keep until they are told
        await registration.announced()
        await pair.look(known=3)
        await registration.stop()
        await pair.look(known=0)
        await remoting.close()
