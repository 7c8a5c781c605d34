"""Our slave under a Java master, and a Java slave under ours: the same bytes, through kills."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.cluster.load import Load, names, patient_client, until
from tests.cluster.logs import assert_same_logs, log_end
from tests.cluster.servers import BrokerProcess
from tests.compat import anchor

pytestmark = pytest.mark.compat

FILES = {"mappedFileSizeCommitLog": str(1 << 20)}
TOPIC = "pairs"


@asynccontextmanager
async def java_master(jars: Path, home: Path, **settings: str) -> AsyncIterator[anchor.JavaCluster]:
    cluster = anchor.JavaCluster(jars, home, FILES | settings)
    try:
        await asyncio.to_thread(cluster.start)
        yield cluster
    finally:
        cluster.kill()


async def until_same_end(one: Path, other: Path) -> None:
    await until(lambda: log_end(one) == log_end(other) > 0, f"{other} has the log of {one}")


@pytest.mark.parametrize("role", ["ASYNC_MASTER", "SYNC_MASTER"])
async def test_our_slave_under_a_java_master(jars: Path, tmp_path: Path, role: str) -> None:
    async with AsyncExitStack() as stack:
        java = await stack.enter_async_context(
            java_master(jars, tmp_path / "java", brokerRole=role)
        )
        slave = BrokerProcess(tmp_path, java.namesrv, number=1, settings=FILES)
        stack.callback(slave.kill)
        load = Load(TOPIC)
        async with patient_client(java.namesrv) as client:
            await load.send(client, 2_000)
            for _ in range(3):
                slave.start()
                sending = asyncio.create_task(load.send(client, 2_000))
                sent = len(load.acked)
                await until(partial(load.has_acked, sent + 200), "some sends")
                slave.kill()
                await sending
            slave.start()
            await load.send(client, 500)
            await until_same_end(java.store, slave.store)
            assert assert_same_logs(java.store, slave.store) > 1 << 20
            assert load.failures == []
            if role == "SYNC_MASTER":
                load.statuses.clear()
                await load.send(client, 200)
                assert load.statuses == {"OK": 200}
            java.broker_server.stop(signal.SIGKILL)
            await until(lambda: anchor.route_code(java.namesrv, TOPIC) in (0, 17), "a route")
        async with patient_client(java.namesrv) as client:
            assert load.acked <= set(await names(client, TOPIC))


@pytest.mark.parametrize("role", ["ASYNC_MASTER", "SYNC_MASTER"])
async def test_a_java_slave_under_our_master(jars: Path, tmp_path: Path, role: str) -> None:
    async with AsyncExitStack() as stack:
        settings = {"brokerRole": "SLAVE", "brokerId": "1", "slaveReadEnable": "true"}
        java = anchor.JavaCluster(jars, tmp_path / "java", FILES | settings)
        stack.callback(java.kill)
        await asyncio.to_thread(java.namesrv_server.start)
        master = BrokerProcess(tmp_path, java.namesrv, settings=FILES | {"brokerRole": role})
        master.start()
        stack.callback(master.kill)
        load = Load(TOPIC)
        async with patient_client(java.namesrv) as client:
            await load.send(client, 100)
            await asyncio.to_thread(java.broker_server.start)
            await until(lambda: log_end(java.store) > 0, "the slave begins")
            for _ in range(kills := 2):
                sending = asyncio.create_task(load.send(client, 3_000))
                await until(partial(load.has_acked, len(load.acked) + 200), "some sends")
                await asyncio.to_thread(java.broker_server.stop, signal.SIGKILL)
                await sending
                await asyncio.to_thread(java.broker_server.start)
                await until_same_end(master.store, java.store)
            assert assert_same_logs(master.store, java.store, torn_records=kills) > 1 << 20
            assert load.failures == []
            if role == "SYNC_MASTER":
                load.statuses.clear()
                await load.send(client, 200)
                assert load.statuses == {"OK": 200}
                await until_same_end(master.store, java.store)
            master.kill()
        async with patient_client(java.namesrv) as client:
            assert load.acked <= set(await names(client, TOPIC))
