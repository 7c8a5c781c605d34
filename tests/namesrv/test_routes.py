"""The route table: what each registration, expiry and administration leaves behind."""

import gc
import json
import time
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cometmq.core.errors import BadRequest
from cometmq.namesrv.routes import (
    BROKER_EXPIRY_MS,
    ENTRY_BYTES,
    LAYOUT_BYTES,
    Limits,
    Registered,
    Registration,
    RouteTable,
)
from cometmq.protocol.bodies import DataVersion, TopicConfig, TopicRoute
from cometmq.protocol.fastjson import encode_json, parse_json
from cometmq.protocol.headers import BrokerIdentity, RegisterBroker


def header(
    name: str = "broker-a", broker_id: int = 0, address: str = "a:1", cluster: str = "c"
) -> RegisterBroker:
    return RegisterBroker(name, address, cluster, f"ha-{address}", broker_id)


def body(
    *topics: str, version: int = 1, queues: int = 4, perm: int = 6, filters: tuple[str, ...] = ()
) -> Registration:
    table = {topic: TopicConfig(topic, queues, queues, perm) for topic in topics}
    return Registration(DataVersion(version, 1), RouteTable().layouts(table), list(filters))


def link_count(routes: RouteTable, cluster: str | None = None) -> list[str]:
    return sorted({name for some in routes.topics(cluster) for name in some})


def route(routes: RouteTable, topic: str = "t", order: str | None = None) -> Any:
    encoded = routes.pick(topic, order)
    return None if encoded is None else json.loads(encoded)


def addresses(routes: RouteTable, topic: str = "t") -> dict[str, dict[str, str]]:
    found = route(routes, topic)
    if found is None:
        return {}
    return {broker["brokerName"]: broker["brokerAddrs"] for broker in found["brokerDatas"]}


@pytest.fixture
def routes() -> RouteTable:
    return RouteTable()


# ------------------------------------------------------------------------------- registration


def test_a_registered_master_is_in_the_route_of_its_topics(routes: RouteTable) -> None:
    assert routes.pick("t") is None
    assert routes.register(header(), body("t", "u"), "channel", 0) == Registered()
    assert route(routes) == {
        "brokerDatas": [{"brokerAddrs": {"0": "a:1"}, "brokerName": "broker-a", "cluster": "c"}],
        "filterServerTable": {},
        "queueDatas": [
            {
                "brokerName": "broker-a",
                "perm": 6,
                "readQueueNums": 4,
                "topicSysFlag": 0,
                "writeQueueNums": 4,
            }
        ],
    }
    assert link_count(routes) == ["t", "u"]


def test_topics_count_only_from_the_master(routes: RouteTable) -> None:
    routes.register(header(broker_id=1, address="a:2"), body("t"), "slave", 0)
    assert routes.pick("t") is None
    routes.register(header(), body("t"), "master", 0)
    assert addresses(routes) == {"broker-a": {"0": "a:1", "1": "a:2"}}


def test_a_slave_learns_its_master_while_that_lives(routes: RouteTable) -> None:
    slave = header(broker_id=1, address="a:2")
    assert routes.register(slave, body(), "slave", 0) == Registered()
    assert routes.register(header(), body(), "master", 0) == Registered()
    assert routes.register(slave, body(), "slave", 0) == Registered("ha-a:1", "a:1")
    routes.channel_closed("master")
    assert routes.register(slave, body(), "slave", 0) == Registered()


def test_topics_are_read_again_only_with_another_version(routes: RouteTable) -> None:
    routes.register(header(), body("t"), "x", 0)
    routes.register(header(), body("t", "late", queues=9), "x", 0)
    assert route(routes)["queueDatas"][0]["readQueueNums"] == 4
    assert routes.pick("late") is None
    routes.register(header(), body("t", "late", queues=9, version=2), "x", 0)
    assert route(routes)["queueDatas"][0]["readQueueNums"] == 9
    assert routes.pick("late") is not None


def test_a_topic_stays_when_a_registration_lacks_it(routes: RouteTable) -> None:
    routes.register(header(), body("t", "u"), "x", 0)
    routes.register(header(), body("u", version=2), "x", 0)
    assert routes.pick("t") is not None


