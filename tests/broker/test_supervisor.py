"""A broker that begins anew in its process: promoted, or with its log cut to its master's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from cometmq.broker.app import Broker
from cometmq.broker.config import BrokerRole, load
from cometmq.broker.replication.roles import role_path
from cometmq.broker.supervisor import Supervisor
from cometmq.core.clock import SystemClock
from cometmq.core.errors import StoreCorrupt
from cometmq.protocol.codes import RequestCode
from cometmq.replication.slave import LogsDiffer
from cometmq.store.files import PosixFiles
from tests.broker.replicated import Group, group, hurry, slave_of
from tests.broker.serving import SMALL, BrokerClient, RunningBroker
from tests.replication.pairs import assert_same, until


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is repeated every few seconds follows at once."""
    hurry(monkeypatch)


@dataclass
class Living(RunningBroker):
    """A broker with its lives; ``broker`` is the one of now."""

    lives: Supervisor

    def __init__(self, lives: Supervisor) -> None:
        self.lives = lives
        self._clients = []

    @property
    def broker(self) -> Broker:  # type: ignore[override]
        return self.lives.broker

    async def stop(self) -> None:
        self.close_clients()
        await self.lives.stop()


@asynccontextmanager
async def living(made: Group, name: str, **settings: str) -> AsyncIterator[Living]:
    """The broker in the directory ``name``, with its lives."""
    values = {
        "storePathRootDir": str(made.root / name),
        "listenPort": "0",
        "namesrvAddr": made.namesrv,
        **SMALL,
        **settings,
    }
    config, store_config, _ = load(values)
    running = Living(Supervisor(config, store_config, SystemClock()))
    await running.lives.start()
    try:
        yield running
    finally:
        await running.stop()


SLAVE = {"brokerRole": "SLAVE", "brokerId": "1"}


async def until_same(one: RunningBroker, other: RunningBroker) -> None:
    def same() -> bool:
        ends = {one.broker.store.written_offset, other.broker.store.written_offset}
        return len(ends) == 1 and other.broker.store.dispatched_offset in ends

    await until(same)


async def bodies(client: BrokerClient, count: int) -> list[str]:
    found: list[str] = []
    while len(found) < count:
        head, records = await client.pull(len(found))
        assert head.code == 0, head
        found += [record.body.decode() for record in records]
    return found


async def test_a_slave_is_promoted_and_the_old_master_rejoins_it(tmp_path: Path) -> None:
    async with group(tmp_path) as made:
        async with living(made, "a") as old:
            client = await old.connect()
            for number in range(20):
                assert (await client.send(b"both %d" % number)).code == 0
            async with living(made, "b", **SLAVE) as slave:
                await until_same(old, slave)
            # Its master goes on alone for a moment.
            for number in range(5):
                assert (await client.send(b"lost %d" % number)).code == 0
        async with living(made, "b", **SLAVE) as new:
            port, before = new.broker.port, new.broker
            new.lives.promote(BrokerRole.SYNC_MASTER)
            await until(lambda: new.broker is not before and len(new.broker.registered) == 1)
            assert new.broker.port == port
            assert new.broker.config.broker_role is BrokerRole.SYNC_MASTER
            client = await new.connect()
            for number in range(40):
                await client.send(b"new %d" % number)
            async with living(made, "a", **SLAVE, haRejoin="truncate") as rejoined:
                await until_same(new, rejoined)
                assert_same(new.broker.store, rejoined.broker.store)
                reader = await rejoined.connect()
                expected = [f"both {n}" for n in range(20)] + [f"new {n}" for n in range(40)]
                assert await bodies(reader, 60) == expected
                # Sends wait for it, as for any slave.
                assert (await client.send(b"once more")).code == 0
        kept = b"".join(path.read_bytes() for path in (tmp_path / "a/cometmq-set-aside").iterdir())
        assert all(b"lost %d" % number in kept for number in range(5))
        # A later start with the settings of before leaves it a master.
        async with living(made, "b", **SLAVE) as again:
            assert again.broker.config.broker_role is BrokerRole.SYNC_MASTER
            assert again.broker.config.broker_id == 0
        async with living(made, "b", brokerRole="SYNC_MASTER") as settled:
            assert settled.broker.config.broker_id == 0
    assert not PosixFiles().exists(role_path(str(tmp_path / "b")))


