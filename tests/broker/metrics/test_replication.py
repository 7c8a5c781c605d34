"""What a master and its slave show of their copies."""

from __future__ import annotations

import asyncio
from pathlib import Path

from cometmq.broker.config import load
from cometmq.cli.node import monitoring, node_config, running_broker, running_node
from cometmq.client.client import Client
from cometmq.core.clock import SystemClock
from cometmq.testing.cluster import SMALL_FILES
from tests.monitoring.scraping import Scrape, fetched, scrape

SETTINGS = {**SMALL_FILES, "metricsExporterType": "PROM", "metricsPromExporterPort": "0"}


async def until(address: str, name: str, expected: float) -> Scrape:
    """Scrape until a metric has this value."""
    async with asyncio.timeout(60):
        while True:
            found = await scrape(address)
            if [*found.find(name)] == [expected]:
                return found
            await asyncio.sleep(0.2)


async def test_both_sides_show_how_far_the_slave_is(tmp_path: Path) -> None:
    clock = SystemClock()
    async with running_node(node_config(tmp_path / "master", SETTINGS), clock) as node:
        config, store, _ = load(
            {
                **SETTINGS,
                "brokerRole": "SLAVE",
                "brokerId": "1",
                "listenPort": "0",
                "namesrvAddr": node.namesrv,
                "storePathRootDir": str(tmp_path / "slave"),
            }
        )
        async with (
            monitoring(config, config.bind_address, clock) as port,
            running_broker(config, store, clock, port=port),
            Client(node.namesrv) as client,
        ):
            for _ in range(10):
                await client.send("copied", b"x")
            await until(node.monitoring, "cometmq_slaves", 1)
            await until(node.monitoring, "cometmq_replication_behind_bytes", 0)
            await until(node.monitoring, "rocketmq_broker_commitlog_diff", 0)
            found = await until(port.address, "cometmq_replication_behind_bytes", 0)
            assert found.value("cometmq_ready") == 1
            assert [*found.find("rocketmq_messages_in_total")] == []
            ready = await fetched(port.address, "/readyz")
            assert (ready.status, ready.text) == (
                200, f"broker broker-a: serves, registered with {node.namesrv}\n"
            )  # fmt: skip
