"""A Java client that writes the ROCKETMQ binary header instead of JSON."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat.conftest import Target
from tests.compat.driver import Driver, column, tables
from tests.compat.groups import Group
from tests.compat.test_producer import check_results, props, pull_all

pytestmark = pytest.mark.runs("cometmq", "java")


@pytest.fixture(scope="module")
def binary_driver(jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """Java's client and tools, with the other header format."""
    settings = {"rocketmq.serialize.type": "ROCKETMQ"}
    running = Driver(jars, tmp_path_factory.mktemp("binary"), settings)
    yield running
    running.close()


def test_everyday_work_in_binary(binary_driver: Driver, target: Target) -> None:
    topic = "binary"
    driver = binary_driver
    options = {"tags": ["a", "b"], "properties": {"colour": "grün"}}
    sent = driver.send(target.namesrv, topic, prefix="one-", count=8, **options)
    sent += driver.send(target.namesrv, topic, mode="batch", prefix="many-", count=8)
    driver.send(target.namesrv, topic, mode="oneway", prefix="oneway-", count=4)
    check_results(sent, target)
    group = Group(driver, target, "binary-group", topic)
    try:
        rows = group.received(group.join(failTimes=1), 40)
    finally:
        group.close()
    stored = pull_all(driver, target, topic)
    assert len(stored) == 20
    assert sorted(map(str, column(rows, "keys"))) == sorted(
        2 * list(map(str, column(stored, "keys")))
    )
    assert {props(row).get("colour") for row in stored if "tags" in row} == {"grün"}
    status = tables(driver.mqadmin("topicStatus", "-n", target.namesrv, "-t", topic))
    assert sum(int(row[3]) for row in status) == 20
    at_broker = ("-n", target.namesrv, "-b", target.broker)
    assert "dispatchBehindBytes" in driver.mqadmin("brokerStatus", *at_broker)
    cluster = tables(driver.mqadmin("clusterList", "-n", target.namesrv))
    assert cluster[0][:2] == [target.cluster_name, target.broker_name]
