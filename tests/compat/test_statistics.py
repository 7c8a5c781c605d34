"""Statistics by RocketMQ's names, and what `mqadmin` makes of them: the same numbers from a Java
broker and from ours after the same traffic."""

from __future__ import annotations

import json
import socket
from typing import Any, cast

import pytest

from cometmq.protocol.codes import RequestCode
from cometmq.protocol.frame import JSON, decode_head, encode_head
from tests.compat.anchor import wait_until
from tests.compat.conftest import Target
from tests.compat.driver import Driver, tables
from tests.compat.groups import Group
from tests.compat.test_mqadmin import facts, send
from tests.compat.test_producer import pull_all

pytestmark = pytest.mark.runs("4.9.7-cometmq", "4.9.7-java")

#: A figure appears with its first sample, up to 10 s after the message.
SAMPLE_S = 30


def ask(target: Target, name: str, key: str) -> tuple[int, Any]:
    """The code and the body, or the remark, of a broker's answer about a figure."""
    fields = {"statsName": name, "statsKey": key}
    code = RequestCode.VIEW_BROKER_STATS_DATA
    head = encode_head(code=code, opaque=1, flag=0, ext=fields, codec=JSON, body_bytes=0)
    host, _, port = target.broker.partition(":")
    with socket.create_connection((host, int(port)), 5) as connection:
        connection.sendall(head)
        with connection.makefile("rb") as stream:
            answer = stream.read(int.from_bytes(stream.read(4), "big"))
    end = 4 + int.from_bytes(answer[1:4], "big")
    decoded = decode_head(JSON, answer[4:end])
    return decoded.code, json.loads(answer[end:]) if answer[end:] else decoded.remark


def minute(target: Target, name: str, key: str) -> dict[str, float]:
    """The last minute of a figure; zeros while it has none."""
    code, body = ask(target, name, key)
    if code:
        return {"sum": 0, "tps": 0.0, "avgpt": 0.0}
    return cast("dict[str, float]", body["statsMinute"])


def wait_for_sum(target: Target, name: str, key: str, total: int) -> dict[str, float]:
    """Waits until the last minute of a figure has a sum."""
    wait_until(lambda: minute(target, name, key)["sum"] == total, f"{name} of {key}", SAMPLE_S)
    return minute(target, name, key)


def spans_steps(figure: dict[str, float]) -> bool:
    """Whether a sum and its rate are of one to six steps of 10 s."""
    steps = figure["sum"] / figure["tps"] / 10
    return 0.9 < steps < 6.6 and abs(steps - round(steps)) < 0.1


def test_a_topic_and_its_group(driver: Driver, target: Target) -> None:
    topic, name = "stats-read", "stats-readers"
    send(driver, target, topic, count=10)
    send(driver, target, topic, mode="batch", count=6, queue=0)
    group = Group(driver, target, name, topic)
    member = group.join()
    try:
        group.received(member, 16)
        stored = pull_all(driver, target, topic)
        size_bytes = sum(cast("int", row["storeSize"]) for row in stored)
        key = f"{topic}@{name}"
        puts = wait_for_sum(target, "TOPIC_PUT_NUMS", topic, 16)
        gets = wait_for_sum(target, "GROUP_GET_NUMS", key, 16)
        assert puts["avgpt"] == 16 / 11
        assert 1 <= gets["avgpt"] <= 16
        assert spans_steps(puts)
        assert spans_steps(gets)
        assert minute(target, "TOPIC_PUT_SIZE", topic)["avgpt"] == size_bytes / 11
        for figure, of in (("TOPIC_PUT_SIZE", topic), ("GROUP_GET_SIZE", key)):
            assert minute(target, figure, of)["sum"] == size_bytes
        _, body = ask(target, "TOPIC_PUT_NUMS", topic)
        assert list(body) == ["statsDay", "statsHour", "statsMinute"]
        assert all(list(window) == ["avgpt", "sum", "tps"] for window in body.values())
        words = ("statsAll", "-n", target.namesrv, "-t", topic)
        # The consumer commits what it read within 5 s.
        wait_until(lambda: tables(driver.mqadmin(*words))[0][2] == "0", "all commits", 20)
        for command in (words, (*words, "-a")):
            [row] = tables(driver.mqadmin(*command))
            assert (row[0], row[1], row[2], row[5:]) == (topic, name, "0", ["16", "16"])
            assert float(row[3]) > 0
            assert float(row[4]) > 0
        at = ("-n", target.namesrv, "-g", name)
        shown = float(facts(driver.mqadmin("consumerProgress", *at))["Consume TPS"])
        assert shown > 0
    finally:
        group.close()