async def test_without_being_told_to_a_slave_cuts_nothing(tmp_path: Path) -> None:
    async with group(tmp_path) as made:
        await parted(made)
        async with living(made, "a") as master, living(made, "b", **SLAVE) as slave:
            await until(lambda: isinstance(slave_of(slave).problem, LogsDiffer))
            assert not (tmp_path / "b" / "cometmq-set-aside").exists()
            admin = await slave.connect()
            # Told to while it runs, it does so when it asks again.
            head, _ = await admin.ask(RequestCode.UPDATE_BROKER_CONFIG, b"haRejoin=truncate")
            assert head.code == 0
            await until_same(master, slave)
            assert_same(master.broker.store, slave.broker.store)


async def parted(made: Group) -> None:
    """Two stores whose logs differ from their third record on."""
    async with living(made, "a") as one:
        client = await one.connect()
        for body in (b"0", b"1"):
            await client.send(body)
        async with living(made, "b", **SLAVE) as copy:
            await until_same(one, copy)
        await client.send(b"only here")
    async with living(made, "b") as other:
        client = await other.connect()
        await client.send(b"only there, and longer")


async def test_logs_without_a_common_record_are_not_cut(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The master is another cluster's, or lost its disk."""
    async with group(tmp_path) as made:
        for name, body in (("a", b"one"), ("b", b"another")):
            async with living(made, name) as each:
                await (await each.connect()).send(body)
        async with living(made, "a"), living(made, "b", **SLAVE, haRejoin="truncate") as slave:
            await until(lambda: "rejoin_refused" in caplog.text)
            assert slave.broker.store.written_offset > 0
            assert not (tmp_path / "b" / "cometmq-set-aside").exists()


async def test_a_cut_that_cannot_be_is_tried_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    def no(*_args: object) -> None:
        raise StoreCorrupt("log", 7, "bad")

    monkeypatch.setattr("cometmq.broker.supervisor.truncate_diverged_log", no)
    async with group(tmp_path) as made:
        await parted(made)
        async with living(made, "a"), living(made, "b", **SLAVE, haRejoin="truncate") as slave:
            first = slave.broker
            await until(lambda: "log_not_cut" in caplog.text and slave.broker is not first)
            second = slave.broker
            await until(lambda: isinstance(slave_of(slave).problem, LogsDiffer))
            await until(lambda: caplog.text.count("master_connected") > 6)
            assert slave.broker is second


@pytest.mark.parametrize("error", [OSError(28, "no space"), ValueError("no space")])
async def test_who_cannot_begin_anew_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async with group(tmp_path) as made, living(made, "a", **SLAVE) as slave:
        failed: list[int] = []
        slave.lives.on_failed = lambda: failed.append(1)

        def no(*_args: object) -> None:
            raise error

        monkeypatch.setattr("cometmq.broker.supervisor.keep_role", no)
        slave.lives.promote(BrokerRole.ASYNC_MASTER)
        await until(lambda: bool(failed))
        with pytest.raises(type(error), match="no space"):
            slave.lives.raise_failure()


async def test_a_promoted_slave_sets_consumers_back_to_its_end(tmp_path: Path) -> None:
    """They were further than what it had copied."""
    async with group(tmp_path) as made, living(made, "b", **SLAVE) as slave:
        store = slave.broker.store
        slave.broker.consumers.offsets.commit("g", "t", 1, 50)
        store.queue("t", 1)
        before = slave.broker
        slave.lives.promote(BrokerRole.ASYNC_MASTER)
        await until(lambda: slave.broker is not before and bool(slave.broker.registered))
        assert slave.broker.consumers.offsets.query("g", "t", 1) == 0


async def test_a_slave_notes_nothing_of_transactions(tmp_path: Path) -> None:
    async with group(tmp_path) as made:
        async with living(made, "a") as master:
            client = await master.connect()
            half = "UNIQ_KEY\x01U1\x02TRAN_MSG\x01true\x02PGROUP\x01producers"
            assert (await client.send(b"half", i=half, f="4")).code == 0
            async with living(made, "b", **SLAVE) as slave:
                await until_same(master, slave)
                await until(lambda: slave.broker.replication.part.where() != "")
        assert not (tmp_path / "b/config/transactions.json").exists()
        async with living(made, "b", **SLAVE) as slave:
            before = slave.broker
            slave.lives.promote(BrokerRole.ASYNC_MASTER)
            await until(lambda: slave.broker is not before and bool(slave.broker.registered))
            assert len(slave.broker.transactions.open.index) == 1


async def test_no_change_while_it_stops(tmp_path: Path) -> None:
    async with group(tmp_path) as made:
        async with living(made, "a", **SLAVE) as slave:
            pass
        slave.lives.promote(BrokerRole.ASYNC_MASTER)
        assert slave.broker.config.is_slave
