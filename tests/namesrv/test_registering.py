"""Brokers that register, change and go, over a socket; also while a long registration is read."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cometmq.core.clock import SystemClock, VirtualClock
from cometmq.namesrv import handlers
from cometmq.protocol import headers as h
from cometmq.protocol.bodies import DataVersion, TopicConfigTable
from cometmq.protocol.codes import RequestCode as Code
from cometmq.protocol.codes import ResponseCode
from tests.namesrv.serving import BROKER, Asker, Served, name_server, topics, until


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with name_server(tmp_path) as served:
        yield served


@pytest.fixture
def asker(served: Served) -> Asker:
    return served.asker()


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
    identity = BROKER
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
    done = await asker.ask(Code.UNREGISTER_BROKER, BROKER)
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


async def test_what_is_over_a_bound_is_refused_and_costs_nobody_else(served: Served) -> None:
    stranger, broker = served.asker(), served.asker()
    await broker.register(topics("t"), name="broker-b", address="b:1")
    for compressed in (True, False):
        long = await stranger.register(topics("t" * 600), compressed=compressed)
        assert long.code == 1
        assert "has 600 characters; this name server takes at most 512" in (long.remark or "")
    for number in range(64):
        address = f"a:{number}"
        assert (await stranger.register(topics(), name=address, address=address)).code == 0
    many = await stranger.register(topics(), name="late", address="late:1")
    assert many.code == 1
    assert "65 brokers on one connection" in (many.remark or "")
    info = json.loads((await broker.ask(Code.GET_BROKER_CLUSTER_INFO)).body)
    assert len(info["brokerAddrTable"]) == 65
    await stranger.close()
    await until(lambda: served.server.routes.data_version("a:1") is None)
    info = json.loads((await broker.ask(Code.GET_BROKER_CLUSTER_INFO)).body)
    assert list(info["brokerAddrTable"]) == ["broker-b"]


async def test_a_registration_of_too_many_topics_is_not_read_to_its_end(asker: Asker) -> None:
    names = [f"t{number}" for number in range(260_000)]
    answer = await asker.register(topics(*names), compressed=True)
    assert answer.code == 1
    assert "topics of one broker; this name server takes at most 250000" in (answer.remark or "")
    assert (await asker.register(topics("t"))).code == 0


async def test_brokers_get_the_latest_order_configuration(asker: Asker) -> None:
    for text in ("broker-a:4", "broker-a:8"):
        await asker.ask(Code.PUT_KV_CONFIG, h.PutKvConfig("ORDER_TOPIC_CONFIG", "t", text))
        for _ in range(2):
            answer = await asker.register(topics("t"))
            assert json.loads(answer.body) == {"table": {"t": text}}
    await asker.ask(Code.DELETE_KV_CONFIG, h.KvKey("ORDER_TOPIC_CONFIG", "t"))
    assert (await asker.register(topics("t"))).body == b""


async def test_many_topics_are_listed_in_order(served: Served) -> None:
    asker = served.asker()
    names = [f"topic-{number}" for number in range(5_000)]
    await asker.register(topics(*names[:3_000]))
    await asker.register(topics(*names[2_000:]), name="broker-b", address="b:1")
    listed = await asker.ask(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    assert json.loads(listed.body) == {"topicList": sorted(names)}


# ------------------------------------------------------------------- in the middle of a long one

MANY = 2_000


class GatedClock(VirtualClock):
    """Every piece of long work takes a turn, and stands still at one of them until the gate
    opens."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.pauses_left = 0

    def monotonic_ns(self) -> int:
        self._monotonic_ms += 3
        return super().monotonic_ns()

    async def sleep_ms(self, duration_ms: float) -> None:
        if duration_ms > 0:
            await super().sleep_ms(duration_ms)
            return
        self.pauses_left -= 1
        if self.pauses_left == 0:
            await self.gate.wait()
        await asyncio.sleep(0)


class Gated:
    """A name server whose long work stands still from :meth:`begin` to :meth:`go_on`."""

    def __init__(self, served: Served, clock: GatedClock) -> None:
        self.served = served
        self.routes = served.server.routes
        self._clock = clock
        self._running = 0

    async def begin(
        self, asker: Asker, table: TopicConfigTable, *, pauses: int = 1
    ) -> asyncio.Task[int]:
        """Start a registration and let it come to one of its pauses."""
        self._clock.pauses_left = pauses
        task = asyncio.create_task(register(asker, table))
        await until(lambda: self._clock.pauses_left == 0)
        self._running = len(self.served.server._tasks)
        return task

    async def others_wait(self, count: int) -> None:
        """Wait until so many requests have come since."""
        await until(lambda: len(self.served.server._tasks) == self._running + count)

    def go_on(self) -> None:
        self._clock.gate.set()


async def register(asker: Asker, table: TopicConfigTable) -> int:
    return (await asker.register(table, compressed=True)).code


def many(version: int, queues: int = 4, first: int = 0) -> TopicConfigTable:
    return topics(*(f"t{number}" for number in range(first, MANY)), version=version, queues=queues)


@pytest.fixture
async def gated(tmp_path: Path) -> AsyncIterator[Gated]:
    clock = GatedClock()
    async with name_server(tmp_path, clock=clock) as served:
        yield Gated(served, clock)
        clock.gate.set()


async def queues_of(asker: Asker, topic: str) -> int:
    found = await asker.ask(Code.GET_ROUTEINFO_BY_TOPIC, h.Topic(topic))
    return 0 if found.code else int(json.loads(found.body)["queueDatas"][0]["readQueueNums"])


