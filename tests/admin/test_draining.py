"""Producers leave a broker out and come back: every name server is told."""

from __future__ import annotations

from pathlib import Path

from cometmq.admin.api import Admin
from cometmq.admin.draining import Told, drain, undrain
from cometmq.client.client import Client
from tests.broker.serving import running_broker
from tests.namesrv.serving import name_server


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
