"""RocketMQ's own `mqadmin` 4.9.7: the commands of every day print right answers."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import cast

import pytest

from tests.compat import anchor
from tests.compat.anchor import wait_until
from tests.compat.conftest import Target
from tests.compat.driver import Driver, Json, column, tables
from tests.compat.groups import Group
from tests.compat.test_producer import pull_all

#: mqadmin 5 prints other tables.
pytestmark = pytest.mark.runs("4.9.7-cometmq", "4.9.7-java")


def queue_counts(sent: list[dict[str, Json]]) -> dict[int, int]:
    """How many of the sent messages each queue got."""
    return dict(Counter(cast("int", row["queueId"]) for row in sent))


def facts(text: str) -> dict[str, str]:
    """`key : value` lines."""
    lines = (line.partition(":") for line in text.splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, _, value in lines}


def send(driver: Driver, target: Target, topic: str, **options: object) -> list[dict[str, Json]]:
    """Sends to a new topic and waits until name servers know it."""
    sent = driver.send(target.namesrv, topic, **options)
    wait_until(lambda: anchor.route_code(target.namesrv, topic) == 0, f"a route of {topic}", 10)
    return sent


def route(driver: Driver, target: Target, topic: str) -> dict[str, Json]:
    """What topicRoute prints: JSON, but for bare numbers as keys."""
    printed = driver.mqadmin("topicRoute", "-n", target.namesrv, "-t", topic)
    quoted = re.sub(r"([{,])\s*(\d+):", r'\1"\2":', printed)
    return cast("dict[str, Json]", json.loads(quoted))


def wait_for_figures(driver: Driver, target: Target) -> None:
    """Waits until the broker has figures: Java's has none in its first seconds."""

    def has_figures() -> bool:
        return "V4_9_7" in driver.mqadmin("clusterList", "-n", target.namesrv)

    wait_until(has_figures, "figures of the broker", 60)


def test_cluster_list(driver: Driver, target: Target) -> None:
    wait_for_figures(driver, target)
    rows = tables(driver.mqadmin("clusterList", "-n", target.namesrv))
    assert len(rows) == 1
    cluster, broker, broker_id, address, version, tps_in, tps_out, *_ = rows[0]
    assert (cluster, broker, broker_id) == (target.cluster_name, target.broker_name, "0")
    assert (address, version) == (target.broker, "V4_9_7")
    for load in (tps_in, tps_out):
        assert re.fullmatch(r"[\d.]+\(\d+,\d+ms\)", load)


def test_cluster_list_counts_messages(driver: Driver, target: Target) -> None:
    def today() -> int:
        rows = tables(driver.mqadmin("clusterList", "-m", "-n", target.namesrv))
        return int(rows[0][4])

    wait_for_figures(driver, target)
    before = today()
    send(driver, target, "admin-counts", count=7)
    assert today() == before + 7


def test_topic_list(driver: Driver, target: Target) -> None:
    send(driver, target, "admin-listed")
    topics = driver.mqadmin("topicList", "-n", target.namesrv).split()
    assert len(set(topics)) == len(topics)
    assert {"admin-listed", "TBW102", "SELF_TEST_TOPIC", "BenchmarkTest"} <= set(topics)
    assert {"SCHEDULE_TOPIC_XXXX", target.cluster_name, target.broker_name} <= set(topics)
    rows = tables(driver.mqadmin("topicList", "-c", "-n", target.namesrv))
    assert [target.cluster_name, "admin-listed"] in rows


def test_topic_route(driver: Driver, target: Target) -> None:
    send(driver, target, "admin-route")
    printed = route(driver, target, "admin-route")
    assert printed["brokerDatas"] == [
        {
            "brokerAddrs": {"0": target.broker},
            "brokerName": target.broker_name,
            "cluster": target.cluster_name,
        }
    ]
    assert printed["queueDatas"] == [
        {
            "brokerName": target.broker_name,
            "perm": 6,
            "readQueueNums": 4,
            "topicSysFlag": 0,
            "writeQueueNums": 4,
        }
    ]
    assert printed["filterServerTable"] == {}


def test_topic_status(driver: Driver, target: Target) -> None:
    topic = "admin-status"
    counts = queue_counts(send(driver, target, topic, count=10))
    rows = tables(driver.mqadmin("topicStatus", "-n", target.namesrv, "-t", topic))
    assert len(rows) == 4
    for broker, queue_id, low, high, *updated in rows:
        assert (broker, low) == (target.broker_name, "0")
        assert int(high) == counts[int(queue_id)]
        assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}", " ".join(updated))


