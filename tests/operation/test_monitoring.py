"""A real Prometheus scrapes a real node under load: totals, rates, the dashboard and the alerts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import cometmq
from cometmq.admin.api import Admin
from cometmq.admin.node import lasting_port
from cometmq.testing.cluster import ProcessCluster
from tests.monitoring.scraping import Scrape, fetch
from tests.operation.prometheus import (
    Prometheus,
    PrometheusMissing,
    programs,
    running_prometheus,
)

FILES = Path(__file__).parents[2] / "examples" / "monitoring"
TOPIC, GROUP = "load", "readers"
#: Share by which totals and rates may differ from the load generator's own counts.
TOLERANCE = 0.01


@pytest.fixture
def tools() -> Path:
    """The folder of prometheus and promtool."""
    try:
        return programs()
    except PrometheusMissing as error:
        pytest.skip(f"needs Prometheus: {error}")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ProcessCluster]:
    """A node with an HTTP port."""
    port = lasting_port()
    settings = {"metricsExporterType": "PROM", "metricsPromExporterPort": str(port)}
    with ProcessCluster(tmp_path, **settings) as running:
        yield running


class Load:
    """Sends and receives for a while, and counts both itself."""

    def __init__(self) -> None:
        self.sent = self.received = 0

    async def run(self, namesrv: str, duration_s: float) -> None:
        """Send, 64 at once, and receive all."""
        body = bytes(200)
        async with cometmq.Client(namesrv) as client:
            await client.send(TOPIC, body)
            self.sent += 1
            reading = asyncio.create_task(self._read(client))
            until = time.monotonic() + duration_s
            # Refused requests are counted, too: nobody is online in this group.
            admin = Admin(client.session)
            (broker,) = await admin.masters_of(TOPIC)
            assert await admin.members_at(broker, "nobody") is None

            async def send() -> None:
                while time.monotonic() < until:
                    await client.send(TOPIC, body)
                    self.sent += 1

            await asyncio.gather(*(send() for _ in range(64)))
            async with asyncio.timeout(30):
                while self.received < self.sent:
                    await asyncio.sleep(0.05)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _read(self, client: cometmq.Client) -> None:
        async with client.subscribe(TOPIC, group=GROUP, start="first") as messages:
            async for message in messages:
                async with message.processing():
                    self.received += 1


def until_scraped(prometheus: Prometheus) -> None:
    """Wait for a scrape that begins after this moment."""
    begin = time.time()
    deadline = time.monotonic() + 30
    while prometheus.value("timestamp(up)") < begin + 0.1:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def is_near(found: float, expected: float) -> bool:
    return abs(found - expected) <= TOLERANCE * expected


@pytest.mark.parametrize("duration_s", [8, pytest.param(60, marks=pytest.mark.deep)])
def test_prometheus_sees_what_the_load_generator_counts(
    tools: Path, cluster: ProcessCluster, tmp_path: Path, duration_s: int
) -> None:
    target = cluster.settings["metricsPromExporterPort"]
    with running_prometheus(tmp_path, f"127.0.0.1:{target}", FILES / "alerts.yml") as prometheus:
        load = Load()
        asyncio.run(load.run(cluster.namesrv, duration_s))
        until_scraped(prometheus)
        total_in = prometheus.value(f'sum(rocketmq_messages_in_total{{topic="{TOPIC}"}})')
        total_out = prometheus.value(
            f'sum(rocketmq_messages_out_total{{topic="{TOPIC}",consumer_group="{GROUP}"}})'
        )
        print(f"sent {load.sent}, shown {total_in}; received {load.received}, shown {total_out}")
        assert is_near(total_in, load.sent)
        assert is_near(total_out, load.received)
        puts = prometheus.value("sum(cometmq_put_seconds_count)")
        assert puts >= load.sent
        grown = prometheus.value(
            f'max_over_time(rocketmq_messages_in_total{{topic="{TOPIC}"}}[5m])'
        )
        assert is_near(grown, load.sent)
        kinds = prometheus.ask("metadata")
        assert kinds["rocketmq_messages_in_total"][0]["type"] == "counter"
        assert kinds["rocketmq_consumer_lag_messages"][0]["type"] == "gauge"
        assert kinds["cometmq_put_seconds"][0]["type"] == "histogram"
        took_s = prometheus.value("max_over_time(scrape_duration_seconds[5m])")
        print(f"longest scrape {took_s * 1000:.0f} ms")
        # On a busy machine, a scrape may take longer than the two seconds that it has here.
        assert prometheus.value("avg_over_time(up[5m])") >= 0.9
        assert lacking_data(prometheus) == []
        check_rules(prometheus)


def lacking_data(prometheus: Prometheus) -> list[str]:
    """The queries of the dashboard that give no series."""
    dashboard = json.loads((FILES / "grafana.json").read_text())
    queries = [each["expr"] for panel in dashboard["panels"] for each in panel["targets"]]
    assert len(queries) > 20
    variables = {"$cluster": ".*", "$broker": ".*", "$__rate_interval": "10s"}
    lacking = []
    for query in queries:
        for name, value in variables.items():
            query = query.replace(name, value)
        if not prometheus.query(query):
            lacking.append(query)
    return lacking


def check_rules(prometheus: Prometheus) -> None:
    """Every alert is evaluated without an error, and all metrics in it exist."""
    rules = [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]
    declared = yaml.safe_load((FILES / "alerts.yml").read_text())["groups"][0]["rules"]
    assert len(rules) == len(declared)
    assert {rule["health"] for rule in rules} == {"ok"}
    known = {*prometheus.ask("label/__name__/values"), *prometheus.ask("metadata")}
    for rule in declared:
        names = re.findall(r"\b(?:cometmq|rocketmq)_\w+|\bup\b", rule["expr"])
        assert names, rule
        assert {*names} <= known, rule
    firing = {rule["name"] for rule in rules if rule["state"] == "firing"}
    assert firing <= {"CometMQDiskFills"}, "only the disk of this machine may be full"


def test_readiness_shows_how_far_recovery_is(tmp_path: Path) -> None:
    port = lasting_port()
    settings = {"metricsExporterType": "PROM", "metricsPromExporterPort": str(port)}
    cluster = ProcessCluster(tmp_path, **settings)
    with cluster:
        asyncio.run(fill(cluster.namesrv, 100 << 20))
        cluster.kill()
        # Without its notes, the store reads the whole log.
        (cluster.store / "cometmq-positions.json").unlink(missing_ok=True)
        (cluster.store / "checkpoint").unlink(missing_ok=True)
        seen: dict[str, int] = {}
        starting = threading.Thread(target=cluster.start)
        starting.start()
        while starting.is_alive():
            with contextlib.suppress(OSError):
                ready = fetch(f"127.0.0.1:{port}", "/readyz")
                seen[ready.text] = ready.status
                assert fetch(f"127.0.0.1:{port}", "/healthz").status == 200
            time.sleep(0.005)
        starting.join()
        during = [text for text in seen if " % of the log is read" in text]
        print(*during, sep="")
        assert len(during) > 1
        assert {seen[text] for text in during} == {503}
        assert fetch(f"127.0.0.1:{port}", "/readyz").status == 200
        shown = Scrape(fetch(f"127.0.0.1:{port}", "/metrics").text)
        assert shown.value("cometmq_recovery_position_bytes") > 100 << 20


async def fill(namesrv: str, size_bytes: int) -> None:
    """Send messages of this size together."""
    body = os.urandom(64 << 10)  # which cannot be compressed
    async with cometmq.Client(namesrv) as client:
        for _ in range(size_bytes // len(body) // 16):
            await asyncio.gather(*(client.send("filled", body) for _ in range(16)))


@pytest.mark.parametrize(
    "words",
    [
        ["check", "rules", "alerts.yml"],
        ["check", "config", "prometheus.yml"],
        ["test", "rules", "alerts_test.yml"],
    ],
    ids=" ".join,
)
def test_promtool_accepts_the_files(tools: Path, words: list[str]) -> None:
    done = subprocess.run(
        [str(tools / "promtool"), *words], cwd=FILES, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_accepts_the_configuration_of_the_page(tools: Path, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "monitoring.md").read_text(encoding="utf-8")
    [block] = re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "prometheus.yml").write_text(block)
    words = [str(tools / "promtool"), "check", "config", "prometheus.yml"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_test() -> None:
    declared = yaml.safe_load((FILES / "alerts.yml").read_text())["groups"][0]["rules"]
    tests = yaml.safe_load((FILES / "alerts_test.yml").read_text())["tests"]
    tested = {
        case["alertname"]
        for each in tests
        for case in each["alert_rule_test"]
        if case["exp_alerts"]
    }
    assert {rule["alert"] for rule in declared} == tested
