"""Metrics of CometMQ and of a RocketMQ broker 5.5.0 with the same load, name by name.

Both serve Prometheus' format with `metricsExporterType=PROM`. Where CometMQ has one of the names,
type and labels agree; what differs on purpose is listed here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cometmq.admin.api import Admin
from cometmq.admin.node import lasting_port
from cometmq.broker.metrics import catalog
from cometmq.client.client import Client
from cometmq.monitoring.series import KnownFrom
from cometmq.testing.cluster import ProcessCluster
from tests.broker.serving import BrokerClient
from tests.compat import anchor
from tests.monitoring.scraping import Scrape, fetch

TOPIC, TIMED, ORDERED, GROUP = "measured", "timed", "ordered", "measurers"
SENT, HELD, ORDERED_SENT, BODY = 60, 12, 3, bytes(100)

#: A label that OpenTelemetry adds to every series.
ADDED = {"otel_scope_name"}
#: Names that the Java broker has and CometMQ has not: pools, pop, its timer's wheel, and what would
#: cost something for each message.
JAVA_ONLY = {
    "rocketmq_message_size",
    "rocketmq_processor_watermark",
    "rocketmq_rpc_latency_milliseconds",
    "rocketmq_timer_message_snapshot",
    "rocketmq_timing_messages",
}
JAVA_ONLY_PREFIXES = ("rocketmq_pop_", "target_info", "target", "otel_scope")
#: Names that CometMQ alone shows in this test: aliases, and a counter that nothing has counted.
OURS_HERE = {
    "rocketmq_consumer_lag_latency",
    "rocketmq_consumer_queueing_latency",
    "rocketmq_send_to_dlq_messages",
}


@pytest.fixture
def java(jars: Path, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Name server and HTTP port of a Java node 5.5.0."""
    port = anchor.free_port()
    settings = {
        "metricsExporterType": "PROM",
        "metricsPromExporterPort": str(port),
        "metricsPromExporterHost": "127.0.0.1",
    }
    cluster = anchor.JavaCluster(anchor.fetch_jars(anchor.LATEST), tmp_path / "java", settings)
    cluster.start()
    yield cluster.namesrv, f"127.0.0.1:{port}"
    cluster.kill()