def test_broker_status(driver: Driver, target: Target) -> None:
    def status() -> dict[str, str]:
        at = ("-n", target.namesrv, "-b", target.broker)
        return facts(driver.mqadmin("brokerStatus", *at))

    before = status()
    sent = send(driver, target, "admin-broker", count=9, size=200)
    after = status()
    assert after["brokerVersionDesc"] == "V4_9_7"
    assert int(after["msgPutTotalTodayNow"]) == int(before["msgPutTotalTodayNow"]) + 9
    assert int(after["putMessageTimesTotal"]) == int(before["putMessageTimesTotal"]) + 9
    stored = pull_all(driver, target, "admin-broker")
    grown = int(after["commitLogMaxOffset"]) - int(before["commitLogMaxOffset"])
    assert grown == sum(cast("int", row["storeSize"]) for row in stored)
    assert len(sent) == len(stored) == 9
    assert after["commitLogMinOffset"] == "0"
    wait_until(lambda: status()["dispatchBehindBytes"] == "0", "dispatch catches up", 10)


def test_update_topic(driver: Driver, target: Target) -> None:
    topic = "admin-made"
    common = ("updateTopic", "-n", target.namesrv, "-t", topic)
    printed = driver.mqadmin(*common, "-c", target.cluster_name, "-r", "3", "-w", "5")
    assert f"create topic to {target.broker} success." in printed
    queues = {"brokerName": target.broker_name, "topicSysFlag": 0}
    wanted = [{**queues, "perm": 6, "readQueueNums": 3, "writeQueueNums": 5}]
    wait_until(lambda: route(driver, target, topic)["queueDatas"] == wanted, "the route", 10)
    printed = driver.mqadmin(*common, "-b", target.broker, "-r", "2", "-w", "2", "-p", "4")
    assert "success" in printed
    wanted = [{**queues, "perm": 4, "readQueueNums": 2, "writeQueueNums": 2}]
    wait_until(lambda: route(driver, target, topic)["queueDatas"] == wanted, "the route", 10)


def test_delete_topic(driver: Driver, target: Target) -> None:
    topic = "admin-deleted"
    send(driver, target, topic, count=4)
    at = ("-n", target.namesrv, "-t", topic)
    printed = driver.mqadmin("deleteTopic", "-c", target.cluster_name, *at)
    assert f"delete topic [{topic}] from NameServer success." in printed
    assert topic not in driver.mqadmin("topicList", "-n", target.namesrv).split()
    assert driver.mqadmin("topicStatus", *at).strip() == ""


def check_found(printed: str, sent: dict[str, Json], target: Target) -> None:
    """That a query printed the message that was sent."""
    found = facts(printed)
    assert found["Tags"] == "[red]"
    assert found["Keys"] == "[q-0]"
    assert found["Queue ID"] == str(sent["queueId"])
    assert found["Queue Offset"] == str(sent["queueOffset"])
    assert found["Reconsume Times"] == "0"
    assert found["Store Host"] == target.broker
    assert f"UNIQ_KEY={sent['msgId']}" in found["Properties"]


def test_query_by_id(driver: Driver, target: Target, jars: Path, tmp_path: Path) -> None:
    topic = "admin-query-id"
    [sent] = send(driver, target, topic, prefix="q-", tags=["red"])
    at = ("-n", target.namesrv, "-i")
    found = driver.mqadmin("queryMsgById", *at, str(sent["offsetMsgId"]))
    check_found(found, sent, target)
    query = {"namesrv": target.namesrv, "topic": topic, "key": "q-0"}
    wait_until(lambda: len(driver.rows("query", **query)) == 1, "the index", 10)
    # This command keeps a connection that it has closed, so it works once in a JVM.
    words = ("queryMsgByUniqueKey", *at, str(sent["msgId"]), "-t", topic)
    check_found(anchor.mqadmin(jars, tmp_path, *words), sent, target)


def test_query_by_key(driver: Driver, target: Target) -> None:
    topic = "admin-query-key"
    sent = send(driver, target, topic, prefix="key-", count=5)
    sent += send(driver, target, topic, prefix="key-", count=5)
    expected = sorted(
        [str(row["msgId"]), str(row["queueId"]), str(row["queueOffset"])]
        for row in (sent[2], sent[7])
    )
    words = ("queryMsgByKey", "-n", target.namesrv, "-t", topic, "-k")
    wait_until(lambda: len(tables(driver.mqadmin(*words, "key-2"))) == 2, "both messages", 10)
    assert sorted(tables(driver.mqadmin(*words, "key-2"))) == expected
    assert tables(driver.mqadmin(*words, "no-such-key")) == []
    found = driver.rows("query", namesrv=target.namesrv, topic=topic, key="key-4")
    assert column(found, "keys") == ["key-4", "key-4"]