def test_an_address_has_one_id(routes: RouteTable) -> None:
    routes.register(header(), body("t"), "x", 0)
    routes.register(header(broker_id=1, address="a:2"), body(), "y", 0)
    # The slave takes over as master.
    routes.register(header(broker_id=0, address="a:2"), body("t", version=5), "y", 0)
    assert addresses(routes) == {"broker-a": {"0": "a:2"}}


def test_a_broker_that_moved_is_at_one_address(routes: RouteTable) -> None:
    routes.register(header(), Registration(DataVersion(1, 1), {}, ["f:1"]), "same", 0)
    routes.register(header(address="a:9"), body("t"), "same", 0)
    assert addresses(routes) == {"broker-a": {"0": "a:9"}}
    assert routes.data_version("a:1") is None
    # Neither its silence nor its end takes the connection along.
    routes.heartbeat("a:9", DataVersion(1, 1), 120_001)
    assert routes.expire(120_001) == []
    assert routes.channel_closed("same") == ["a:9"]


def test_a_broker_may_come_back_at_another_address(routes: RouteTable) -> None:
    routes.register(header(), body("t"), "old", 0)
    routes.register(header(address="a:9"), body("t"), "new", 0)
    assert addresses(routes) == {"broker-a": {"0": "a:9"}}
    assert routes.channel_closed("old") == ["a:1"]
    routes.unregister(BrokerIdentity("broker-a", "a:1", "c", 0))
    assert addresses(routes) == {"broker-a": {"0": "a:9"}}


def test_two_brokers_share_a_topic_in_order(routes: RouteTable) -> None:
    routes.register(header("broker-b", address="b:1"), body("t", queues=2), "y", 0)
    routes.register(header(), body("t"), "x", 0)
    assert list(addresses(routes)) == ["broker-a", "broker-b"]
    assert [queues["readQueueNums"] for queues in route(routes)["queueDatas"]] == [4, 2]


# ------------------------------------------------------------------------- heartbeats and expiry


def test_a_heartbeat_asks_for_what_is_unknown(routes: RouteTable) -> None:
    version = DataVersion(1, 1)
    assert routes.heartbeat("a:1", version, 0)
    assert routes.data_version("a:1") is None
    routes.register(header(), body("t"), "x", 0)
    assert routes.data_version("a:1") == version
    assert not routes.heartbeat("a:1", version, 0)
    assert routes.heartbeat("a:1", DataVersion(2, 1), 0)


def test_a_silent_broker_leaves_all_tables_at_once(routes: RouteTable) -> None:
    routes.register(header(), body("t", filters=("f:1",)), "x", 1_000)
    routes.register(header("broker-b", address="b:1"), body("t"), "y", 1_000 + BROKER_EXPIRY_MS)
    assert routes.expire(1_000 + BROKER_EXPIRY_MS) == []
    assert routes.expire(1_001 + BROKER_EXPIRY_MS) == [("a:1", "x")]
    assert addresses(routes) == {"broker-b": {"0": "b:1"}}
    assert route(routes)["filterServerTable"] == {}
    assert routes.data_version("a:1") is None
    assert set(routes.clusters().broker_addr_table) == {"broker-b"}
    assert routes.system_topics().topic_list == ["broker-b", "c"]
    assert routes.expire(2_000 + 2 * BROKER_EXPIRY_MS) == [("b:1", "y")]
    assert link_count(routes) == []
    assert routes.clusters().cluster_addr_table == {}
    assert routes.pick("t") is None


@pytest.mark.parametrize("how", ["heartbeat", "register"])
def test_a_sign_of_life_puts_expiry_off(routes: RouteTable, how: str) -> None:
    routes.register(header(), body("t"), "x", 0)
    if how == "heartbeat":
        routes.heartbeat("a:1", DataVersion(1, 1), 50_000)
    else:
        routes.register(header(), body("t"), "x", 50_000)
    assert routes.expire(50_000 + BROKER_EXPIRY_MS) == []
    assert routes.expire(50_001 + BROKER_EXPIRY_MS) == [("a:1", "x")]


def test_a_heartbeat_with_another_version_is_no_sign_of_life(routes: RouteTable) -> None:
    routes.register(header(), body("t"), "x", 0)
    routes.heartbeat("a:1", DataVersion(7, 7), 50_000)
    assert routes.expire(1 + BROKER_EXPIRY_MS) == [("a:1", "x")]


