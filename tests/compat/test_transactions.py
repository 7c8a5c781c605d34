"""Transactions and request-reply: Java's client on our broker, ours on Java's, each on its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import pytest

from cometmq.client.client import Client
from cometmq.client.consumer.received import ReceivedMessage
from cometmq.message import properties as props
from cometmq.message.model import MessageView
from tests.client.scripted import eventually
from tests.client.shared_broker import fresh_name, fresh_topic, read_all
from tests.compat.anchor import wait_until
from tests.compat.conftest import Target
from tests.compat.driver import Driver, Json, column
from tests.compat.lines import proves
from tests.compat.test_producer import pull_all


@pytest.fixture
async def client(target: Target) -> AsyncIterator[Client]:
    async with Client(target.namesrv, send_timeout_ms=10_000) as client:
        yield client


@proves("commit and rollback", "check-back")
def test_the_java_producer_commits_rolls_back_and_is_asked(driver: Driver, target: Target) -> None:
    topic = fresh_name("java-transactions")
    group = fresh_name("java-transactions")
    driver.send(target.namesrv, topic, prefix="plain-")
    states = {
        f"{group}-commit": "COMMIT_MESSAGE,UNKNOW",
        f"{group}-rollback": "ROLLBACK_MESSAGE,UNKNOW",
        f"{group}-late": "UNKNOW,COMMIT_MESSAGE",
        f"{group}-never": "UNKNOW,ROLLBACK_MESSAGE",
    }
    sent = driver.rows(
        "transactions", namesrv=target.namesrv, topic=topic, group=group, states=states
    )
    assert {row["status"] for row in sent} == {"SEND_OK"}
    halves = {row["key"]: row for row in sent}
    wanted = {"plain-0", f"{group}-commit", f"{group}-late"}
    wait_until(
        lambda: len(pull_all(driver, target, topic)) == len(wanted), "both committed messages"
    )

    def checks() -> dict[str, Json]:
        return cast("dict[str, Json]", driver.ask("checks"))

    wait_until(lambda: f"{group}-never" in checks(), "the check that rolls back")
    rows = pull_all(driver, target, topic)
    assert set(column(rows, "keys")) == wanted
    for row in rows:
        if row["keys"] == "plain-0":
            continue
        half = halves[row["keys"]]
        found = cast("dict[str, str]", row["properties"])
        assert row["sysFlag"] == 8
        assert (found["UNIQ_KEY"], found["PGROUP"]) == (half["msgId"], group)
        assert (found["REAL_TOPIC"], found["REAL_QID"]) == (topic, str(half["queueId"]))
        assert row["queueId"] == half["queueId"]
    assert {key for key in checks() if key.startswith(group)} == {
        f"{group}-late",
        f"{group}-never",
    }


@proves("commit and rollback", "check-back")
async def test_our_client_commits_rolls_back_and_is_asked(client: Client) -> None:
    topic, group = await fresh_topic(client), fresh_name("transactions")
    asked: list[bytes] = []

    @client.transaction_checker(group)
    async def check(message: MessageView) -> bool:
        asked.append(message.body)
        assert message.topic == topic
        return message.body == b"late"

    async with client.transaction(topic, b"commit", keys=["k"], group=group):
        pass
    with pytest.raises(ZeroDivisionError):
        async with client.transaction(topic, b"rollback", group=group):
            raise ZeroDivisionError
    for body in (b"late", b"never"):
        async with client.transaction(topic, body, group=group) as tx:
            tx.leave_open()
    found = {message.body: message for message in await read_all(client, topic, 2)}
    assert set(found) == {b"commit", b"late"}
    assert found[b"late"].properties[props.PRODUCER_GROUP] == group
    await eventually(lambda: b"never" in asked, deadline_s=60)
    assert set(asked) == {b"late", b"never"}


@proves("request and reply")
async def test_requests_go_both_ways(client: Client, driver: Driver, target: Target) -> None:
    """Java asks us, and we ask Java, on each broker."""
    ours, theirs = await fresh_topic(client), await fresh_topic(client)

    @client.replier(ours, group=f"g-{ours}", start="first")
    async def answer(message: ReceivedMessage) -> bytes | None:
        return message.body + b" heard"

    asked = {"namesrv": target.namesrv, "topic": ours, "body": "apples"}
    fact = cast("dict[str, Json]", await asyncio.to_thread(driver.ask, "request", **asked))
    assert fact["body"] == "apples heard"
    reply = {"namesrv": target.namesrv, "topic": theirs, "group": f"g-{theirs}"}
    await asyncio.to_thread(driver.ask, "reply", **reply)
    found = await client.request(theirs, b"pears", timeout_ms=30_000)
    assert found.body == b"pears answered"
    assert found.topic == f"{target.cluster_name}_REPLY_TOPIC"
