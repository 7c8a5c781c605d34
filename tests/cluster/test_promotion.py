"""A master dies under load, its slave is promoted, and it comes back as a slave: real processes."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path

from cometmq.admin.api import Admin
from cometmq.admin.failover import promote
from cometmq.client.client import Client
from cometmq.core.clock import SystemClock
from cometmq.protocol.bodies import Promote
from tests.cluster.load import Load, names, until
from tests.cluster.logs import assert_same_logs, log_end
from tests.cluster.servers import BrokerProcess, NamesrvProcess

TOPIC = "orders"
RESUMED_WITHIN_MS = 5_000


async def test_a_slave_takes_over_and_the_old_master_rejoins(tmp_path: Path) -> None:
    clock = SystemClock()
    with ExitStack() as stack:
        namesrv = NamesrvProcess(tmp_path)
        namesrv.start()
        stack.callback(namesrv.kill)
        old = BrokerProcess(tmp_path, namesrv.namesrv, settings={"brokerRole": "SYNC_MASTER"})
        new = BrokerProcess(tmp_path, namesrv.namesrv, number=1)
        for broker in (old, new):
            broker.start()
            stack.callback(broker.kill)
        async with Client(namesrv.namesrv, send_timeout_ms=10_000) as client:
            admin = Admin(client.session)
            await admin.create_topic(TOPIC, queues=4)
            load = Load(TOPIC)
            await load.send(client, 500)
            sending = asyncio.create_task(load.send(client, 3_000))
            await until(lambda: load.has_acked(1_500), "some sends")
            old.kill()
            await sending
            safe = set(load.acked)
            killed_ms = clock.monotonic_ms()
            outcome = await promote(
                client.session.remoting, clock, new.broker, Promote("SYNC_MASTER")
            )
            assert outcome.promotion.begins
            resumed = Load(TOPIC, number=10_000)
            await until_sent(client, resumed)
            assert clock.monotonic_ms() - killed_ms < RESUMED_WITHIN_MS
            await resumed.send(client, 500)
        old.settings |= {"brokerId": "1", "brokerRole": "SLAVE", "haRejoin": "truncate"}
        await asyncio.to_thread(old.start)
        await until(lambda: log_end(new.store) == log_end(old.store) > 0, "the same end")
        assert assert_same_logs(new.store, old.store) > 0
        # A promoted one stays the master, whatever its settings say.
        new.kill()
        new.start()
        async with Client(namesrv.namesrv) as client:
            await resumed.send(client, 100)
            assert safe | resumed.acked <= set(await names(client, TOPIC))


async def until_sent(client: Client, load: Load) -> None:
    async with asyncio.timeout(30):
        while not load.acked:
            await load.send(client, 1)
