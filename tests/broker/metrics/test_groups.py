"""Lag, offsets and connections of groups in the metrics of a real node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cometmq.admin.api import Admin
from cometmq.broker.metrics import groups
from cometmq.cli.node import Node, node_config, running_node
from cometmq.client.client import Client
from cometmq.core.clock import SystemClock
from cometmq.protocol.bodies import ConsumerData, Heartbeat, SubscriptionData
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.fastjson import encode_json
from cometmq.protocol.frame import BINARY, JSON
from cometmq.testing.cluster import SMALL_FILES
from tests.broker.serving import PULL, BrokerClient, pull_fields
from tests.monitoring.scraping import Scrape, scrape

SETTINGS = {**SMALL_FILES, "metricsExporterType": "PROM", "metricsPromExporterPort": "0"}


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with running_node(node_config(tmp_path, SETTINGS), SystemClock()) as node:
        yield node


@pytest.fixture
async def client(node: Node) -> AsyncIterator[Client]:
    async with Client(node.namesrv) as client:
        yield client


async def until_lag(node: Node, lag: int, **labels: str) -> Scrape:
    """Scrape until a group has this lag."""
    async with asyncio.timeout(60):
        while True:
            found = await scrape(node.monitoring)
            if [*found.find("rocketmq_consumer_lag_messages", **labels)] == [lag]:
                return found
            await asyncio.sleep(0.2)


async def test_lag_stays_when_the_consumers_are_gone(node: Node, client: Client) -> None:
    await client.send("orders", b"0")
    async with client.subscribe("orders", group="billing", start="first") as messages:
        async for message in messages:
            async with message.processing():
                break
    labels = {"topic": "orders", "consumer_group": "billing"}
    await until_lag(node, 0, **labels)
    for number in range(7):
        await client.send("orders", b"%d" % number)
    found = await until_lag(node, 7, **labels)
    exporter = {"topic": "orders", "group": "billing"}
    assert found.value("rocketmq_group_diff", **exporter, countOfOnlineConsumers="0") == 7
    assert found.value("rocketmq_consumer_offset", **exporter, broker="broker-a") == 1
    assert found.value("rocketmq_producer_offset", topic="orders") == 8
    age_ms = found.value("rocketmq_consumer_lag_latency_milliseconds", **labels)
    assert 0 < age_ms < 20_000
    assert found.value("rocketmq_group_get_latency_by_storetime", **exporter) == age_ms


async def until_shown(node: Node, shown: dict[str, float], **labels: str) -> Scrape:
    """Scrape until a group has these values."""
    async with asyncio.timeout(20):
        while True:
            found = await scrape(node.monitoring)
            if {name: [*found.find(name, **labels)] for name in shown} == {
                name: [value] for name, value in shown.items()
            }:
                return found
            await asyncio.sleep(0.2)


def in_flight(inflight: int, ready: int) -> dict[str, float]:
    return {
        "rocketmq_consumer_lag_messages": inflight + ready,
        "rocketmq_consumer_inflight_messages": inflight,
        "rocketmq_consumer_ready_messages": ready,
    }


async def test_what_was_pulled_and_not_consumed_is_in_flight(node: Node, client: Client) -> None:
    await Admin(client.session).create_topic("orders", queues=1)
    for number in range(10):
        await client.send("orders", b"%d" % number)
    raw = BrokerClient(*await asyncio.open_connection(*node.broker.split(":")))
    orders = {"consumerGroup": "billing", "topic": "orders", "queueId": "0"}

    async def pull(offset: int, count: int, codec: int) -> int:
        fields = pull_fields(offset, maxMsgNums=str(count), **orders)
        head, _ = await raw.ask(PULL, b"", codec, **fields)
        return int(head.ext["nextBeginOffset"])

    async def commit(offset: str) -> None:
        fields = orders | {"commitOffset": offset}
        await raw.ask(RequestCode.UPDATE_CONSUMER_OFFSET, b"", JSON, **fields)

    consumer = ConsumerData("billing", subscription_data_set=(SubscriptionData("orders"),))
    raw.post(RequestCode.HEART_BEAT, encode_json(Heartbeat("c1", (), (consumer,))))
    codes = {(await raw.frame())[0].code for _ in range(2)}
    assert codes == {0, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED}
    assert await pull(2, 3, JSON) == 5
    labels = {"topic": "orders", "consumer_group": "billing"}
    await commit("2")
    found = await until_shown(node, in_flight(3, 5), **labels)
    lag_ms = found.value("rocketmq_consumer_lag_latency_milliseconds", **labels)
    queueing_ms = found.value("rocketmq_consumer_queueing_latency_milliseconds", **labels)
    assert 0 < queueing_ms <= lag_ms
    assert found.labels_of("rocketmq_consumer_inflight_messages") == found.labels_of(
        "rocketmq_consumer_lag_messages"
    )
    assert await pull(5, 9, BINARY) == 10, "served one by one"
    found = await until_shown(node, in_flight(8, 0), **labels)
    assert found.value("rocketmq_consumer_queueing_latency_milliseconds", **labels) == 0
    assert found.value("rocketmq_consumer_lag_latency_milliseconds", **labels) > 0
    await commit("9")
    await until_shown(node, in_flight(1, 0), **labels)
    # A consumer that was set back pulls again.
    await commit("1")
    assert await pull(1, 3, JSON) == 4
    await until_shown(node, in_flight(3, 6), **labels)
    raw.writer.close()
    found = await until_shown(node, in_flight(0, 9), **labels)
    lag_ms = found.value("rocketmq_consumer_lag_latency_milliseconds", **labels)
    assert found.value("rocketmq_consumer_queueing_latency", **labels) == lag_ms


async def test_connections_are_counted_by_kind(node: Node, client: Client) -> None:
    await client.send("orders", b"0")
    async with client.subscribe("orders", group="billing", start="first") as messages:
        async for message in messages:
            async with message.processing():
                break
        found = await scrape(node.monitoring)
        consumers = found.value("rocketmq_consumer_connections", consumer_group="billing")
        assert consumers == 1
        assert found.labels_of("rocketmq_consumer_connections") == {
            *("cluster", "node_type", "node_id", "consumer_group", "language", "version"),
            *("consume_mode", "protocol_type", "is_system"),
        }


async def test_series_of_a_metric_are_bounded(tmp_path: Path) -> None:
    config = node_config(tmp_path, {**SETTINGS, "metricsOtelCardinalityLimit": "3"})
    async with (
        running_node(config, SystemClock()) as node,
        Client(node.namesrv) as client,
    ):
        for number in range(5):
            await client.send(f"topic-{number}", b"x")
        found = await scrape(node.monitoring)
        assert len([*found.find("rocketmq_messages_in_total")]) == 3
        left_out = found.value(
            "cometmq_metrics_left_out_series", metric="rocketmq_messages_in_total"
        )
        assert left_out == 2


async def test_times_of_all_groups_are_read_with_few_reads_a_scrape(
    node: Node, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "READS_MAX", 1)
    topics = [f"late-{number}" for number in range(3)]
    for topic in topics:
        await client.send(topic, b"first")
        async with client.subscribe(topic, group="slow", start="first") as messages:
            async for message in messages:
                async with message.processing():
                    break
        await until_lag(node, 0, topic=topic)
        await client.send(topic, b"second")
    name = "rocketmq_consumer_lag_latency_milliseconds"
    async with asyncio.timeout(60):
        while True:
            found = await scrape(node.monitoring)
            ages = [[*found.find(name, topic=topic)] for topic in topics]
            if all(age and age[0] > 0 for age in ages):
                break
            await asyncio.sleep(0.5)
    assert found.value("rocketmq_consumer_lag_messages", consumer_group="slow") == 3
