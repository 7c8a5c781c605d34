"""Promotion from outside: what cannot be, and a slave that never comes to be the master."""

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from cometmq.admin.api import Admin
from cometmq.admin.node import VIP_DISTANCE, lasting_port
from cometmq.admin.promotion import NotPromoted, promote
from cometmq.broker.app import Broker
from cometmq.broker.config import BrokerRole, load
from cometmq.client.client import Client
from cometmq.core.clock import SystemClock
from cometmq.core.errors import BrokerRefused
from cometmq.protocol.bodies import Promote
from tests.broker.replicated import group, hurry
from tests.broker.serving import SMALL, running_broker
from tests.broker.test_supervisor import SLAVE, living, until_same
from tests.replication.pairs import until


async def test_a_slave_becomes_the_master(tmp_path: Path) -> None:
    async with group(tmp_path) as made, living(made, "b", **SLAVE) as slave:
        address = f"127.0.0.1:{slave.broker.port}"
        async with Client(made.namesrv) as client:
            remoting, clock = client.session.remoting, client.session.clock
            outcome = await promote(remoting, clock, address, Promote(check=True))
            assert outcome.duration_ms == -1
            outcome = await promote(remoting, clock, address, Promote())
            assert outcome.promotion.begins
            assert 0 <= outcome.duration_ms < 20_000
        assert not slave.broker.config.is_slave


async def _copy_nothing(_address: str) -> None:
    """Stands for a copy of the master's tables that brings nothing new."""


@pytest.mark.parametrize("rejoins", [False, True])
async def test_a_topic_that_the_promoted_lacks_is_made_by_who_sends_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rejoins: bool
) -> None:
    """Its route is old, and name servers know no other: the old master is gone, or a slave."""
    hurry(monkeypatch)
    async with (
        group(tmp_path) as made,
        Client(made.namesrv) as client,
        living(made, "b", **SLAVE) as new,
    ):
        port = {"listenPort": str(lasting_port(VIP_DISTANCE))}
        async with living(made, "a", **port) as old:
            await client.send("known", b"one")
            await until_same(old, new)
            await until(lambda: new.broker.topics.table.get("known") is not None)
            # Longer than the master lives from here on.
            tables = new.broker.replication.part.tables  # type: ignore[union-attr]
            monkeypatch.setattr(tables, "copy", _copy_nothing)
            await Admin(client.session).create_topic("young", queues=8)
            assert len(await client.queues("young")) == 8
        before = new.broker
        new.lives.promote(BrokerRole.ASYNC_MASTER)
        await until(lambda: new.broker is not before and bool(new.broker.registered))
        assert new.broker.topics.table.get("young") is None
        async with AsyncExitStack() as stack:
            if rejoins:
                await stack.enter_async_context(living(made, "a", **port, **SLAVE))
            await client.send("young", b"two")
        assert new.broker.topics.table.get("young") is not None


async def test_a_slave_that_does_not_come_back_as_the_master(tmp_path: Path) -> None:
    async with running_broker(tmp_path, None, **SLAVE) as slave:
        address = f"127.0.0.1:{slave.broker.port}"
        async with Client("127.0.0.1:9") as client:
            remoting, clock = client.session.remoting, client.session.clock
            with pytest.raises(BrokerRefused, match="cannot restart its broker"):
                await promote(remoting, clock, address, Promote())
    asked: list[BrokerRole] = []
    values = {"storePathRootDir": str(tmp_path), "listenPort": "0", **SMALL, **SLAVE}
    config, store_config, _ = load(values)
    broker = Broker(config, store_config, SystemClock(), promote=asked.append)
    try:
        address = f"127.0.0.1:{await broker.start()}"
        async with Client("127.0.0.1:9") as client:
            remoting, clock = client.session.remoting, client.session.clock
            with pytest.raises(NotPromoted, match="see its log for the reason"):
                await promote(remoting, clock, address, Promote(), wait_ms=100)
    finally:
        await broker.stop()
    assert asked == [BrokerRole.ASYNC_MASTER]
