"""The metrics of a real node, before, during and after messages."""

from __future__ import annotations

from pathlib import Path

from cometmq.cli.node import node_config, running_node
from cometmq.client.client import Client
from cometmq.core.clock import SystemClock
from cometmq.testing.cluster import SMALL_FILES
from tests.client.shared_broker import read_all
from tests.monitoring.scraping import fetched, scrape

SETTINGS = {**SMALL_FILES, "metricsExporterType": "PROM", "metricsPromExporterPort": "0"}


async def test_totals_are_those_of_the_clients(tmp_path: Path) -> None:
    config = node_config(tmp_path, SETTINGS)
    async with (
        running_node(config, SystemClock()) as node,
        Client(node.namesrv) as client,
    ):
        assert (await fetched(node.monitoring, "/healthz")).status == 200
        ready = await fetched(node.monitoring, "/readyz")
        assert (ready.status, ready.text) == (
            200,
            f"name server: serves\nbroker broker-a: serves, registered with {node.namesrv}\n",
        )
        for at in range(25):
            await client.send("counted", b"%d" % at)
        await read_all(client, "counted", 25)
        found = await scrape(node.monitoring)
        named = {"topic": "counted", "cluster": "DefaultCluster", "node_id": "broker-a"}
        assert found.value("rocketmq_messages_in_total", **named, is_system="false") == 25
        assert found.value("rocketmq_messages_out_total", **named) == 25
        size = found.value("rocketmq_throughput_in_total", **named)
        assert size == found.value("rocketmq_throughput_out_total", **named)
        assert found.kinds["rocketmq_messages_in"] == "counter"
        assert found.value("cometmq_namesrv_brokers") == 1
