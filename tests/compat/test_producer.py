"""The Java producer: every way of sending, and what lies in the queues afterwards."""

from __future__ import annotations

import re
from typing import cast

import pytest

from cometmq.client.client import Client
from cometmq.core.errors import MessageIllegal
from tests.client.shared_broker import fresh_name
from tests.compat.anchor import route_code, wait_until
from tests.compat.conftest import Target
from tests.compat.driver import Driver, Json, StepFailed, column
from tests.compat.lines import proves

Row = dict[str, Json]


def await_dispatch(driver: Driver, target: Target) -> None:
    """Return once what was sent can be read: a Java broker acknowledges before that."""
    if target.name == "cometmq":
        return
    at = ("-n", target.namesrv, "-b", target.broker)
    wait_until(
        lambda: (
            re.search(r"dispatchBehindBytes\s*:\s*0\b", driver.mqadmin("brokerStatus", *at))
            is not None
        ),
        "dispatch catches up",
        20,
    )


def pull_all(driver: Driver, target: Target, topic: str) -> list[Row]:
    """All messages of a topic, after a look at each queue's limits."""
    wait_until(lambda: route_code(target.namesrv, topic) == 0, f"a route of {topic}", 10)
    await_dispatch(driver, target)
    facts = cast("dict[str, Json]", driver.ask("pullAll", namesrv=target.namesrv, topic=topic))
    messages = cast("list[Row]", facts["messages"])
    for queue_id, limits in cast("dict[str, dict[str, int | str]]", facts["queues"]).items():
        offsets = [row["queueOffset"] for row in messages if row["queueId"] == int(queue_id)]
        assert limits["end"] == "NO_NEW_MSG"
        # More may have come since the limits were read.
        end = max(int(limits["max"]), int(limits["min"]) + len(offsets))
        assert offsets == list(range(int(limits["min"]), end))
    return messages


def props(row: Row) -> dict[str, str]:
    return cast("dict[str, str]", row["properties"])


def check_results(results: list[Row], target: Target) -> None:
    assert {row["status"] for row in results} == {"SEND_OK"}
    assert {row["brokerName"] for row in results} == {target.broker_name}
    assert {row["regionId"] for row in results} == {"DefaultRegion"}


def check_unique_ids(driver: Driver, target: Target, sent: Row, rows: list[Row]) -> None:
    """That a batch's messages have the ids of its answer."""
    found = [props(row)["UNIQ_KEY"] for row in rows]
    if (driver.version, target.name) == ("5.5.0", "java"):
        # The client gives the batch an id too, and in the Java broker that hides its messages'.
        assert len(set(found)) == 1
    else:
        assert str(sent["msgId"]).split(",") == found


@proves("sync", "async", "unique ids")
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_each_message_lies_where_its_answer_says(driver: Driver, target: Target, mode: str) -> None:
    topic = fresh_name(f"producer-{mode}")
    tags = ["a", "b", "c"]
    results = driver.send(
        target.namesrv, topic, mode=mode, prefix="p-", count=30, tags=tags,
        properties={"colour": "grün 绿"},
    )  # fmt: skip
    assert len(results) == 30
    check_results(results, target)
    stored = {row["keys"]: row for row in pull_all(driver, target, topic)}
    assert len(stored) == 30
    for number, result in enumerate(results):
        row = stored[f"p-{number}"]
        assert row["body"] == f"p-{number}"
        assert row["tags"] == tags[number % 3]
        assert props(row)["colour"] == "grün 绿"
        assert props(row)["UNIQ_KEY"] == result["msgId"]
        assert (row["queueId"], row["queueOffset"]) == (result["queueId"], result["queueOffset"])
        assert row["reconsumeTimes"] == 0
    assert {row["queueId"] for row in results} == {0, 1, 2, 3}


@proves("unique ids")
def test_an_offset_id_leads_to_its_message(driver: Driver, target: Target) -> None:
    topic = fresh_name("producer-ids")
    sent = driver.send(target.namesrv, topic, prefix="id-", count=3)
    await_dispatch(driver, target)
    for result in sent:
        where = {"namesrv": target.namesrv, "topic": topic}
        by_offset = cast("Row", driver.ask("view", msgId=result["offsetMsgId"], **where))
        by_key = cast("Row", driver.ask("view", msgId=result["msgId"], **where))
        assert by_offset["queueOffset"] == by_key["queueOffset"] == result["queueOffset"]
        assert props(by_offset)["UNIQ_KEY"] == result["msgId"]


def test_a_new_topic_is_routed_soon_after_its_first_send(driver: Driver, target: Target) -> None:
    """Who knows of a message asks for the route to it, and asks again only much later."""
    for number in range(5):
        topic = fresh_name(f"producer-new-{number}")
        driver.send(target.namesrv, topic)
        wait_until(lambda t=topic: route_code(target.namesrv, t) == 0, topic, 0.5)  # type: ignore[misc]