@pytest.fixture
def ours(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Name server and HTTP port of a node of ours."""
    port = lasting_port()
    settings = {"metricsExporterType": "PROM", "metricsPromExporterPort": str(port)}
    with ProcessCluster(tmp_path / "ours", **settings) as cluster:
        yield cluster.namesrv, f"127.0.0.1:{port}"


async def scraped_until(port: str, until: Callable[[Scrape], bool]) -> Scrape:
    async with asyncio.timeout(60):
        while True:
            answer = await asyncio.to_thread(fetch, port, "/metrics")
            found = Scrape(answer.text)
            if until(found):
                return found
            await asyncio.sleep(0.5)


async def scraped_under_load(namesrv: str, port: str) -> tuple[Scrape, Scrape]:
    """Send and consume, and scrape while the consumer is online, until it shows that; then send
    what is pulled and not consumed, and scrape again."""
    async with Client(namesrv, send_timeout_ms=10_000) as client:
        for _ in range(SENT):
            await client.send(TOPIC, BODY)
        await client.send(TIMED, BODY, delay_s=1)
        [broker] = await Admin(client.session).brokers(masters_only=True)
        raw = BrokerClient(*await asyncio.open_connection(*broker.address.split(":")))
        for _ in range(ORDERED_SENT):
            assert (await raw.send(BODY, b=ORDERED, i="__SHARDINGKEY\x01a")).code == 0
        raw.writer.close()
        async with client.subscribe(TOPIC, group=GROUP, start="first") as messages:
            left = SENT
            async for message in messages:
                async with message.processing():
                    left -= 1
                if not left:
                    break
            found = await scraped_until(port, has_all)
            for _ in range(HELD):
                await client.send(TOPIC, BODY)
            return found, await scraped_until(port, has_held)


def has_all(found: Scrape) -> bool:
    """Whether a scrape has the totals and the lag of the load."""
    read = {"topic": TOPIC, "consumer_group": GROUP}
    return (
        sum(found.find("rocketmq_messages_in_total", topic=TOPIC)) == SENT
        and sum(found.find("rocketmq_messages_out_total", **read)) >= SENT
        and [*found.find("rocketmq_consumer_lag_messages", **read)] == [0]
        and bool([*found.find("rocketmq_consumer_connections", consumer_group=GROUP)])
        and [*found.find("rocketmq_timer_dequeue_total", topic=TIMED)] == [1]
    )


def has_held(found: Scrape) -> bool:
    """Whether a scrape has what was pulled and not consumed."""
    read = {"topic": TOPIC, "consumer_group": GROUP}
    names = "rocketmq_consumer_lag_messages", "rocketmq_consumer_inflight_messages"
    return all([*found.find(name, **read)] == [HELD] for name in names)


def types_of(found: Scrape, topic: str) -> dict[str, float]:
    """The messages that a topic got, by their type."""
    return {
        labels["message_type"]: value
        for name, labels, value in found.samples
        if name == "rocketmq_messages_in_total" and labels["topic"] == topic
    }


async def test_names_types_and_labels_agree(java: tuple[str, str], ours: tuple[str, str]) -> None:
    theirs, their_held = await scraped_under_load(*java)
    mine, my_held = await scraped_under_load(*ours)
    declared = {
        metric.name.removesuffix("_total"): metric
        for metric in catalog.METRICS
        if metric.known_from is KnownFrom.BROKER_5
    }
    assert declared.keys() - theirs.kinds.keys() == OURS_HERE
    lacking = theirs.kinds.keys() - mine.kinds.keys()
    assert {name for name in lacking if not name.startswith(JAVA_ONLY_PREFIXES)} == JAVA_ONLY
    for name, metric in declared.items():
        if name in OURS_HERE:
            continue
        assert mine.kinds[name] == theirs.kinds[name], name
        assert mine.labels_of(metric.name) == theirs.labels_of(metric.name) - ADDED, name
    # RocketMQ 5 stores properties of its own with each message.
    for name, differs in (
        ("rocketmq_messages_in_total", 0.0),
        ("rocketmq_throughput_in_total", 0.25),
        ("rocketmq_throughput_out_total", 0.25),
    ):
        labels = {"topic": TOPIC, "is_system": "false", "node_type": "broker"}
        expected = pytest.approx(theirs.value(name, **labels), rel=differs)
        assert mine.value(name, **labels) == expected, name
    for name, value in (
        ("rocketmq_consumer_connections", 1.0),
        ("rocketmq_consumer_lag_latency_milliseconds", 0.0),
    ):
        labels = {"consumer_group": GROUP, "is_system": "false"}
        assert mine.value(name, **labels) == theirs.value(name, **labels) == value
    for found in (mine, theirs):
        assert found.value("rocketmq_timer_enqueue_total", topic=TIMED) == 1
        assert found.value("rocketmq_delay_message_latency_seconds_count", topic=TIMED) == 1
        bounds = [
            labels["le"]
            for name, labels, _ in found.samples
            if name == "rocketmq_delay_message_latency_seconds_bucket"
        ]
        assert bounds == ["60.0", "600.0", "3600.0", "43200.0", "86400.0", "259200.0", "+Inf"]
    label_values = {"consume_mode": "push", "language": "python", "protocol_type": "remoting"}
    for found in (mine, theirs):
        assert [*found.find("rocketmq_consumer_connections", **label_values)] == [1]
        assert found.value("rocketmq_broker_permission") == 6
    for found in (mine, theirs):
        assert types_of(found, TOPIC) == {"normal": SENT}
        assert types_of(found, ORDERED) == {"fifo": ORDERED_SENT}
    for found in (my_held, their_held):
        for name in ("ready_messages", "queueing_latency_milliseconds"):
            read = {"topic": TOPIC, "consumer_group": GROUP}
            assert [*found.find(f"rocketmq_consumer_{name}", **read)] == [0]