def test_a_closed_connection_takes_only_what_came_over_it(routes: RouteTable) -> None:
    routes.register(header(), body("t"), "old", 0)
    routes.register(header(), body("t"), "new", 0)
    assert routes.channel_closed("old") == []
    assert addresses(routes) == {"broker-a": {"0": "a:1"}}
    assert routes.channel_closed("new") == ["a:1"]
    assert routes.pick("t") is None


def test_topics_stay_while_a_slave_lives(routes: RouteTable) -> None:
    routes.register(header(), body("t"), "master", 0)
    routes.register(header(broker_id=1, address="a:2"), body(), "slave", 0)
    routes.unregister(BrokerIdentity("broker-a", "a:1", "c", 0))
    assert addresses(routes) == {"broker-a": {"1": "a:2"}}
    routes.unregister(BrokerIdentity("broker-a", "a:2", "c", 1))
    assert routes.pick("t") is None


def test_unregistering_what_is_unknown_changes_nothing(routes: RouteTable) -> None:
    routes.register(header(), body("t"), "x", 0)
    routes.unregister(BrokerIdentity("broker-z", "z:1", "c", 0))
    routes.unregister(BrokerIdentity("broker-a", "a:1", "c", 7))
    assert addresses(routes) == {"broker-a": {"0": "a:1"}}


# ------------------------------------------------------------------------------ administration


def test_write_permission_goes_and_comes_back(routes: RouteTable) -> None:
    routes.register(header(), body("t", "u", perm=7), "x", 0)
    routes.register(header("broker-b", address="b:1"), body("t"), "y", 0)
    before = routes.pick("t")
    assert routes.wipe_write_perm("broker-a") == 2
    assert [queues["perm"] for queues in route(routes)["queueDatas"]] == [5, 6]
    # It stays away while the broker registers the same version.
    routes.register(header(), body("t", "u", perm=7), "x", 0)
    assert route(routes, "u")["queueDatas"][0]["perm"] == 5
    assert routes.add_write_perm("broker-a") == 2
    assert [queues["perm"] for queues in route(routes)["queueDatas"]] == [6, 6]
    assert routes.wipe_write_perm("nobody") == 0
    assert routes.add_write_perm("nobody") == 0
    routes.register(header(), body("t", "u", perm=7, version=2), "x", 0)
    assert routes.pick("t") == before


def test_a_topic_is_deleted_everywhere_or_in_a_cluster(routes: RouteTable) -> None:
    routes.register(header(), body("t", "u"), "x", 0)
    routes.register(header("broker-b", address="b:1", cluster="d"), body("t"), "y", 0)
    routes.delete_topic("t", "nowhere")
    assert len(addresses(routes)) == 2
    routes.delete_topic("t", "c")
    assert addresses(routes) == {"broker-b": {"0": "b:1"}}
    routes.delete_topic("t", "")
    assert routes.pick("t") is None
    routes.delete_topic("t")
    assert link_count(routes) == ["u"]


def test_filter_servers_travel_with_their_broker(routes: RouteTable) -> None:
    routes.register(header(), body("t", filters=("f:1", "f:2")), "x", 0)
    assert route(routes)["filterServerTable"] == {"a:1": ["f:1", "f:2"]}
    routes.register(header(), body("t", filters=("f:3",)), "x", 0)
    assert route(routes)["filterServerTable"] == {"a:1": ["f:3"]}
    routes.register(header(), body("t"), "x", 0)
    assert route(routes)["filterServerTable"] == {}


def test_an_order_configuration_is_carried_and_not_kept(routes: RouteTable) -> None:
    assert routes.pick("t", "broker-a:4") is None
    routes.register(header(), body("t"), "x", 0)
    assert route(routes, order="broker-a:4")["orderTopicConf"] == "broker-a:4"
    assert "orderTopicConf" not in route(routes)


def test_lists(routes: RouteTable) -> None:
    assert routes.system_topics().broker_addr is None
    routes.register(header(), body("t", "u"), "x", 0)
    routes.register(header("broker-b", address="b:1", cluster="d"), body("t", "v"), "y", 0)
    assert link_count(routes, "c") == ["t", "u"]
    assert link_count(routes, "d") == ["t", "v"]
    assert link_count(routes, "nowhere") == []
    assert routes.system_topics().topic_list == ["broker-a", "broker-b", "c", "d"]
    assert routes.system_topics().broker_addr == "a:1"
    info = routes.clusters()
    assert info.cluster_addr_table == {"c": ["broker-a"], "d": ["broker-b"]}
    assert info.broker_addr_table["broker-b"].broker_addrs == {"0": "b:1"}
    assert info.broker_addr_table["broker-b"].cluster == "d"


