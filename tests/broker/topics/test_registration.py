"""A broker's registration with real name servers on loopback; heartbeats by a clock that jumps."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.topics import registration as r
from cometmq.broker.topics.registration import BrokerPlace, Registration
from cometmq.core.clock import SystemClock, VirtualClock
from cometmq.net.client import Remoting
from cometmq.net.router import Handler
from cometmq.net.tasks import Tasks
from cometmq.protocol import headers as h
from cometmq.protocol.bodies import DataVersion, TopicConfig, TopicConfigTable
from cometmq.protocol.codes import RequestCode as Code
from cometmq.protocol.frame import Reply
from cometmq.protocol.registerbody import register_body_pieces
from cometmq.protocol.registry import Side
from tests.namesrv.serving import Served, name_server, topics, until
from tests.net.serving import serving

PLACE = BrokerPlace("c", "broker-a", 0, "127.0.0.1:10911", "127.0.0.1:10912")


class Broker:
    """A registering broker: its topics can be changed, its clock jumped."""

    def __init__(self, *name_servers: str, filter_servers: tuple[str, ...] = ()) -> None:
        self.clock = VirtualClock()
        self.tasks = Tasks()
        self.remoting = Remoting(clock=SystemClock(), tasks=self.tasks)
        self.table = topics("t")
        self.tables: dict[DataVersion, set[str]] = {}
        self.asked: list[DataVersion | None] = []
        self.order: Mapping[str, str] = {}
        self.registration = Registration(
            name_servers,
            remoting=self.remoting,
            clock=self.clock,
            tasks=self.tasks,
            filter_servers=filter_servers,
            on_order_topics=self.order_topics,
        )

    @property
    def data_version(self) -> DataVersion:
        return self.table.data_version

    def registered(self, since: DataVersion | None = None) -> Mapping[str, TopicConfig]:
        """All topics, or those whose name does not stand in the table of ``since``."""
        self.asked.append(since)
        known = set() if since is None else self.tables[since]
        self.tables[self.table.data_version] = set(self.table.topic_config_table)
        return {
            name: config
            for name, config in self.table.topic_config_table.items()
            if name not in known
        }

    def order_topics(self, table: Mapping[str, str]) -> None:
        self.order = table

    async def change(self, table: TopicConfigTable) -> None:
        """Change the topics and let the rest between two registrations pass."""
        self.table = table
        self.registration.changed()
        await self.pass_time(r.REST_MAX_MS)

    async def pass_time(self, duration_ms: int) -> None:
        """Let time pass once everybody sleeps who is going to."""
        for _ in range(5):
            await asyncio.sleep(0)
        self.clock.advance(duration_ms)
        for _ in range(5):
            await asyncio.sleep(0)

    async def close(self) -> None:
        await self.registration.stop()
        await self.remoting.close()
        await self.tasks.close()


@pytest.fixture
async def first(tmp_path: Path) -> AsyncIterator[Served]:
    async with name_server(tmp_path / "first") as served:
        yield served


@pytest.fixture
async def second(tmp_path: Path) -> AsyncIterator[Served]:
    async with name_server(tmp_path / "second") as served:
        yield served


def version(served: Served) -> DataVersion | None:
    return served.server.routes.data_version(PLACE.broker_addr)


async def refused_address() -> str:
    """An address on which nobody listens."""
    async with serving({}, Side.NAMESRV) as gone:
        return f"127.0.0.1:{gone.port}"


async def test_a_broker_registers_with_every_name_server(first: Served, second: Served) -> None:
    broker = Broker(first.address, f" {second.address} ", first.address, filter_servers=("f:1",))
    await broker.registration.start(PLACE, broker)
    await until(lambda: len(broker.registration.registered_with) == 2)
    for served in (first, second):
        found = json.loads(served.server.routes.pick("t") or b"{}")
        assert found["brokerDatas"] == [
            {"brokerAddrs": {"0": "127.0.0.1:10911"}, "brokerName": "broker-a", "cluster": "c"}
        ]
        assert found["filterServerTable"] == {"127.0.0.1:10911": ["f:1"]}
    await broker.close()
    assert version(first) is None
    assert version(second) is None
    assert broker.registration.registered_with == []


async def test_a_broker_that_moved_is_registered_there_alone(first: Served, second: Served) -> None:
    broker = Broker(first.address, second.address)
    await broker.registration.start(PLACE, broker)
    await until(lambda: len(broker.registration.registered_with) == 2)
    moved = replace(PLACE, broker_addr="127.0.0.1:10999")
    await broker.registration.move(moved)
    for served in (first, second):
        routes = served.server.routes
        found = json.loads(routes.pick("t") or b"{}")
        assert found["brokerDatas"][0]["brokerAddrs"] == {"0": "127.0.0.1:10999"}
        assert version(served) is None
        # Who was there before says goodbye late: a moment later it is as it should be.
        routes.unregister(h.BrokerIdentity("broker-a", "127.0.0.1:10999", "c", 0))
        assert routes.pick("t") is None
    await broker.pass_time(r.MOVED_HEARTBEAT_MS)
    await broker.pass_time(r.MOVED_HEARTBEAT_MS)
    await until(lambda: first.server.routes.pick("t") is not None)
    await until(lambda: second.server.routes.pick("t") is not None)
    await broker.close()
    assert first.server.routes.pick("t") is None


async def test_changes_of_one_rest_leave_together(first: Served) -> None:
    seen: list[int] = []
    cost_ms = r.REST_MAX_MS // 2

    class Watch:
        def before(self, peer: Any, request: Any) -> None:
            if request.code == Code.REGISTER_BROKER:
                broker.clock.advance(cost_ms)
                seen.append(request.code)

        def after(self, peer: Any, request: Any, code: int) -> None:
            pass

    broker = Broker(first.address)
    await broker.registration.start(PLACE, broker)
    first.server.router.hooks.append(Watch())
    for number in range(2, 12):
        broker.table = topics(*(f"t{n}" for n in range(number)), version=number)
        broker.registration.changed()
    (server,) = broker.registration._servers
    await until(lambda: server.version == DataVersion(11, 1))
    assert seen == [Code.REGISTER_BROKER]
    for number in (11, 12):
        broker.table = topics(*(f"t{n}" for n in range(number)), version=number + 1)
        broker.registration.changed()
    await broker.pass_time(cost_ms - 1)
    assert seen == [Code.REGISTER_BROKER]
    await broker.pass_time(1)
    await until(lambda: version(first) == DataVersion(13, 1))
    assert seen == [Code.REGISTER_BROKER] * 2
    assert first.server.routes.pick("t11") is not None
    await broker.change(topics("t", "late", version=14))
    await until(lambda: first.server.routes.pick("late") is not None)
    await broker.close()


async def test_an_unchanged_broker_only_asks(first: Served) -> None:
    broker = Broker(first.address)
    await broker.registration.start(PLACE, broker)
    seen: list[int] = []

    class Watch:
        def before(self, peer: Any, request: Any) -> None:
            pass

        def after(self, peer: Any, request: Any, code: int) -> None:
            seen.append(request.code)

    first.server.router.hooks.append(Watch())
    for beats in (1, 2, 3):
        for _ in range(r.HEARTBEAT_MS // 1000):
            await broker.pass_time(1000)
        await until(lambda beats=beats: len(seen) == beats)  # type: ignore[misc]
    assert seen == [Code.QUERY_DATA_VERSION] * 3
    await broker.close()


async def test_a_name_server_that_lost_the_topics_gets_them_again(first: Served) -> None:
    broker = Broker(first.address)
    await broker.registration.start(PLACE, broker)
    first.server.routes.unregister(h.BrokerIdentity("broker-a", PLACE.broker_addr, "c", 0))
    assert version(first) is None
    for _ in range(r.HEARTBEAT_MS // 1000):
        await broker.pass_time(1000)
    await until(lambda: version(first) is not None)
    await broker.close()


async def test_a_fault_of_the_broker_itself_ends_no_registration(
    first: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures, pieces = [ValueError("a bug")], register_body_pieces

    def failing(*args: Any, **options: Any) -> Iterator[bytes]:
        if failures:
            raise failures.pop()
        return pieces(*args, **options)

    monkeypatch.setattr(r, "register_body_pieces", failing)
    broker = Broker(first.address)
    async with asyncio.timeout(5):
        await broker.registration.start(PLACE, broker)
    assert broker.registration.registered_with == []
    for _ in range(r.RETRY_MS // 1000 + 1):
        await broker.pass_time(1000)
    await until(lambda: version(first) is not None)
    await broker.close()


async def test_a_dead_name_server_delays_nobody(first: Served) -> None:
    silent = socket.create_server(("127.0.0.1", 0))  # connections open, nobody answers
    hanging = f"127.0.0.1:{silent.getsockname()[1]}"
    broker = Broker(hanging, await refused_address(), first.address)
    async with asyncio.timeout(2):
        await broker.registration.start(PLACE, broker)
    assert broker.registration.registered_with == [first.address]
    await broker.change(topics("t", "late", version=2))
    async with asyncio.timeout(2):
        await until(lambda: first.server.routes.pick("late") is not None)
    async with asyncio.timeout(r.UNREGISTER_TIMEOUT_MS / 1000 + 2):
        await broker.close()
    silent.close()


async def test_nobody_waits_for_a_name_server_that_was_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(r, "ANNOUNCE_TIMEOUT_MS", 60_000)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        gone = await refused_address()
        broker = Broker(gone, f"127.0.0.1:{silent.getsockname()[1]}")
        start = asyncio.ensure_future(broker.registration.start(PLACE, broker))
        await until(lambda: broker.registration._servers[0].tried)
        assert not start.done()
        change = asyncio.ensure_future(broker.registration.announced())
        await asyncio.sleep(0)
        broker.registration.use([gone])
        async with asyncio.timeout(5):
            await start
            await change
        await broker.close()


async def test_a_start_without_any_name_server_alive_goes_on(tmp_path: Path) -> None:
    broker = Broker(await refused_address(), await refused_address())
    async with asyncio.timeout(5):
        await broker.registration.start(PLACE, broker)
    assert broker.registration.registered_with == []
    await broker.close()


async def test_a_name_server_that_comes_up_late_is_found(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    address = await refused_address()
    broker = Broker(address)
    await broker.registration.start(PLACE, broker)
    for _ in range(2 * r.RETRY_MS // 1000):
        await broker.pass_time(1000)
    # One line while it stays away, not one an attempt.
    assert sum("name server failed" in record.message for record in caplog.records) == 1
    async with name_server(tmp_path, port=int(address.rpartition(":")[2])) as late:
        await until_passing(broker, lambda: version(late) is not None)
        await until(lambda: broker.registration.registered_with == [address])
        await broker.close()


async def until_passing(broker: Broker, condition: Any) -> None:
    """Let seconds pass on the broker's clock until a condition holds."""
    async with asyncio.timeout(10):
        while not condition():
            await broker.pass_time(1000)
            await asyncio.sleep(0.001)


