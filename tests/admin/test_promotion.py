"""Promotion from outside: what cannot be, and a slave that never comes to be the master."""

from pathlib import Path

import pytest

from cometmq.admin.promotion import NotPromoted, promote
from cometmq.client.client import Client
from cometmq.core.errors import BrokerRefused
from cometmq.protocol.bodies import Promote
from tests.broker.replicated import group
from tests.broker.serving import running_broker
from tests.broker.test_lives import SLAVE, living


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


async def test_a_slave_that_does_not_come_back_as_the_master(tmp_path: Path) -> None:
    async with running_broker(tmp_path, None, **SLAVE) as slave:
        address = f"127.0.0.1:{slave.broker.port}"
        async with Client("127.0.0.1:9") as client:
            remoting, clock = client.session.remoting, client.session.clock
            with pytest.raises(BrokerRefused, match="cannot begin it anew"):
                await promote(remoting, clock, address, Promote())
            slave.broker.promote = lambda role: None
            with pytest.raises(NotPromoted, match="its log says why"):
                await promote(remoting, clock, address, Promote(), wait_ms=100)
