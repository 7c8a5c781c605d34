"""Every code of a name server, asked over a socket."""

import contextlib
import inspect
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.core.clock import VirtualClock
from cometmq.core.errors import BadRequest
from cometmq.namesrv.config import NamesrvConfig
from cometmq.namesrv.handlers import KvHandlers, RouteHandlers
from cometmq.namesrv.kv import KvTables
from cometmq.namesrv.routes import RouteTable
from cometmq.net.peer import Peer
from cometmq.net.router import Reply, Router
from cometmq.net.tasks import Tasks
from cometmq.net.watchdog import Watchdog
from cometmq.protocol import headers as h
from cometmq.protocol.codes import RequestCode as Code
from cometmq.protocol.frame import BINARY, Request
from cometmq.protocol.registry import REGISTRY, Side
from tests.namesrv.serving import Asker, Served, name_server, topics, until
from tests.protocol.strategies import header_values


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with name_server(tmp_path) as served:
        yield served


@pytest.fixture
def asker(served: Served) -> Asker:
    return served.asker()


@pytest.mark.parametrize("compressed", [True, False])
async def test_a_route_is_served_after_registration(asker: Asker, compressed: bool) -> None:
    missing = await asker.ask(Code.GET_ROUTEINFO_BY_TOPIC, h.Topic("t"))
    assert missing.code == 17
    assert missing.remark is not None
    assert missing.remark.startswith("No topic route info in name server for the topic: t")
    done = await asker.register(topics("t"), compressed=compressed, filter_servers=("f:1",))
    assert (done.code, done.ext, done.body) == (0, {}, b"")
    found = await asker.ask(Code.GET_ROUTEINFO_BY_TOPIC, h.Topic("t"))
    assert found.body == (
        b'{"brokerDatas":[{"brokerAddrs":{"0":"a:1"},"brokerName":"broker-a","cluster":"c"}],'
        b'"filterServerTable":{"a:1":["f:1"]},"queueDatas":[{"brokerName":"broker-a","perm":6,'
        b'"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}'
    )
    binary = await asker.ask(Code.GET_ROUTEINFO_BY_TOPIC, h.Topic("t"), codec=BINARY)
    assert binary.body == found.body


async def test_a_slave_is_told_of_its_master(asker: Asker) -> None:
    await asker.register(topics("t"))
    answer = await asker.register(topics(), broker_id=1, address="a:2")
    assert answer.ext == {"haServerAddr": "ha-a:1", "masterAddr": "a:1"}


@pytest.mark.parametrize(
    ("crc32", "body", "problem"),
    [(5, b"{}", "crc32 not match"), (0, b"{", "JSON body"), (0, b'{"filterServerList":1}', "JSON")],
)
async def test_a_bad_registration_registers_nothing(
    asker: Asker, crc32: int, body: bytes, problem: str
) -> None:
    header = h.RegisterBroker("broker-a", "a:1", "c", "h:1", 0, body_crc32=crc32)
    answer = await asker.ask(Code.REGISTER_BROKER, header, body)
    assert answer.code == 1
    assert problem in (answer.remark or "")
    assert json.loads((await asker.ask(Code.GET_BROKER_CLUSTER_INFO)).body) == {
        "brokerAddrTable": {},
        "clusterAddrTable": {},
    }


async def test_a_version_is_compared(asker: Asker) -> None:
    identity = h.BrokerIdentity("broker-a", "a:1", "c", 0)
    body = b'{"counter":1,"timestamp":1}'
    unknown = await asker.ask(Code.QUERY_DATA_VERSION, identity, body)
    assert (unknown.ext, unknown.body) == ({"changed": "true"}, b"")
    await asker.register(topics("t"))
    same = await asker.ask(Code.QUERY_DATA_VERSION, identity, body)
    assert (same.ext, same.body) == ({"changed": "false"}, body)
    other = await asker.ask(Code.QUERY_DATA_VERSION, identity, b'{"counter":2,"timestamp":1}')
    assert (other.ext, other.body) == ({"changed": "true"}, body)
    assert (await asker.ask(Code.QUERY_DATA_VERSION, identity)).code == 1


async def test_a_broker_unregisters(asker: Asker) -> None:
    await asker.register(topics("t"))
    done = await asker.ask(Code.UNREGISTER_BROKER, h.BrokerIdentity("broker-a", "a:1", "c", 0))
    assert done.code == 0
    assert (await asker.ask(Code.GET_ROUTEINFO_BY_TOPIC, h.Topic("t"))).code == 17


async def test_a_closed_connection_takes_its_broker_with_it(served: Served) -> None:
    broker, asker = served.asker(), served.asker()
    await broker.register(topics("t"))
    await broker.register(topics("t"))
    await asker.register(topics("t"), name="broker-b", address="b:1")
    await broker.close()
    await until(lambda: served.server.routes.data_version("a:1") is None)
    found = await asker.ask(Code.GET_ROUTEINFO_BY_TOPIC, h.Topic("t"))
    assert [data["brokerName"] for data in json.loads(found.body)["brokerDatas"]] == ["broker-b"]