async def test_a_restarted_name_server_is_told_again_soon(tmp_path: Path) -> None:
    async with name_server(tmp_path) as before:
        broker = Broker(before.address)
        await broker.registration.start(PLACE, broker)
        await before.server.stop()
        await until(lambda: broker.registration.registered_with == [])
    async with name_server(tmp_path, port=before.port) as after:
        started_ms = broker.clock.monotonic_ms()
        await until_passing(broker, lambda: version(after) is not None)
        assert broker.clock.monotonic_ms() - started_ms < r.HEARTBEAT_MS
        await broker.close()


async def test_order_topics_come_back(first: Served) -> None:
    await first.server.kv.put("ORDER_TOPIC_CONFIG", "t", "broker-a:4")
    broker = Broker(first.address)
    await broker.registration.start(PLACE, broker)
    assert broker.order == {"t": "broker-a:4"}
    await broker.close()


async def test_a_large_table_leaves_compressed(
    first: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(r, "PLAIN_BODY_MAX_BYTES", 1000)
    broker = Broker(first.address)
    broker.table = topics(*(f"topic-{number}" for number in range(500)))
    compressed: list[Any] = []

    class Watch:
        def before(self, peer: Any, request: Any) -> None:
            compressed.append(request.header.compressed)

        def after(self, peer: Any, request: Any, code: int) -> None:
            pass

    first.server.router.hooks.append(Watch())
    await broker.registration.start(PLACE, broker)
    assert compressed == ["true"]
    (names,) = first.server.routes.topics()
    assert len(names) == 500
    await broker.close()


async def test_refusals_are_logged_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    codes: list[int] = []

    async def refuse(peer: Any, request: Any) -> Reply:
        codes.append(request.code)
        busy = len(codes) == 1 or request.code == Code.UNREGISTER_BROKER
        return Reply(1, remark="not now") if busy else Reply()

    handlers: dict[int, Handler] = {Code.REGISTER_BROKER: refuse, Code.UNREGISTER_BROKER: refuse}
    async with serving(handlers, Side.NAMESRV) as served:
        broker = Broker(f"127.0.0.1:{served.port}")
        await broker.registration.start(PLACE, broker)
        assert "not now" in caplog.text
        assert broker.registration.registered_with == []
        await until_passing(broker, lambda: len(codes) == 2)
        await until(lambda: len(broker.registration.registered_with) == 1)
        # A name server that does not know code 322 is registered with again.
        await until_passing(broker, lambda: len(codes) == 3)
        assert set(codes) == {Code.REGISTER_BROKER}
        await broker.close()
    assert "not unregistered" in caplog.text


async def test_a_broker_without_name_servers_needs_none() -> None:
    broker = Broker()
    await broker.registration.start(PLACE, broker)
    broker.registration.changed()
    await broker.close()


async def test_a_broker_that_never_started_can_stop() -> None:
    broker = Broker("127.0.0.1:1")
    broker.registration.changed()
    await broker.close()


async def test_connections_of_others_do_not_matter(first: Served, second: Served) -> None:
    broker = Broker(first.address)
    await broker.registration.start(PLACE, broker)
    await broker.remoting.request(
        second.address, Code.GET_BROKER_CLUSTER_INFO, None, timeout_ms=999
    )
    await second.server.stop()
    await until(lambda: not broker.remoting.is_connected(second.address))
    assert broker.registration.registered_with == [first.address]
    await broker.close()


async def test_a_change_is_announced_when_all_reachable_name_servers_have_it(
    first: Served,
) -> None:
    broker = Broker(first.address, "127.0.0.1:1")
    await broker.registration.announced()  # before the start there is nobody to tell
    await broker.registration.start(PLACE, broker)
    broker.table = topics("t", "new", version=2)
    broker.registration.changed()
    async with asyncio.timeout(10):
        await broker.registration.announced()
    assert first.server.routes.pick("new") is not None
    await broker.close()


async def test_nobody_waits_for_a_silent_name_server_for_long(
    first: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(r, "ANNOUNCE_TIMEOUT_MS", 50)
    broker = Broker(first.address)
    await broker.registration.start(PLACE, broker)
    broker.table = topics("t", "new", version=2)  # and nobody is told of it
    await broker.registration.announced()
    assert "topics not announced in time version=2" in caplog.text
    await broker.close()


async def test_only_what_changed_is_registered_while_the_connection_lasts(tmp_path: Path) -> None:
    async with name_server(tmp_path) as before:
        broker = Broker(before.address)
        await broker.registration.start(PLACE, broker)
        await broker.change(topics("t", "u", version=2))
        await until(lambda: version(before) == DataVersion(2, 1))
        assert broker.asked == [None, DataVersion(1, 1)]
        assert {name for some in before.server.routes.topics() for name in some} == {"t", "u"}
        await before.server.stop()
        await until(lambda: broker.registration.registered_with == [])
    async with name_server(tmp_path, port=before.port) as after:
        await until_passing(broker, lambda: version(after) is not None)
        assert broker.asked[-1] is None
        assert {name for some in after.server.routes.topics() for name in some} == {"t", "u"}
        # A name server that lost what it had gets everything too.
        after.server.routes.unregister(h.BrokerIdentity("broker-a", PLACE.broker_addr, "c", 0))
        await until_passing(broker, lambda: version(after) is not None)
        assert broker.asked[-1] is None
        await broker.close()


async def test_a_change_reaches_a_name_server_that_forgot_the_rest_with_all_of_it(
    first: Served,
) -> None:
    """Forgotten with another connection: of this one's end the broker would hear."""
    broker = Broker(first.address)
    await broker.registration.start(PLACE, broker)
    first.server.routes.unregister(h.BrokerIdentity("broker-a", PLACE.broker_addr, "c", 0))
    await broker.change(topics("t", "new", version=2))
    await until(lambda: version(first) == DataVersion(2, 1))
    assert first.server.routes.pick("t") is not None
    assert first.server.routes.pick("new") is not None
    await broker.close()


async def test_a_connection_that_breaks_while_registering_is_no_registration(
    first: Served,
) -> None:
    broker = Broker(first.address)

    class Cut:
        """Tells of a lost connection in the middle of the first registration with changes."""

        cuts = 0

        def before(self, peer: Any, request: Any) -> None:
            if request.code == Code.REGISTER_BROKER and self.cuts == 0 and len(broker.asked) == 2:
                self.cuts += 1
                broker.registration._connection_lost(first.address)

        def after(self, peer: Any, request: Any, code: int) -> None:
            pass

    first.server.router.hooks.append(Cut())
    await broker.registration.start(PLACE, broker)
    await broker.change(topics("t", "u", version=2))
    await until_passing(broker, lambda: len(broker.asked) == 3)
    await until(lambda: broker.registration.registered_with == [first.address])
    assert broker.asked == [None, DataVersion(1, 1), None]
    await broker.close()