def test_equal_queues_and_names_are_there_once(routes: RouteTable) -> None:
    many = {"-".join(("t", str(number))): TopicConfig("x", 8, 8) for number in range(100)}
    again = {"-".join(("t", str(number))): TopicConfig("y", 8, 8) for number in range(100)}
    first, second = routes.layouts(many), routes.layouts(again)
    assert len({id(layout) for layout in [*first.values(), *second.values()]}) == 1
    assert [*map(id, first)] == [*map(id, second)]


def test_the_garbage_collector_passes_large_tables_over(routes: RouteTable) -> None:
    routes.register(header(), body("t", "u"), "x", 0)
    routes.register(header(), body("v", version=2), "x", 0)
    routes.wipe_write_perm("broker-a")
    assert [gc.is_tracked(broker.topics) for broker in routes._brokers.values()] == [False]


def test_texts_of_ever_other_queues_do_not_pile_up(
    routes: RouteTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cometmq.namesrv.routes._SHARED_LAYOUTS", 3)
    for queues in range(10):
        routes.layouts({"t": TopicConfig("t", queues, queues)})
    assert len(routes._layouts) <= 3


def test_topics_are_not_asked_for_when_they_are_known(routes: RouteTable) -> None:
    known = DataVersion(1, 1)
    assert routes.wants_topics(header(), known)
    routes.register(header(), body("t"), "x", 0)
    assert not routes.wants_topics(header(), known)
    assert routes.wants_topics(header(), DataVersion(2, 1))
    assert not routes.wants_topics(header(broker_id=1, address="a:2"), DataVersion(2, 1))
    routes.register(header(), Registration(known, None, []), "x", 0)
    assert routes.pick("t") is not None


# ------------------------------------------------------------------------------------- bounds


def end_of_a_connection(brokers: int) -> float:
    """Processor time of the end of a connection that registered so many, in seconds."""
    many = 1 << 20
    limits = Limits(brokers=many, host_brokers=many, connection_brokers=many)
    routes = RouteTable(limits=limits)
    routes.register(header("other", address="o:1"), body("t"), "other", 0)
    for number in range(brokers):
        name = f"broker-{number}"
        routes.register(header(name, address=f"a:{number}", cluster=name), body("t"), "x", 0)
    started_s = time.process_time()
    gone = routes.channel_closed("x")
    took_s = time.process_time() - started_s
    assert len(gone) == brokers
    assert link_count(routes) == ["t"]
    assert list(routes.clusters().cluster_addr_table) == ["c"]
    return took_s


def test_the_end_of_a_connection_takes_time_for_what_it_registered() -> None:
    assert end_of_a_connection(2_000) < 0.2


def known_to(routes: RouteTable) -> list[str]:
    return sorted(routes.clusters().broker_addr_table)


LONG = "x" * 256


@pytest.mark.parametrize(
    ("broker", "problem"),
    [
        (header(LONG), "brokerName 'xxx"),
        (header(address=LONG), "brokerAddr 'xxx"),
        (header(cluster=LONG), "clusterName 'xxx"),
    ],
)
def test_long_names_of_brokers_are_refused(
    routes: RouteTable, broker: RegisterBroker, problem: str
) -> None:
    with pytest.raises(BadRequest, match=problem):
        routes.register(broker, body("t"), "x", 0)
    assert known_to(routes) == []
    assert link_count(routes) == []


def test_long_names_and_numbers_of_topics_are_refused(routes: RouteTable) -> None:
    with pytest.raises(BadRequest, match="has 513 characters"):
        body("t" * 513)
    with pytest.raises(BadRequest, match="readQueueNums of a topic is no 32-bit number"):
        body("t", queues=1 << 31)
    body("t" * 512, queues=(1 << 31) - 1)


def test_filter_servers_are_bounded(routes: RouteTable) -> None:
    with pytest.raises(BadRequest, match="17 filter servers"):
        routes.register(header(), body("t", filters=("f:1",) * 17), "x", 0)
    with pytest.raises(BadRequest, match="filter server 'xxx"):
        routes.register(header(), body("t", filters=(LONG,)), "x", 0)


def several(routes: RouteTable, count: int, **same: Any) -> None:
    """Registers so many, each with a name, an address and a connection of its own, or the same."""
    for number in range(count):
        fields: dict[str, Any] = {
            "name": f"broker-{number}", "address": f"a:{number}", "broker_id": number,
            "cluster": "c", "channel": f"x{number}", "host": f"h{number}",
        } | same  # fmt: skip
        channel, host = fields.pop("channel"), fields.pop("host")
        routes.register(header(**fields), body("t"), channel, 0, host)


@pytest.mark.parametrize(
    ("same", "problem"),
    [
        ({"channel": "x"}, "3 brokers on one connection"),
        ({"host": "h"}, "4 brokers of one machine"),
        ({"name": "broker"}, "5 addresses of one broker"),
        ({"address": "a:1"}, "6 brokers at one address"),
        ({"name": "broker", "address": "a:1", "broker_id": 0}, None),
        ({}, "8 brokers;"),
    ],
)
def test_brokers_are_bounded(same: dict[str, Any], problem: str | None) -> None:
    limits = Limits(
        brokers=7, host_brokers=3, connection_brokers=2, name_addresses=4, address_names=5
    )
    routes = RouteTable(limits=limits)
    if problem is None:
        several(routes, 20, **same)
        return
    with pytest.raises(BadRequest, match=problem):
        several(routes, 20, **same)
    # Who is known stays, and may register again; what goes leaves a place.
    before = routes.clusters()
    some = {"name": "broker-0", "address": "a:0", "channel": "x0", "host": "h0"} | same
    channel, host = some.pop("channel"), some.pop("host")
    routes.register(header(**some), body("t", version=2), channel, 1, host)
    assert routes.clusters() == before
    for channel in ["x", *(f"x{number}" for number in range(20))]:
        routes.channel_closed(channel)
    assert known_to(routes) == []
    several(routes, 2, **same)


def test_a_broker_is_in_few_clusters(routes: RouteTable) -> None:
    for number in range(16):
        routes.register(header(cluster=f"c{number}"), body("t"), "x", 0)
    with pytest.raises(BadRequest, match="17 clusters of one broker"):
        routes.register(header(cluster="late"), body("t"), "x", 0)
    assert "late" not in routes.clusters().cluster_addr_table


def test_topics_are_bounded() -> None:
    routes = RouteTable(limits=Limits(topics=3))
    routes.register(header(), body("t", "u", "v"), "x", 0)
    routes.register(header(), body("t", "u", "v", version=2, queues=5), "x", 0)
    with pytest.raises(BadRequest, match="4 topics of one broker"):
        routes.register(header(), body("w", version=3), "x", 0)
    assert routes.data_version("a:1") == DataVersion(2, 1)
    routes.delete_topic("u")
    routes.register(header(), body("w", version=3), "x", 0)
    assert link_count(routes) == ["t", "v", "w"]


def test_kinds_of_queues_are_bounded() -> None:
    routes = RouteTable(limits=Limits(layouts=3))
    for version in range(1, 20):  # the same ones count once
        routes.register(header(), body("t", "u", version=version, queues=1 + version % 2), "x", 0)
    table = {f"t{queues}": TopicConfig("t", queues, queues) for queues in range(4)}
    with pytest.raises(BadRequest, match="kinds of queues"):
        routes.register(
            header(), Registration(DataVersion(99, 1), routes.layouts(table), []), "x", 0
        )


def test_the_topics_of_all_brokers_are_bounded() -> None:
    routes = RouteTable(limits=Limits(topic_bytes=2_300))
    several(routes, 3, broker_id=0)
    with pytest.raises(BadRequest, match="bytes for the topics of all brokers"):
        routes.register(header("broker-0", 0, "a:0"), body("long" * 125, version=2), "x0", 0, "h0")
    routes.register(header("broker-0", 0, "a:0"), body("u", version=2), "x0", 0, "h0")
    with pytest.raises(BadRequest, match="bytes for the topics of all brokers"):
        several(routes, 4, broker_id=0)
    routes.channel_closed("x1")
    several(routes, 4, broker_id=0, name="broker-3", address="a:3", channel="x3", host="h3")
    for channel in ("x0", "x2", "x3"):
        routes.channel_closed(channel)
    assert routes._topic_bytes == 0


def test_a_large_cluster_is_taken() -> None:
    routes = RouteTable()
    table = {f"a-topic-of-a-large-cluster-{number:06}": TopicConfig("t", 8, 8)
             for number in range(100_000)}  # fmt: skip
    layouts = routes.layouts(table)
    for number in range(90):
        broker = header(f"broker-{number}", address=f"a:{number}")
        routes.register(broker, Registration(DataVersion(1, 1), layouts, []), number, 0, "h")
    assert len(known_to(routes)) == 90


# --------------------------------------------------------------------------- tables stay in step

names = st.sampled_from(["broker-a", "broker-b"])
addrs = st.sampled_from(["h:1", "h:2", "h:3"])
topic_sets = st.sets(st.sampled_from(["t", "u"])).map(sorted)


class RouteMachine(RuleBasedStateMachine):
    """Any order of events leaves tables that agree, and answers that are what they should be."""

    def __init__(self) -> None:
        super().__init__()
        self.routes = RouteTable(expiry_ms=100)
        self.now_ms = 0

    @rule(
        name=names,
        address=addrs,
        broker_id=st.integers(0, 1),
        cluster=st.sampled_from(["c", "d"]),
        topics=topic_sets,
        version=st.integers(1, 3),
        filters=st.sampled_from([(), ("f:1",)]),
        channel=st.integers(0, 2),
    )
    def register(
        self,
        name: str,
        address: str,
        broker_id: int,
        cluster: str,
        topics: list[str],
        version: int,
        filters: tuple[str, ...],
        channel: int,
    ) -> None:
        content = body(*topics, version=version, queues=version, filters=filters)
        self.routes.register(
            header(name, broker_id, address, cluster), content, channel, self.now_ms
        )
        assert self.routes.data_version(address) == DataVersion(version, 1)

    @rule(name=names, address=addrs, broker_id=st.integers(0, 1))
    def unregister(self, name: str, address: str, broker_id: int) -> None:
        self.routes.unregister(BrokerIdentity(name, address, "c", broker_id))

    @rule(channel=st.integers(0, 2))
    def close(self, channel: int) -> None:
        self.routes.channel_closed(channel)
        assert self.routes.channel_closed(channel) == []

    @rule(passed_ms=st.integers(0, 80))
    def expire(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        self.routes.expire(self.now_ms)
        assert self.routes.expire(self.now_ms) == []

    @rule(name=names, wipe=st.booleans())
    def permission(self, name: str, wipe: bool) -> None:
        self.routes.wipe_write_perm(name) if wipe else self.routes.add_write_perm(name)

    @rule(topic=st.sampled_from(["t", "u"]), cluster=st.sampled_from([None, "c", "d"]))
    def delete(self, topic: str, cluster: str | None) -> None:
        self.routes.delete_topic(topic, cluster)

    @invariant()
    def tables_agree(self) -> None:
        info = self.routes.clusters()
        counted = sum(
            sum(map(len, broker.topics))
            + ENTRY_BYTES * len(broker.topics)
            + LAYOUT_BYTES * broker.layouts
            for broker in self.routes._brokers.values()
        )
        assert self.routes._topic_bytes == counted
        held = {address for over in self.routes._over.values() for address in over}
        assert held == set(self.routes._live)
        assert sum(self.routes._hosts.values()) == len(held)
        in_clusters = {name for found in info.cluster_addr_table.values() for name in found}
        assert in_clusters == set(info.broker_addr_table)
        for broker in info.broker_addr_table.values():
            assert broker.broker_addrs
            assert len(set(broker.broker_addrs.values())) == len(broker.broker_addrs)
            for address in broker.broker_addrs.values():
                assert self.routes.data_version(address) is not None
        for topic in link_count(self.routes):
            found = parse_json(self.routes.pick(topic) or b"", TopicRoute)
            assert found.queue_datas
            assert {data.broker_name for data in found.queue_datas} <= set(info.broker_addr_table)

    @invariant()
    def answers_are_canonical(self) -> None:
        for topic in ("t", "u"):
            for order in (None, 'broker-a:4;"'):
                text = self.routes.pick(topic, order)
                if text is not None:
                    found = parse_json(text, TopicRoute)
                    assert text == encode_json(found)
                    assert found.order_topic_conf == order
                    names = [broker.broker_name for broker in found.broker_datas]
                    assert names == sorted(names)
                    assert names == [queues.broker_name for queues in found.queue_datas]


TestRoutes = RouteMachine.TestCase
