"""What a scrape shows is what the catalog declares."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from cometmq.broker.metrics import catalog
from cometmq.cli.node import node_config, running_node
from cometmq.client.client import Client
from cometmq.core.clock import SystemClock
from cometmq.core.errors import BrokerRefused
from cometmq.message.model import MessageQueue
from cometmq.monitoring import process
from cometmq.monitoring.series import KnownFrom
from cometmq.namesrv import metrics
from cometmq.store.files import DiskSpace, PosixFiles
from cometmq.store.messagestore import MessageStore
from cometmq.testing.cluster import SMALL_FILES
from tests.client.shared_broker import read_all
from tests.monitoring.scraping import fetched, scrape

SETTINGS = {**SMALL_FILES, "metricsExporterType": "PROM", "metricsPromExporterPort": "0"}
#: Metrics that an empty log does not have.
ABSENT = {
    "cometmq_recovery_position_bytes",
    "cometmq_recovery_end_bytes",
    "rocketmq_storage_message_reserve_time_milliseconds",
}


async def test_all_declared_metrics_are_shown_and_no_others(tmp_path: Path) -> None:
    config = node_config(tmp_path, SETTINGS)
    async with running_node(config, SystemClock()) as node:
        text = (await fetched(node.monitoring, "/metrics")).text
        kinds = dict(line.split()[2:] for line in text.splitlines() if line.startswith("# TYPE"))
    declared = {
        metric.name: metric.kind.value
        for metric in (*catalog.METRICS, *metrics.METRICS, *process.METRICS)
    }
    shown = {name: kind for name, kind in kinds.items() if not name.startswith("process_")}
    assert shown.keys() | ABSENT == declared.keys() | ABSENT
    assert shown.items() <= declared.items()


async def test_a_scrape_measures_each_disk_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[str] = []
    measure = PosixFiles.disk_space

    def counted(files: PosixFiles, path: str) -> DiskSpace:
        if threading.current_thread() is not threading.main_thread():  # where retention does it
            measured.append(path)
        return measure(files, path)

    config = node_config(tmp_path, SETTINGS)
    async with running_node(config, SystemClock()) as node:
        monkeypatch.setattr(PosixFiles, "disk_space", counted)
        found = await scrape(node.monitoring)
    assert len(measured) == len(set(measured)) == 2
    assert found.value("cometmq_disk_free_bytes", part="log") > 0


async def test_a_scrape_looks_at_the_oldest_message_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []
    fetch_at = MessageStore.fetch_at

    async def counted(store: MessageStore, offset: int) -> memoryview | None:
        looked.append(offset)
        return await fetch_at(store, offset)

    config = node_config(tmp_path, SETTINGS)
    async with running_node(config, SystemClock()) as node, Client(node.namesrv) as client:
        await client.send("orders", b"x")
        monkeypatch.setattr(MessageStore, "fetch_at", counted)
        found = await scrape(node.monitoring)
    assert looked == [0]
    assert found.value("rocketmq_storage_message_reserve_time_milliseconds") >= 0
    assert found.value("rocketmq_brokeruntime_earliest_message_timestamp") > 0


async def test_series_have_the_declared_labels(tmp_path: Path) -> None:
    config = node_config(tmp_path, SETTINGS)
    async with running_node(config, SystemClock()) as node, Client(node.namesrv) as client:
        await client.send("orders", b"x")
        await client.send("%DLQ%billing", b"x")
        await read_all(client, "orders", 1)
        found = await scrape(node.monitoring)
    shared = {"cluster", "node_type", "node_id"}
    for metric in catalog.METRICS:
        labels = found.labels_of(metric.name)
        if labels:
            own = set(metric.labels)
            assert labels == (own | shared if metric.has_shared_labels else own), metric.name


async def test_refused_requests_are_counted_by_cause(tmp_path: Path) -> None:
    config = node_config(tmp_path, SETTINGS)
    async with running_node(config, SystemClock()) as node, Client(node.namesrv) as client:
        sent = await client.send("orders", b"x")
        await client.puller.pull(sent.queue, 0)
        await client.puller.pull(sent.queue, 1)  # finds nothing, which is no refusal
        for _ in range(2):
            with pytest.raises(BrokerRefused):
                await client.puller.pull(MessageQueue("orders", sent.queue.broker_name, 99), 0)
        with pytest.raises(BrokerRefused):
            await client.puller.pull(MessageQueue("gone", sent.queue.broker_name, 0), 0)
        name = catalog.REFUSALS.name
        async with asyncio.timeout(60):
            while sum((found := await scrape(node.monitoring)).find(name)) < 3:
                await asyncio.sleep(0.1)
    causes = {labels["cause"]: value for each, labels, value in found.samples if each == name}
    assert causes == {"SYSTEM_ERROR": 2, "TOPIC_NOT_EXIST": 1}


def test_names_are_known_from_where_they_begin_like() -> None:
    for metric in catalog.METRICS:
        is_ours = metric.known_from is KnownFrom.OURS
        assert metric.name.startswith("cometmq_" if is_ours else "rocketmq_"), metric.name
