"""Metrics of CometMQ and of a RocketMQ broker 5.5.0 with the same load, name by name.

Both serve Prometheus' format with `metricsExporterType=PROM`. Where CometMQ has one of the names,
type and labels agree; what differs on purpose is listed here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cometmq.admin.node import lasting_port
from cometmq.broker.metrics import catalog
from cometmq.client.client import Client
from cometmq.monitoring.series import KnownFrom
from cometmq.testing.cluster import ProcessCluster
from tests.compat import anchor
from tests.monitoring.scraping import Scrape, fetch

TOPIC, TIMED, GROUP = "measured", "timed", "measurers"
SENT, BODY = 60, bytes(100)

#: A label that OpenTelemetry adds to every series.
ADDED = {"otel_scope_name"}
#: Names that the Java broker has and CometMQ has not: pools, pop, its timer's wheel, and what would
#: cost something for each message.
JAVA_ONLY = {
    "rocketmq_consumer_inflight_messages",
    "rocketmq_consumer_queueing_latency_milliseconds",
    "rocketmq_consumer_ready_messages",
    "rocketmq_message_size",
    "rocketmq_processor_watermark",
    "rocketmq_rpc_latency_milliseconds",
    "rocketmq_timer_message_snapshot",
    "rocketmq_timing_messages",
}
JAVA_ONLY_PREFIXES = ("rocketmq_pop_", "target_info", "target", "otel_scope")
#: Names that CometMQ alone shows in this test: an alias, and a counter that nothing has counted.
OURS_HERE = {
    "rocketmq_consumer_lag_latency",
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


async def scraped_under_load(namesrv: str, port: str, until: Callable[[Scrape], bool]) -> Scrape:
    """Send and consume, and scrape while the consumer is online, until it shows that."""
    async with Client(namesrv, send_timeout_ms=10_000) as client:
        for _ in range(SENT):
            await client.send(TOPIC, BODY)
        await client.send(TIMED, BODY, delay_s=1)
        async with client.subscribe(TOPIC, group=GROUP, start="first") as messages:
            left = SENT
            async for message in messages:
                async with message.processing():
                    left -= 1
                if not left:
                    break
            async with asyncio.timeout(60):
                while True:
                    answer = await asyncio.to_thread(fetch, port, "/metrics")
                    found = Scrape(answer.text)
                    if until(found):
                        return found
                    await asyncio.sleep(0.5)


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


async def test_names_types_and_labels_agree(java: tuple[str, str], ours: tuple[str, str]) -> None:
    theirs = await scraped_under_load(*java, has_all)
    mine = await scraped_under_load(*ours, has_all)
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
