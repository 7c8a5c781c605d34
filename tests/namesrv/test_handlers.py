"""Every code of a name server, asked over a socket."""

import asyncio
import contextlib
import inspect
import json
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.core.clock import SystemClock, VirtualClock
from cometmq.core.errors import BadRequest
from cometmq.namesrv.config import NamesrvConfig
from cometmq.namesrv.handlers import BrokerHandlers, ConfigHandlers, KvHandlers, RouteHandlers
from cometmq.namesrv.kv import KvTables
from cometmq.namesrv.routes import Registration, RouteTable
from cometmq.net.eventloop import Watchdog
from cometmq.net.peer import Peer
from cometmq.net.router import Router
from cometmq.net.tasks import Tasks
from cometmq.protocol import headers as h
from cometmq.protocol.bodies import DataVersion, TopicConfig
from cometmq.protocol.codes import RequestCode as Code
from cometmq.protocol.frame import BINARY, Reply, Request
from cometmq.protocol.registry import REGISTRY, Side
from tests.namesrv.serving import Asker, Served, name_server, topics
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


async def test_topics_of_units_are_listed(asker: Asker) -> None:
    """By the flags of their brokers: 1 unit, 2 subscribed to by a unit."""
    await asker.register(topics("plain", unit=1, both=3, subscribed=2))
    for code, wanted in (
        (Code.GET_UNIT_TOPIC_LIST, ["both", "unit"]),
        (Code.GET_HAS_UNIT_SUB_TOPIC_LIST, ["both", "subscribed"]),
        (Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, ["subscribed"]),
    ):
        assert json.loads((await asker.ask(code)).body) == {"topicList": wanted}


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


async def test_settings_are_shown_and_changed(tmp_path: Path) -> None:
    """All of a request's settings are changed, or none."""
    async with name_server(tmp_path) as served:
        asker = served.asker()
        await asker.ask(Code.PUT_KV_CONFIG, h.PutKvConfig("ORDER_TOPIC_CONFIG", "t", "broker-a:4"))
        await asker.register(topics("t"))

        async def conf() -> object:
            answer = await asker.ask(Code.GET_ROUTEINFO_BY_TOPIC, h.Topic("t"))
            return json.loads(answer.body).get("orderTopicConf")

        async def update(text: bytes) -> tuple[int, str | None]:
            answer = await asker.ask(Code.UPDATE_NAMESRV_CONFIG, None, text)
            return answer.code, answer.remark

        assert await conf() is None
        assert await update(b"orderMessageEnable=true\nlistenPort=1") == (
            1,
            "setting 'listenPort': it cannot be changed while the name server runs: set it at a "
            "start",
        )
        assert await conf() is None
        assert await update(b"orderMessageEnable=true") == (0, None)
        assert await conf() == "broker-a:4"
        shown = (await asker.ask(Code.GET_NAMESRV_CONFIG)).body.decode()
        assert "orderMessageEnable=true\n" in shown
        assert (await update(b"orderMesageEnable=true"))[1] == (
            "setting 'orderMesageEnable': no such setting; did you mean 'orderMessageEnable'?"
        )
        assert await update(b"kvConfigPath=/other/x") == (
            16,
            "Can not update config in black list.",
        )
        assert (await update(b"expiryScanMs=0"))[0] == 1
        assert (await update(b"\xff\x00"))[0] == 1
        assert (
            "kvConfigPath=/other/x" not in (await asker.ask(Code.GET_NAMESRV_CONFIG)).body.decode()
        )


async def test_a_data_version_of_any_size_is_not_read(asker: Asker) -> None:
    broker = h.BrokerIdentity("broker-a", "a:1", "c", 0)
    answer = await asker.ask(Code.QUERY_DATA_VERSION, broker, b"{" + b" " * 32_768 + b"}")
    assert (answer.code, answer.remark) == (1, "a data version has no 32770 bytes")


async def test_codes_of_others_are_not_supported(asker: Asker) -> None:
    answer = await asker.ask(Code.GET_BROKER_RUNTIME_INFO)
    assert (answer.code, answer.remark) == (3, " request type 28 not supported")


async def test_every_code_of_a_name_server_has_a_handler(served: Served) -> None:
    mine = {int(code) for code, spec in REGISTRY.items() if Side.NAMESRV in spec.side}
    router = served.server.router
    assert {*router._loop_handlers, *router._task_handlers} == mine


async def test_many_lists_of_topics_are_made_one_at_a_time() -> None:
    """Each needs memory for all their names."""
    table, clock = RouteTable(), SystemClock()
    named = {f"a topic with a long name {number}": TopicConfig("", 4, 4) for number in range(5_000)}
    broker = h.RegisterBroker("b", "1.2.3.4:1", "c", "", 0)
    table.register(broker, Registration(DataVersion(1, 1), table.layouts(named), []), "x", 0)
    handlers = RouteHandlers(table, KvTables(Path("unused")), NamesrvConfig(), clock=clock)
    request = Request(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, h.NoFields(), 1)
    peer = Peer(Router(Side.NAMESRV, {}, tasks=Tasks()), clock=clock, watchdog=Watchdog(), peers={})

    async def ask() -> int:
        return len((await handlers.topics(peer, request)).body)

    alone = await ask()
    tracemalloc.start()
    try:
        sizes = await asyncio.gather(*(ask() for _ in range(48)))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sizes == [alone] * 48
    assert peak_bytes < 4 << 20


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
    table, clock = RouteTable(), VirtualClock()
    config = NamesrvConfig(order_message_enable=True)
    handlers = RouteHandlers(table, kv, config, clock=clock).handlers()
    handlers |= ConfigHandlers(config).handlers()
    handlers |= BrokerHandlers(table, kv, clock=clock).handlers()
    handler = handlers.get(code) or KvHandlers(kv).handlers()[code]
    if code in (Code.PUT_KV_CONFIG, Code.DELETE_KV_CONFIG):
        return  # writes a file
    router = Router(Side.NAMESRV, {}, tasks=Tasks())
    peer = Peer(router, clock=clock, watchdog=Watchdog(), peers={})
    request = Request(code, data.draw(header_values(REGISTRY[code].header)), 1, body=body)
    with contextlib.suppress(BadRequest):
        reply = handler(peer, request)
        if inspect.isawaitable(reply):
            reply = await reply
        assert isinstance(reply, Reply)
