"""Health of clusters: real ones of CometMQ, with servers missing, drained and full."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cometmq.admin import health
from cometmq.admin.api import Admin, Broker
from cometmq.admin.health import (
    Aspect,
    HealthLimits,
    HealthReport,
    NotHealthy,
    check_health,
    store_checks,
    wait_until_healthy,
)
from cometmq.admin.servers import Servers
from cometmq.client.client import Client
from cometmq.protocol.bodies import SubscriptionGroupConfig
from cometmq.testing.cluster import Cluster, running_cluster
from tests.broker.replicated import group
from tests.broker.test_supervisor import SLAVE, living
from tests.client.scripted import eventually
from tests.client.shared_broker import fresh_name, fresh_topic
from tests.namesrv.serving import name_server

CLOSED = "127.0.0.1:9"
#: The disk of a test machine may be nearly full.
ROOMY = HealthLimits(disk_ratio=1.0)


async def test_a_healthy_cluster(admin: Admin, cometmq_session_cluster: Cluster) -> None:
    report = await wait_until_healthy(admin, ROOMY, timeout_ms=30_000)
    assert report.is_healthy
    assert report.problems == []
    found = {(each.aspect, each.subject) for each in report.checks}
    assert (Aspect.NAME_SERVER, cometmq_session_cluster.namesrv) in found
    assert (Aspect.BROKER, cometmq_session_cluster.broker) in found
    assert {Aspect.WRITES, Aspect.DISK, Aspect.REGISTRATION} <= {aspect for aspect, _ in found}


async def test_what_is_missing(admin: Admin) -> None:
    (broker,) = await admin.brokers()
    (found,) = [
        each.text
        for each in (await check_health(admin, ROOMY)).checks
        if each.subject == broker.name and each.aspect is Aspect.REGISTRATION
    ]
    assert found == "master and 0 slaves registered"
    limits = HealthLimits(frozenset({"broker-z"}), slaves=1, disk_ratio=1.0)
    report = await check_health(admin, limits)
    assert [(each.aspect, each.subject, each.text) for each in report.problems] == [
        (Aspect.REGISTRATION, broker.name, "master and 0 slaves registered, 1 needed"),
        (Aspect.REGISTRATION, "broker-z", "it is not registered: is it stopped?"),
    ]
    with pytest.raises(NotHealthy, match="broker-z: it is not registered") as raised:
        await wait_until_healthy(admin, limits, timeout_ms=30, step_ms=10)
    assert raised.value.report.problems


async def test_a_broker_that_was_seen_before(admin: Admin) -> None:
    (broker,) = await admin.brokers()
    seen = {broker.name: 1_767_225_600_000, "broker-z": 1_767_225_600_000}
    limits = HealthLimits(disk_ratio=1.0, seen=seen, brokers_min=2)
    report = await check_health(admin, limits)
    assert report.brokers == {broker.name}
    assert [(each.aspect, each.subject, each.text) for each in report.problems] == [
        (Aspect.REGISTRATION, "cluster", "1 broker registered, 2 needed"),
        (
            Aspect.REGISTRATION,
            "broker-z",
            "it is not registered, and was at 2026-01-01T00:00:00.000Z: is it stopped?",
        ),
    ]
    enough = HealthLimits(disk_ratio=1.0, brokers_min=1)
    assert (await check_health(admin, enough)).is_healthy


async def test_a_broker_that_leaves_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting does not end because the broker that was in trouble has left."""
    rounds: list[HealthReport] = []

    async def noted(admin: Admin, limits: HealthLimits | None = None) -> HealthReport:
        rounds.append(await check_health(admin, limits))
        return rounds[-1]

    monkeypatch.setattr(health, "check_health", noted)
    async with group(tmp_path) as made, Client(made.namesrv) as client:
        admin = Admin(client.session)
        async with living(made, "a"):
            async with living(made, "z", brokerName="broker-z"):
                await Servers(admin).stop_writes("broker-z")
                waiting = asyncio.create_task(
                    wait_until_healthy(admin, ROOMY, timeout_ms=3_000, step_ms=50)
                )
                await eventually(lambda: rounds)
                assert "broker-z" in rounds[0].brokers
            with pytest.raises(
                NotHealthy, match="broker-z: it is not registered, and was at"
            ) as raised:
                await waiting
    report = raised.value.report
    assert (set(report.brokers), set(report.seen)) == ({"broker-a"}, {"broker-a", "broker-z"})