def test_query_by_offset(driver: Driver, target: Target) -> None:
    topic = "admin-query-offset"
    [sent] = send(driver, target, topic, prefix="at-")
    queue = str(sent["queueId"])
    words = ("-b", target.broker_name, "-t", topic, "-i", queue, "-o", "0")
    printed = facts(driver.mqadmin("queryMsgByOffset", "-n", target.namesrv, *words))
    assert (printed["Topic"], printed["Keys"]) == (topic, "[at-0]")
    assert printed["OffsetID"] == sent["offsetMsgId"]


def test_consumer_progress(driver: Driver, target: Target) -> None:
    topic, name = "admin-progress", "admin-progress-group"
    counts = Counter(queue_counts(send(driver, target, topic, count=10)))
    group = Group(driver, target, name, topic)
    member = group.join()
    try:
        group.received(member, 10)
        every = tables(driver.mqadmin("consumerProgress", "-n", target.namesrv))
        described = next(row for row in every if row[0] == name)
        assert described[1:5] == ["1", "V4_9_7", "PUSH", "CLUSTERING"]
        words = ("consumerConnection", "-n", target.namesrv, "-g", name)
        connected = driver.mqadmin(*words)
        assert "MessageModel: CLUSTERING" in connected
        assert [topic, "*"] in tables(connected)
    finally:
        group.close()  # which commits what was consumed, without waiting for the broker
    later = Counter(queue_counts(send(driver, target, topic, prefix="l-", count=6)))
    command = ("consumerProgress", "-n", target.namesrv, "-g", name)
    wait_until(lambda: facts(driver.mqadmin(*command))["Diff Total"] == "6", "all commits", 10)
    rows = [row for row in tables(driver.mqadmin(*command)) if row[0] == topic]
    assert len(rows) == 4
    for _, broker, queue_id, at_broker, at_consumer, behind, *_ in rows:
        queue = int(queue_id)
        assert broker == target.broker_name
        assert int(at_broker) == counts[queue] + later[queue]
        assert (int(at_consumer), int(behind)) == (counts[queue], later[queue])


def test_broker_settings(driver: Driver, target: Target) -> None:
    at = ("-n", target.namesrv, "-b", target.broker)

    def setting(name: str) -> str:
        lines = driver.mqadmin("getBrokerConfig", *at).splitlines()
        values = dict(line.partition("=")[::2] for line in lines)
        return {key.strip(): value.strip() for key, value in values.items()}[name]

    assert setting("brokerName") == target.broker_name
    before = setting("maxMessageSize")
    for value in (str(int(before) - 1), before):
        words = ("updateBrokerConfig", *at, "-k", "maxMessageSize", "-v", value)
        assert "success" in driver.mqadmin(*words)
        assert setting("maxMessageSize") == value


@pytest.mark.parametrize("command", ["topicStatus", "topicRoute"])
def test_a_missing_topic_prints_nothing(driver: Driver, target: Target, command: str) -> None:
    assert driver.mqadmin(command, "-n", target.namesrv, "-t", "no-such-topic").strip() == ""


def test_name_server_settings(driver: Driver, target: Target) -> None:
    """They are shown, and one that may change is changed and changed back."""

    def shown() -> dict[str, str]:
        printed = driver.mqadmin("getNamesrvConfig", "-n", target.namesrv)
        pairs = (line.partition("=") for line in printed.splitlines() if "=" in line)
        return {key.strip(): value.strip() for key, _, value in pairs}

    where = ("-n", target.namesrv, "-k", "orderMessageEnable")
    assert shown()["orderMessageEnable"] == "false"
    assert "success" in driver.mqadmin("updateNamesrvConfig", *where, "-v", "true")
    assert shown()["orderMessageEnable"] == "true"
    driver.mqadmin("updateNamesrvConfig", *where, "-v", "false")
    assert shown()["orderMessageEnable"] == "false"
    port = shown()["listenPort"]
    driver.mqadmin("updateNamesrvConfig", "-n", target.namesrv, "-k", "kvConfigPath", "-v", "/x")
    assert shown()["listenPort"] == port
    assert shown().get("kvConfigPath") != "/x"
