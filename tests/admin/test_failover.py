"""Producers leave a broker out and come back; a slave is promoted from outside, or cannot be; a new
master takes the address of the old one.
"""

from __future__ import annotations

import socket
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from cometmq.admin.api import Admin
from cometmq.admin.failover import (
    NotPromoted,
    NotTaken,
    Told,
    drain,
    look_at_address,
    promote,
    take_address,
    undrain,
)
from cometmq.admin.migration import Mover, NotMoved
from cometmq.admin.node import VIP_DISTANCE, lasting_port
from cometmq.broker.app import Broker
from cometmq.broker.config import BrokerRole, load
from cometmq.client.client import Client
from cometmq.core.clock import SystemClock
from cometmq.core.errors import BrokerRefused
from cometmq.protocol.bodies import AddressState, Promote
from tests.broker.replicated import group, hurry
from tests.broker.serving import SMALL, running_broker
from tests.broker.test_supervisor import SLAVE, Living, living, until_same
from tests.namesrv.serving import name_server
from tests.replication.pairs import until


async def perms(client: Client) -> set[int]:
    route = await Admin(client.session).topic_route("t")
    return {each.perm for each in route.queue_datas}


async def test_all_name_servers_are_told_and_those_that_are_gone_named(tmp_path: Path) -> None:
    async with (
        name_server(tmp_path / "one") as one,
        name_server(tmp_path / "two") as two,
        running_broker(tmp_path, namesrvAddr=f"{one.address};{two.address}"),
        Client(one.address) as first,
        Client(two.address) as second,
        Client(f"{one.address};{two.address};127.0.0.1:1") as client,
    ):
        await Admin(client.session).create_topic("t")
        told = await drain(client.session, "broker-a")
        assert tuple(each.name_server for each in told) == client.session.config.name_servers
        assert told[0].topics == told[1].topics > 1
        assert told[2].topics == 0
        assert "127.0.0.1:1" in told[2].problem
        assert (await perms(first), await perms(second)) == ({4}, {4})
        told = await undrain(client.session, "broker-a")
        assert told[0].topics == told[1].topics > 1
        assert told[2].problem
        assert (await perms(first), await perms(second)) == ({6}, {6})
        assert await drain(first.session, "nobody") == [Told(one.address, 0)]


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


#: A documentation address: no machine has it.
ELSEWHERE = "192.0.2.1:10911"


def address_of(running: Living) -> str:
    return f"127.0.0.1:{running.broker.port}"


async def test_it_is_taken_once_nobody_listens_there(tmp_path: Path) -> None:
    async with (
        group(tmp_path) as made,
        Client(made.namesrv) as client,
        living(made, "a") as master,
    ):
        remoting, broker, clock = client.session.remoting, address_of(master), SystemClock()
        other = socket.create_server(("127.0.0.1", lasting_port(VIP_DISTANCE)))
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(NotTaken, match=f"cometmq migrate take-address {broker} {address}"):
            await take_address(remoting, clock, broker, address, wait_ms=-1)
        assert await look_at_address(remoting, broker, address) == AddressState(
            "in_use", f"{address}: Address already in use"
        )
        said: list[str] = []

        def say(text: str) -> None:
            said.append(text)
            other.close()

        assert await take_address(remoting, clock, broker, address, say=say) >= 0
        assert said == [f"waiting: {address} is in use; the old master has to stop within 120 s"]
        masters = await Admin(client.session).brokers(masters_only=True)
        assert [each.address for each in masters] == [address]
        assert await take_address(remoting, clock, address, address) >= 0


async def test_another_machine_s_is_not_waited_for(tmp_path: Path) -> None:
    async with (
        group(tmp_path) as made,
        Client(made.namesrv) as client,
        living(made, "a") as master,
    ):
        with pytest.raises(NotTaken, match="not an address of the machine"):
            await take_address(
                client.session.remoting, SystemClock(), address_of(master), ELSEWHERE
            )


async def test_a_broker_that_does_not_answer_is_asked_again() -> None:
    async with Client("127.0.0.1:1") as client:
        with pytest.raises(NotTaken, match=r"127\.0\.0\.1:1"):
            await take_address(
                client.session.remoting, SystemClock(), "127.0.0.1:1", ELSEWHERE, wait_ms=0
            )


async def test_a_move_begins_only_if_the_address_can_be_had(tmp_path: Path) -> None:
    async with (
        group(tmp_path) as made,
        Client(made.namesrv) as client,
        living(made, "b", **SLAVE) as new,
    ):
        slave = address_of(new)
        mover = Mover(Admin(client.session), client.session, slave, say=lambda text: None)
        with pytest.raises(NotMoved, match="nothing was changed"):
            await mover._check_address(ELSEWHERE)
        await mover._check_address(f"127.0.0.1:{lasting_port(VIP_DISTANCE)}")
