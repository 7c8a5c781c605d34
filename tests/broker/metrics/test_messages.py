"""The metrics of a real node, before, during and after messages."""

from __future__ import annotations

import asyncio
from pathlib import Path

from cometmq.cli.node import node_config, running_node
from cometmq.client.client import Client
from cometmq.core.clock import SystemClock
from cometmq.message.names import TIMER_TOPIC
from cometmq.testing.cluster import SMALL_FILES
from tests.broker.serving import BrokerClient
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


async def test_messages_that_waited_have_a_type_and_timers_their_counts(tmp_path: Path) -> None:
    config = node_config(tmp_path, SETTINGS)
    async with (
        running_node(config, SystemClock()) as node,
        Client(node.namesrv) as client,
    ):
        await client.send("typed", b"at once")
        await client.send("typed", b"soon", delay_s=0.2)
        await client.send("typed", b"later", delay_s=600)
        raw = BrokerClient(*await asyncio.open_connection(*node.broker.split(":")))
        for _ in range(2):  # the first one to a queue is served by itself
            await raw.send(b"next", b="typed", e="0", i="__SHARDINGKEY\x01a")
        raw.writer.close()
        await read_all(client, "typed", 4)
        found = await scrape(node.monitoring)
        name, size = "rocketmq_messages_in_total", "rocketmq_throughput_in_total"
        assert found.value(name, topic="typed", message_type="normal") == 1
        assert found.value(name, topic="typed", message_type="delay") == 1
        assert found.value(name, topic="typed", message_type="fifo") == 2
        assert found.value(size, topic="typed", message_type="fifo") > 200
        assert found.value(name, topic=TIMER_TOPIC, message_type="delay") == 2
        assert found.value(size, topic="typed", message_type="delay") > 100
        assert found.value("rocketmq_timer_enqueue_total", topic="typed") == 2
        assert found.value("rocketmq_timer_dequeue_total", topic="typed") == 1
        delays = "rocketmq_delay_message_latency_seconds"
        assert found.value(f"{delays}_count", topic="typed") == 2
        assert found.value(f"{delays}_bucket", topic="typed", le="60.0") == 1
        assert 590 <= found.value(f"{delays}_sum", topic="typed") <= 610
        assert found.value("rocketmq_timer_dequeue_lag") == 1
        assert found.value("rocketmq_timer_enqueue_lag") == 0
        assert found.value("rocketmq_timer_enqueue_latency_milliseconds") == 0
        assert found.value("rocketmq_timer_dequeue_latency_milliseconds") < 10_000
        # Two sends to the topic, two to the timers' topic, and one delivery less the first send.
        assert found.value("cometmq_dispatch_seconds_count") >= 4
        assert found.value("cometmq_pull_seconds_count") >= 1