def test_a_topic_without_a_group(driver: Driver, target: Target) -> None:
    topic = "stats-unread"
    send(driver, target, topic, count=3)
    wait_for_sum(target, "TOPIC_PUT_NUMS", topic, 3)
    [row] = tables(driver.mqadmin("statsAll", "-n", target.namesrv, "-t", topic))
    assert (row[0], row[1], row[3:]) == (topic, "0", ["3", "NO_CONSUMER"])


def test_what_does_not_exist(driver: Driver, target: Target) -> None:
    for name, key in (
        ("TOPIC_PUT_NUMS", "stats-nothing"),
        ("GROUP_GET_NUMS", "stats-nothing@nobody"),
        ("GROUP_GET_FALL_SIZE", "0@stats-nothing@nobody"),
        ("COMMERCIAL_SEND_TIMES", "owner@stats-nothing@nobody@SEND_SUCCESS"),
        ("BROKER_PUT_NUMS", "another cluster"),
        ("NO_SUCH_FIGURE", "x"),
    ):
        assert ask(target, name, key) == (1, f"The stats <{name}> <{key}> not exist")


def test_the_whole_broker(driver: Driver, target: Target) -> None:
    """Other tests send too, so only what grows is compared: within one sample it is exact."""
    send(driver, target, "stats-broker", count=5)
    wait_for_sum(target, "TOPIC_PUT_NUMS", "stats-broker", 5)
    puts = minute(target, "BROKER_PUT_NUMS", target.cluster_name)
    assert puts["sum"] >= 5
    assert puts["avgpt"] == 0.0
    assert spans_steps(puts)


def test_delayed_messages(driver: Driver, target: Target) -> None:
    topic = "stats-delayed"
    before = minute(target, "QUEUE_PUT_NUMS", "SCHEDULE_TOPIC_XXXX@0")["sum"]
    send(driver, target, topic, count=4, delay=1)
    wait_for_sum(target, "TOPIC_PUT_NUMS", topic, 4)
    assert minute(target, "QUEUE_PUT_NUMS", "SCHEDULE_TOPIC_XXXX@0")["sum"] >= 4 or before
    for name, key in (
        ("TOPIC_PUT_NUMS", "SCHEDULE_TOPIC_XXXX"),
        ("GROUP_GET_NUMS", "SCHEDULE_TOPIC_XXXX@SCHEDULE_CONSUMER"),
        ("QUEUE_GET_NUMS", "SCHEDULE_TOPIC_XXXX@0@SCHEDULE_CONSUMER"),
    ):
        assert minute(target, name, key)["sum"] >= 4, name


def test_messages_that_are_sent_back(driver: Driver, target: Target) -> None:
    topic, name = "stats-back", "stats-back-group"
    send(driver, target, topic, count=2)
    group = Group(driver, target, name, topic)
    member = group.join(failTimes=1)
    try:
        group.received(member, 2, settle_ms=0)
        figure = wait_for_sum(target, "SNDBCK_PUT_NUMS", f"{topic}@{name}", 2)
        assert figure["avgpt"] == 1.0
    finally:
        group.close()


def test_keys_of_the_broker_s_state(driver: Driver, target: Target) -> None:
    status = facts(driver.mqadmin("brokerStatus", "-n", target.namesrv, "-b", target.broker))
    times = status["putMessageDistributeTime"].split()
    ranges = [each.rpartition(":")[0] for each in times]
    # Java prints "null" in the first minute of a broker.
    assert (target.name == "java" and times == ["null"]) or ranges == [
        "[<=0ms]", "[0~10ms]", "[10~50ms]", "[50~100ms]", "[100~200ms]", "[200~500ms]",
        "[500ms~1s]", "[1~2s]", "[2~3s]", "[3~4s]", "[4~5s]", "[5~10s]", "[10s~]",
    ]  # fmt: skip
    for latency in ("putLatency99", "putLatency999"):
        assert float(status[latency]) >= 0
    assert int(status["putMessageEntireTimeMax"]) >= 0
    for rate in ("putTps", "getFoundTps", "getMissTps", "getTotalTps", "getTransferedTps"):
        assert float(status[rate].split()[0]) >= 0