async def test_cluster_and_topic_lists(asker: Asker) -> None:
    await asker.register(topics("t", "u"))
    await asker.register(topics("v"), name="broker-b", address="b:1", cluster="d")
    info = json.loads((await asker.ask(Code.GET_BROKER_CLUSTER_INFO)).body)
    assert info["clusterAddrTable"] == {"c": ["broker-a"], "d": ["broker-b"]}
    assert info["brokerAddrTable"]["broker-a"] == {
        "brokerAddrs": {"0": "a:1"},
        "brokerName": "broker-a",
        "cluster": "c",
    }
    every = await asker.ask(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    assert every.body == b'{"topicList":["t","u","v"]}'
    some = await asker.ask(Code.GET_TOPICS_BY_CLUSTER, h.Cluster("d"))
    assert some.body == b'{"topicList":["v"]}'
    system = await asker.ask(Code.GET_SYSTEM_TOPIC_LIST_FROM_NS)
    assert system.body == b'{"brokerAddr":"a:1","topicList":["broker-a","broker-b","c","d"]}'


async def test_permissions_and_deletion(asker: Asker) -> None:
    await asker.register(topics("t", "u"))
    wiped = await asker.ask(Code.WIPE_WRITE_PERM_OF_BROKER, h.BrokerName("broker-a"))
    assert wiped.ext == {"wipeTopicCount": "2"}
    found = await asker.ask(Code.GET_ROUTEINFO_BY_TOPIC, h.Topic("t"))
    assert json.loads(found.body)["queueDatas"][0]["perm"] == 4
    added = await asker.ask(Code.ADD_WRITE_PERM_OF_BROKER, h.BrokerName("broker-a"))
    assert added.ext == {"addTopicCount": "2"}
    for topic, cluster in (("t", "c"), ("u", None)):
        header = h.DeleteTopicInNamesrv(topic, cluster)
        assert (await asker.ask(Code.DELETE_TOPIC_IN_NAMESRV, header)).code == 0
    every = await asker.ask(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    assert every.body == b'{"topicList":[]}'


async def test_keys_and_values(asker: Asker) -> None:
    key, namespace = h.KvKey("n", "k"), h.KvNamespace("n")
    missing = await asker.ask(Code.GET_KV_CONFIG, key)
    assert (missing.code, missing.remark) == (22, "No config item, Namespace: n Key: k")
    nothing = await asker.ask(Code.GET_KVLIST_BY_NAMESPACE, namespace)
    assert (nothing.code, nothing.remark) == (22, "No config item, Namespace: n")
    assert (await asker.ask(Code.PUT_KV_CONFIG, h.PutKvConfig("n", "k", "v"))).code == 0
    assert (await asker.ask(Code.GET_KV_CONFIG, key)).ext == {"value": "v"}
    listed = await asker.ask(Code.GET_KVLIST_BY_NAMESPACE, namespace)
    assert listed.body == b'{"table":{"k":"v"}}'
    assert (await asker.ask(Code.DELETE_KV_CONFIG, key)).code == 0
    assert (await asker.ask(Code.GET_KV_CONFIG, key)).code == 22


@pytest.mark.parametrize("enabled", [True, False])
async def test_order_configuration(tmp_path: Path, enabled: bool) -> None:
    async with name_server(tmp_path, NamesrvConfig(order_message_enable=enabled)) as served:
        asker = served.asker()
        put = h.PutKvConfig("ORDER_TOPIC_CONFIG", "t", "broker-a:4")
        await asker.ask(Code.PUT_KV_CONFIG, put)
        # Brokers get it with every registration, clients only when it is enabled.
        assert (await asker.register(topics("t"))).body == b'{"table":{"t":"broker-a:4"}}'
        found = json.loads((await asker.ask(Code.GET_ROUTEINFO_BY_TOPIC, h.Topic("t"))).body)
        assert found.get("orderTopicConf") == ("broker-a:4" if enabled else None)


async def test_codes_of_others_are_not_supported(asker: Asker) -> None:
    answer = await asker.ask(Code.GET_BROKER_RUNTIME_INFO)
    assert (answer.code, answer.remark) == (3, " request type 28 not supported")


async def test_every_code_of_a_name_server_has_a_handler(served: Served) -> None:
    mine = {int(code) for code, spec in REGISTRY.items() if Side.NAMESRV in spec.side}
    router = served.server.router
    assert {*router._loop_handlers, *router._task_handlers} == mine


bodies = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([b"{}", b"[]", b'{"counter":"x"}', b'{"topicConfigSerializeWrapper":{}}']),
)


@given(
    st.sampled_from(sorted(code for code, spec in REGISTRY.items() if Side.NAMESRV in spec.side)),
    st.data(),
    bodies,
)
async def test_whatever_is_asked_is_answered_or_refused(
    code: int, data: st.DataObject, body: bytes
) -> None:
    kv = KvTables(Path("unused"))
    routes = RouteHandlers(RouteTable(), kv, clock=VirtualClock(), order_message_enable=True)
    handler = routes.handlers().get(code) or KvHandlers(kv).handlers()[code]
    if inspect.iscoroutinefunction(handler):
        return  # writes a file
    router = Router(Side.NAMESRV, {}, tasks=Tasks())
    peer = Peer(router, clock=VirtualClock(), watchdog=Watchdog(), peers=set())
    request = Request(code, data.draw(header_values(REGISTRY[code].header)), 1, body=body)
    with contextlib.suppress(BadRequest):
        assert isinstance(handler(peer, request), Reply)
