"""Messages with a delivery time of their own, and such that are taken back: a thing of RocketMQ 5
that CometMQ has for clients of both."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest

from cometmq.client.client import Client
from tests.client.shared_broker import fresh_name, fresh_topic, read_all
from tests.compat.anchor import wait_until
from tests.compat.conftest import Target
from tests.compat.driver import Driver, StepFailed, column
from tests.compat.lines import proves
from tests.compat.test_producer import pull_all

#: RocketMQ 5 counts in whole seconds.
EARLY_MS, LATE_MS = 1_000, 3_000


@proves("arbitrary delays")
@pytest.mark.runs("4.9.7-cometmq", "5.5.0-cometmq", "5.5.0-java5")
def test_messages_come_when_their_sender_says(driver: Driver, target: Target) -> None:
    topic = fresh_name("timers")
    driver.send(target.namesrv, topic, prefix="now-")
    began_ms = time.time_ns() // 1_000_000
    due = {
        "ms": ({"TIMER_DELAY_MS": "2500"}, began_ms + 2_500),
        "sec": ({"TIMER_DELAY_SEC": "3"}, began_ms + 3_000),
        "moment": ({"TIMER_DELIVER_MS": str(began_ms + 4_000)}, began_ms + 4_000),
    }
    for name, (timer, _) in due.items():
        driver.send(target.namesrv, topic, prefix=f"{name}-", timer=timer)
    # When each came is told by its store time: a slow machine looks late.
    wait_until(lambda: len(pull_all(driver, target, topic)) == 4, "all messages", 30)
    rows = {str(row["keys"]): row for row in pull_all(driver, target, topic)}
    for name, (_, due_ms) in due.items():
        late_ms = cast("int", rows[f"{name}-0"]["storeTimestamp"]) - due_ms
        assert -EARLY_MS <= late_ms < LATE_MS, name


@proves("recall")
@pytest.mark.runs("5.5.0-cometmq", "5.5.0-java5")
def test_a_message_may_be_taken_back(driver: Driver, target: Target) -> None:
    topic, group = fresh_name("timers-recall"), fresh_name("recalling")
    sender = {"group": group, "prefix": "first-"}
    [now] = driver.send(target.namesrv, topic, **sender)
    assert not now.get("recallHandle")
    sent = {
        name: driver.send(
            target.namesrv, topic, group=group, prefix=f"{name}-", timer={"TIMER_DELAY_SEC": delay}
        )[0]
        for name, delay in (("back", "4"), ("kept", "5"))
    }
    at = {"namesrv": target.namesrv, "group": group, "topic": topic}
    recalled = driver.ask("recall", handle=sent["back"]["recallHandle"], **at)
    assert recalled == sent["back"]["msgId"]
    with pytest.raises(StepFailed, match="handle"):
        driver.ask("recall", handle="no handle", **at)
    wait_until(
        lambda: "kept-0" in column(pull_all(driver, target, topic), "keys"), "the kept one", 30
    )
    assert set(column(pull_all(driver, target, topic), "keys")) == {"first-0", "kept-0"}


@pytest.fixture
async def client(target: Target) -> AsyncIterator[Client]:
    async with Client(target.namesrv, send_timeout_ms=10_000) as client:
        yield client


@proves("arbitrary delays", "recall")
@pytest.mark.runs("cometmq", "java5")
async def test_our_client_says_when_and_takes_back(client: Client, target: Target) -> None:
    topic = await fresh_topic(client)
    began_ms = client.session.clock.wall_ms()
    moment = datetime.fromtimestamp(began_ms / 1_000, UTC) + timedelta(seconds=4)
    await client.send(topic, b"delay", delay_s=2.5)
    back = await client.send(topic, b"back", delay_s=3)
    await client.send(topic, b"moment", deliver_at=moment)
    await client.recall(back)
    found = {message.body: message for message in await read_all(client, topic, 2)}
    assert set(found) == {b"delay", b"moment"}
    for body, due_ms in ((b"delay", began_ms + 2_500), (b"moment", began_ms + 4_000)):
        late_ms = found[body].stored.store_ms - due_ms
        assert -EARLY_MS <= late_ms < LATE_MS