@proves("one-way")
def test_one_way_messages_arrive(driver: Driver, target: Target) -> None:
    topic = fresh_name("producer-oneway")
    driver.send(target.namesrv, topic, prefix="first-")
    driver.send(target.namesrv, topic, mode="oneway", prefix="oneway-", count=20)
    wait_until(lambda: len(pull_all(driver, target, topic)) == 21, "21 messages", 20)
    keys = set(column(pull_all(driver, target, topic), "keys"))
    assert keys == {"first-0", *(f"oneway-{number}" for number in range(20))}


@proves("batch", "unique ids")
def test_a_batch_lies_in_one_queue_in_order(driver: Driver, target: Target) -> None:
    topic = fresh_name("producer-batch")
    driver.send(target.namesrv, topic, prefix="before-", count=4)
    sent = driver.send(target.namesrv, topic, mode="batch", prefix="b-", count=16, tags=["x", "y"])
    check_results(sent, target)
    rows = [row for row in pull_all(driver, target, topic) if str(row["keys"]).startswith("b-")]
    assert [row["keys"] for row in rows] == [f"b-{number}" for number in range(16)]
    assert {row["queueId"] for row in rows} == {sent[0]["queueId"]}
    first = cast("int", sent[0]["queueOffset"])
    assert column(rows, "queueOffset") == list(range(first, first + 16))
    assert column(rows, "tags") == ["x", "y"] * 8
    check_unique_ids(driver, target, sent[0], rows)
    ids = str(sent[0]["offsetMsgId"]).split(",")
    assert [int(each[16:], 16) for each in ids] == column(rows, "commitLogOffset")


@proves("zlib bodies")
def test_a_large_body_is_compressed_on_the_way(driver: Driver, target: Target) -> None:
    topic = fresh_name("producer-large")
    driver.send(target.namesrv, topic, prefix="large-", count=2, size=100_000)
    rows = pull_all(driver, target, topic)
    assert column(rows, "bodySize") == [100_000] * 2
    assert all(cast("int", row["storeSize"]) < 10_000 for row in rows)


@proves("delay levels")
def test_a_delayed_message_waits_its_time(driver: Driver, target: Target) -> None:
    topic = fresh_name("producer-delay")
    driver.send(target.namesrv, topic, prefix="now-")
    driver.send(target.namesrv, topic, prefix="later-", delay=2)
    assert column(pull_all(driver, target, topic), "keys") == ["now-0"]
    wait_until(lambda: len(pull_all(driver, target, topic)) == 2, "the delayed message", 20)
    rows = {row["keys"]: row for row in pull_all(driver, target, topic)}
    now, later = (cast("int", rows[key]["storeTimestamp"]) for key in ("now-0", "later-0"))
    assert later - now >= 5_000
    assert props(rows["later-0"])["DELAY"] == "2"


@proves("offsets kept and asked for")
def test_offsets_by_time(driver: Driver, target: Target) -> None:
    topic = fresh_name("producer-times")
    place = {"queue": 1, "broker": target.broker_name}
    driver.send(target.namesrv, topic)
    driver.send(target.namesrv, topic, prefix="t-", count=5, **place)
    rows = [row for row in pull_all(driver, target, topic) if row["queueId"] == 1]
    asked = {"namesrv": target.namesrv, "topic": topic, **place}
    first, last = rows[0], rows[-1]
    early = cast("dict[str, int]", driver.ask("offsets", timestamp=0, **asked))
    assert early["min"] == 0
    assert early["max"] == len(rows)
    assert early["byTime"] == 0
    assert early["earliestStoreTime"] == first["storeTimestamp"]
    after = cast("int", last["storeTimestamp"]) + 60_000
    late = cast("dict[str, int]", driver.ask("offsets", timestamp=after, **asked))
    # RocketMQ 4 gives the message nearest in time, CometMQ (as RocketMQ 5) the first not older.
    assert late["byTime"] == len(rows) - (target.name == "java")


async def test_both_clients_treat_odd_arguments_alike(driver: Driver, target: Target) -> None:
    for group, step in (("DEFAULT_CONSUMER", "consume"), ("DEFAULT_PRODUCER", "send")):
        words = {"topic": "TBW102", "group": group, "id": group, "filter": "*", "mode": "sync"}
        with pytest.raises(StepFailed, match=f"can not equal {group}"):
            driver.ask(step, namesrv=target.namesrv, count=1, prefix="x", **words)
    async with Client(target.namesrv) as client:
        with pytest.raises(MessageIllegal, match="cannot be DEFAULT_CONSUMER"):
            client.subscribe("TBW102", group="DEFAULT_CONSUMER")
        with pytest.raises(MessageIllegal, match="cannot be DEFAULT_PRODUCER"):
            client.transaction("TBW102", b"", group="DEFAULT_PRODUCER")
        # Neither refuses the topic that others are made after, nor a level above the highest.
        (row,) = driver.send(target.namesrv, "TBW102", prefix="java-", count=1)
        sent = await client.send("TBW102", b"ours")
        assert (row["status"], sent.status.name) == ("SEND_OK", "OK")
        topic = fresh_name("producer-level")
        (row,) = driver.send(target.namesrv, topic, prefix="java-", count=1, delay=99)
        sent = await client.send(topic, b"ours", delay_level=99)
        assert (row["status"], sent.status.name) == ("SEND_OK", "OK")