async def test_the_lag_of_groups(client: Client, admin: Admin) -> None:
    topic, busy, idle = await fresh_topic(client, 1), fresh_name("g"), fresh_name("g")
    for each in (busy, idle):
        await admin.update_group(SubscriptionGroupConfig(each))
    sent = await client.send(topic, b"")
    await admin.commit_group_offsets(busy, {sent.queue: 0})
    limits = HealthLimits(disk_ratio=1.0, lag={busy: 0, idle: 5, "nobody": 5})
    problems = (await check_health(admin, limits)).problems
    assert [(each.subject, each.text) for each in problems] == [
        (busy, "lag is 1, the limit is 0"),
        (idle, "it has not consumed yet"),
        ("nobody", "group 'nobody': no broker knows it: check its name"),
    ]
    assert (await check_health(admin, HealthLimits(disk_ratio=1.0, lag={busy: 1}))).is_healthy


async def test_a_drained_broker_and_a_silent_name_server(tmp_path: Path) -> None:
    async with (
        running_cluster(tmp_path) as cluster,
        Client(f"{cluster.namesrv};{CLOSED}") as client,
    ):
        admin = Admin(client.session)
        await Servers(admin).stop_writes((await admin.brokers())[0].name)
        problems = (await check_health(admin, ROOMY)).problems
        assert [(each.aspect, each.subject) for each in problems] == [
            (Aspect.NAME_SERVER, CLOSED),
            (Aspect.WRITES, "broker-a"),
        ]
        assert "drained" in problems[1].text


async def test_slaves_and_name_servers_that_differ(tmp_path: Path) -> None:
    async with (
        group(tmp_path) as made,
        living(made, "a", brokerRole="ASYNC_MASTER"),
        living(made, "b", **SLAVE) as slave,
        name_server(tmp_path / "empty") as empty,
        Client(f"{made.namesrv};{empty.address}") as client,
    ):
        admin = Admin(client.session)
        address = f"127.0.0.1:{slave.broker.port}"
        limits = HealthLimits(slaves=1, disk_ratio=1.0)
        async with asyncio.timeout(60):
            while True:
                checks = (await check_health(admin, limits)).checks
                of_slaves = [each.is_ok for each in checks if each.aspect is Aspect.SLAVE]
                if of_slaves and all(of_slaves):
                    break
        assert address in {each.subject for each in checks if each.aspect is Aspect.SLAVE}
        problems = [each for each in checks if not each.is_ok]
        assert {(each.aspect, each.subject) for each in problems} == {
            (Aspect.REGISTRATION, empty.address),
        }
        assert any(address in each.text for each in problems)


async def test_a_slave_that_is_not_connected(tmp_path: Path) -> None:
    """Its log has as many bytes as the master's, and yet it copies nothing."""
    async with (
        group(tmp_path) as made,
        living(made, "a", brokerRole="ASYNC_MASTER"),
        living(made, "b", **SLAVE, haMasterAddress=CLOSED) as slave,
        Client(made.namesrv) as client,
    ):
        address = f"127.0.0.1:{slave.broker.port}"
        report = await check_health(Admin(client.session), HealthLimits(slaves=1, disk_ratio=1.0))
        [problem] = report.problems
        assert (problem.aspect, problem.subject) == (Aspect.SLAVE, address)
        assert problem.text == "it is not connected to its master: see its log"


async def test_no_server_answers() -> None:
    async with Client(CLOSED) as client:
        problems = (await check_health(Admin(client.session))).problems
    assert [(each.aspect, each.subject) for each in problems] == [
        (Aspect.NAME_SERVER, CLOSED),
        (Aspect.REGISTRATION, "cluster"),
    ]


def test_figures_of_a_store() -> None:
    table = {
        "commitLogDiskRatio": "0.91",
        "consumeQueueDiskRatio": "0.5",
        "dispatchBehindBytes": "99999999",
        "startAcceptSendRequestTimeStamp": "2000",
    }
    master, slave = Broker("c", "b", 0, "h:1"), Broker("c", "b", 1, "h:2")
    found = store_checks(master, table, HealthLimits(), 1_000)
    assert [(each.aspect, each.is_ok) for each in found] == [
        (Aspect.DISK, False),
        (Aspect.DISK, True),
        (Aspect.DISPATCH, False),
        (Aspect.WRITES, False),
    ]
    assert found[0].text == "disk of the log is 91% full, the limit is 85%"
    assert len(store_checks(slave, table, HealthLimits(), 1_000)) == 3
    for connected in (0, 1, 2):
        table = {"brokerRole": "SYNC_MASTER", "slaves": str(connected), "slavesNeeded": "1"}
        (found_one,) = store_checks(master, table, HealthLimits(), 0)
        assert (found_one.aspect, found_one.is_ok) == (Aspect.SLAVE, connected >= 1)
        assert found_one.text == f"its sends wait for 1 slave, connected: {connected}"
    table = {"brokerRole": "ASYNC_MASTER", "slaves": "0", "slavesNeeded": "0"}
    assert store_checks(master, table, HealthLimits(), 0) == []
    assert store_checks(master, {"commitLogDiskRatio": "-1.0"}, HealthLimits(), 0) == []
    assert store_checks(master, {"commitLogDiskRatio": "?"}, HealthLimits(), 0) == []