async def test_routes_are_old_until_a_registration_is_wholly_read(gated: Gated) -> None:
    broker, client = gated.served.asker(), gated.served.asker()
    await broker.register(topics("t0", f"t{MANY - 1}", queues=2))
    registering = await gated.begin(broker, many(2))
    assert [await queues_of(client, topic) for topic in ("t0", f"t{MANY - 1}", "t5")] == [2, 2, 0]
    gated.go_on()
    seen = []
    while not registering.done():
        seen.append((await queues_of(client, "t0"), await queues_of(client, f"t{MANY - 1}")))
    assert await registering == 0
    assert (4, 2) not in seen
    assert await queues_of(client, "t5") == 4


async def test_who_unregisters_while_registering_is_gone(gated: Gated) -> None:
    broker = gated.served.asker()
    registering = await gated.begin(broker, many(1))
    leaving = asyncio.create_task(broker.ask(Code.UNREGISTER_BROKER, BROKER))
    await gated.others_wait(1)
    gated.go_on()
    assert await registering == 0
    assert (await leaving).code == 0
    assert gated.routes.data_version("a:1") is None
    assert await queues_of(broker, "t5") == 0


async def test_a_later_registration_counts_later(gated: Gated) -> None:
    broker, again = gated.served.asker(), gated.served.asker()
    registering = await gated.begin(broker, many(1))
    late = asyncio.create_task(register(again, topics("t5", "late", version=2, queues=8)))
    await gated.others_wait(1)
    assert gated.routes.data_version("a:1") is None
    gated.go_on()
    assert [await registering, await late] == [0, 0]
    assert gated.routes.data_version("a:1") == DataVersion(2, 1)
    found = [await queues_of(broker, topic) for topic in ("t0", "t5", "late")]
    assert found == [4, 8, 8]


async def test_a_connection_that_closes_while_registering_registers_nothing(gated: Gated) -> None:
    broker, client = gated.served.asker(), gated.served.asker()
    registering = await gated.begin(broker, many(1))
    registering.cancel()
    await broker.close()
    await client.ask(Code.GET_BROKER_CLUSTER_INFO)  # its end was seen
    gated.go_on()
    last = topics("last", version=3)
    assert (await client.register(last, name="broker-b", address="b:1")).code == 0
    assert gated.routes.data_version("a:1") is None
    assert await queues_of(client, "t5") == 0


async def test_what_an_administrator_does_meanwhile_is_not_undone(gated: Gated) -> None:
    broker, admin = gated.served.asker(), gated.served.asker()
    registering = await gated.begin(broker, many(1))
    asked = [
        asyncio.create_task(admin.ask(Code.WIPE_WRITE_PERM_OF_BROKER, h.BrokerName("broker-a"))),
        asyncio.create_task(admin.ask(Code.DELETE_TOPIC_IN_NAMESRV, h.DeleteTopicInNamesrv("t5"))),
    ]
    await gated.others_wait(2)
    gated.go_on()
    assert await registering == 0
    assert [(await answer).ext for answer in asked] == [{"wipeTopicCount": str(MANY)}, {}]
    assert await queues_of(admin, "t5") == 0
    found = await admin.ask(Code.GET_ROUTEINFO_BY_TOPIC, h.Topic("t6"))
    assert json.loads(found.body)["queueDatas"][0]["perm"] == 4


async def test_topics_are_read_after_all_when_the_broker_was_forgotten_meanwhile(
    gated: Gated,
) -> None:
    before, after = gated.served.asker(), gated.served.asker()
    assert await register(before, many(1)) == 0
    # The second pause comes after its topics were passed over, because they are known.
    again = await gated.begin(after, many(1), pauses=2)
    await before.close()
    await until(lambda: gated.routes.data_version("a:1") is None)
    gated.go_on()
    assert await again == 0
    assert await queues_of(after, "t5") == 4


async def test_registrations_that_pile_up_are_refused(
    gated: Gated, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, other = gated.served.asker(), gated.served.asker()
    registering_ = await gated.begin(broker, many(1))
    monkeypatch.setattr(handlers, "MAX_WAITING_BYTES", 100)
    assert await register(other, topics("t5")) == ResponseCode.SYSTEM_BUSY
    gated.go_on()
    assert await registering_ == 0
    monkeypatch.setattr(handlers, "MAX_WAITING_BYTES", 100_000)
    assert await register(broker, many(2)) == 0


class Probe:
    """The most processor time that one turn of the loop took. Other programs do not count."""

    def __init__(self) -> None:
        self.longest_ms = 0.0

    async def run(self) -> None:
        while True:
            started_ns = time.thread_time_ns()
            await asyncio.sleep(0)
            self.longest_ms = max(self.longest_ms, (time.thread_time_ns() - started_ns) / 1e6)


@pytest.mark.parametrize("compressed", [True, False])
async def test_a_long_registration_leaves_the_loop_to_others(
    tmp_path: Path, compressed: bool
) -> None:
    names = [f"topic-{number:05d}" for number in range(30_000)]
    async with name_server(tmp_path, clock=SystemClock()) as served:
        broker = served.asker()
        for version in (1, 2, 2):  # new, changed, and once more
            table = topics(*names, version=version, queues=version)
            ready = broker.prepare(table, compressed=compressed)
            probe = Probe()
            probing = asyncio.create_task(probe.run())
            answer = await broker.ask(Code.REGISTER_BROKER, *ready)
            probing.cancel()
            assert answer.code == 0
            assert await queues_of(broker, names[-1]) == version
            assert probe.longest_ms < 30
