"""What administrators do with running consumers, by RocketMQ's own `mqadmin`: resets, looks inside,
messages consumed at once; and message traces, whoever wrote them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from functools import partial
from typing import cast

import pytest

from cometmq.admin.api import Admin
from cometmq.client.client import Client
from tests.client.remembering import Consumer
from tests.client.shared_broker import fresh_name, fresh_topic
from tests.compat.anchor import VERSION, wait_until
from tests.compat.conftest import Target
from tests.compat.driver import Driver, Json, column, tables
from tests.compat.groups import Groups
from tests.compat.lines import proves

#: RocketMQ's client lets a reset rest for 10 s before it goes on.
JAVA_RESET_S = 60


class Tools:
    """`mqadmin` on one group and topic."""

    def __init__(self, driver: Driver, target: Target, group: str, topic: str) -> None:
        self._driver = driver
        self._namesrv = ("-n", target.namesrv)
        self._group = ("-g", group)
        self._topic = ("-t", topic)

    def reset(self, moment: str) -> dict[int, int]:
        """resetOffsetByTime: the new offset of each queue; nothing when it was refused."""
        words = (*self._namesrv, *self._group, *self._topic, "-s", moment)
        printed = self._driver.mqadmin("resetOffsetByTime", *words)
        rows = [row for row in tables(printed) if len(row) == 3 and row[0] == "broker-a"]
        return {int(queue): int(offset) for _, queue, offset in rows}

    def positions(self) -> list[dict[str, Json]]:
        """Client, broker, queue and offset, as the consumers say (no command prints them)."""
        where = {"namesrv": self._namesrv[1], "group": self._group[1], "topic": self._topic[1]}
        return self._driver.rows("positions", **where)

    def behind(self) -> int:
        """consumerProgress: how many messages the group has still to consume."""
        printed = self._driver.mqadmin("consumerProgress", *self._namesrv, *self._group)
        found = re.search(r"Diff Total: (\d+)", printed)
        assert found is not None
        return int(found[1])

    def client_ids(self) -> list[str]:
        """consumerConnection: the ids of the members."""
        printed = self._driver.mqadmin("consumerConnection", *self._namesrv, *self._group)
        return [row[0] for row in tables(printed) if row[2:] and row[2] in ("JAVA", "PYTHON")]

    def running_info(self, client_id: str) -> str:
        """consumerStatus with stacks."""
        words = (*self._namesrv, *self._group, "-i", client_id, "-s")
        return self._driver.mqadmin("consumerStatus", *words)

    def consume(self, client_id: str, offset_id: str) -> str:
        """queryMsgById with a consumer: what came of it."""
        topic = () if self._driver.version == VERSION else self._topic
        words = (*self._namesrv, *self._group, *topic, "-d", client_id, "-i", offset_id)
        found = re.search(r"consumeResult=(\w+)", self._driver.mqadmin("queryMsgById", *words))
        return found[1] if found else ""


def check_running_info(printed: str, topic: str, offset: int) -> None:
    """That a consumer's description has its parts, and this offset of the topic's queue 0."""
    for part in ("#Consumer Properties#", "#Consumer Offset#", "#Consumer RT&TPS#"):
        assert part in printed
    assert "PROP_CONSUMER_START_TIMESTAMP" in printed
    assert [topic, "broker-a", "0", str(offset)] in tables(printed)
    assert f"Topic: {topic}" in printed
    assert "#Consumer jstack#" in printed


@proves("reset while running", "consumer status", "running info", "consume directly")
@pytest.mark.runs("4.9.7-cometmq", "5.5.0-cometmq", "4.9.7-java")
def test_tools_and_a_java_consumer(driver: Driver, target: Target, groups: Groups) -> None:
    topic = fresh_name("operated")
    words = ("-n", target.namesrv, "-c", target.cluster_name, "-t", topic, "-r", "1", "-w", "1")
    driver.mqadmin("updateTopic", *words)
    [first] = driver.send(target.namesrv, topic, prefix="a-")
    group = groups.make(topic)
    member = group.join()
    group.received(member, 1, settle_ms=0)
    # The pull after this one commits.
    driver.send(target.namesrv, topic, prefix="b-", count=2)
    assert len(group.received(member, 3, settle_ms=0)) == 3
    tools = Tools(driver, target, f"g-{topic}", topic)
    [client_id] = tools.client_ids()
    wait_until(lambda: column(tools.positions(), "offset") == [3], "its position", 30)
    check_running_info(tools.running_info(client_id), topic, 3)
    assert tools.consume(client_id, str(first["offsetMsgId"])) == "CR_SUCCESS"
    assert column(group.received(member, 4), "keys")[-1] == "a-0"
    wait_until(lambda: tools.reset("0") == {0: 0}, "a reset", 30)
    wait_until(lambda: len(group.received(member, 7, 0)) >= 7, "all again", JAVA_RESET_S)
    again = column(group.received(member, 7, 0), "keys")[4:]
    assert {"a-0", "b-0", "b-1"} == set(again)
    group.close()
    # With nobody online the tool sets the offsets itself.
    wait_until(lambda: tools.behind() == 0, "its commit", 30)
    tools.reset("0")
    assert tools.behind() == 3


@pytest.fixture
async def client(target: Target) -> AsyncIterator[Client]:
    async with Client(
        target.namesrv,
        send_timeout_ms=10_000,
        trace=True,
        offset_persist_interval_ms=200,
        pull_suspend_ms=1_000,
    ) as client:
        yield client


@proves("reset while running", "consumer status", "running info", "consume directly")
async def test_tools_and_our_consumer(client: Client, driver: Driver, target: Target) -> None:
    topic = await fresh_topic(client, queues=1)
    first = await client.send(topic, b"0")
    for body in (b"1", b"2"):
        await client.send(topic, body)
    async with Consumer(client, topic, ordered=True) as consumer:
        assert await consumer.got(3, deadline_s=60) == [b"0", b"1", b"2"]
        tools = Tools(driver, target, consumer.group, topic)
        in_thread = asyncio.to_thread
        assert await in_thread(tools.client_ids) == [client.client_id]
        where = {"client": client.client_id, "broker": "broker-a", "queue": 0, "offset": 3}
        assert await in_thread(tools.positions) == [where]
        check_running_info(await in_thread(tools.running_info, client.client_id), topic, 3)
        consumed = partial(tools.consume, client.client_id, first.offset_id)
        assert await in_thread(consumed) == "CR_SUCCESS"
        assert (await consumer.got(4, deadline_s=60))[3:] == [b"0"]
        admin = Admin(client.session)
        async with asyncio.timeout(30):
            while (await admin.group_offsets(consumer.group, topic))[first.queue] != 3:
                await asyncio.sleep(0.05)
        assert await in_thread(tools.reset, "0") == {0: 0}
        assert (await consumer.got(7, deadline_s=60))[4:] == [b"0", b"1", b"2"]
        consumer.fails = True
        assert await in_thread(consumed) == "CR_THROW_EXCEPTION"


def trace(driver: Driver, target: Target, message_id: str) -> list[list[str]]:
    """queryMsgTraceById: kind, group, client, day, time, cost and status of each row."""
    printed = driver.mqadmin("queryMsgTraceById", "-n", target.namesrv, "-i", message_id)
    return [row for row in tables(printed) if row[0] in ("Pub", "Sub")]


def check_traced(driver: Driver, target: Target, message_id: str, groups: dict[str, str]) -> None:
    """That the tool finds the groups that sent (Pub) and consumed (Sub) a message."""
    rows: list[list[str]] = []

    def all_came() -> bool:
        rows[:] = trace(driver, target, message_id)
        return {row[0]: row[1] for row in rows} == groups

    wait_until(all_came, "its traces", 40)
    for row in rows:
        assert re.fullmatch(r"\d+\.\d+\.\d+\.\d+", row[2])
        assert re.fullmatch(r"\d+ms", row[5])
        assert row[6] == "success"


@proves("message trace")
def test_traces_that_java_wrote(driver: Driver, target: Target) -> None:
    topic = fresh_name("traced")
    common = {"namesrv": target.namesrv, "topic": topic}
    sent = driver.ask("tracedSend", group=f"p-{topic}", key="k", **common)
    assert driver.ask("tracedConsume", group=f"c-{topic}", **common) is True
    message_id = str(cast("dict[str, Json]", sent)["msgId"])
    groups = {"Pub": f"p-{topic}", "Sub": f"c-{topic}"}
    if driver.version != VERSION:
        # RocketMQ 5's client traces consuming of messages that name a region only, as RocketMQ 5's
        # broker has them store it.
        del groups["Sub"]
    check_traced(driver, target, message_id, groups)


@proves("message trace")
async def test_traces_that_we_wrote(client: Client, driver: Driver, target: Target) -> None:
    topic = await fresh_topic(client, queues=1)
    sent = await client.send(topic, b"traced", tag="a", keys=["k"])
    async with Consumer(client, topic) as consumer:
        await consumer.got(1, deadline_s=60)
        groups = {"Pub": client.config.producer_group, "Sub": consumer.group}
        await asyncio.to_thread(check_traced, driver, target, sent.message_id, groups)
