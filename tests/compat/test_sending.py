"""The Java producer: large batches, retries, chosen queues, hooks, namespaces, refusals."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from tests.client.shared_broker import fresh_name
from tests.compat.conftest import Target
from tests.compat.deadbroker import dead_broker
from tests.compat.driver import Driver, StepFailed, column
from tests.compat.groups import Groups
from tests.compat.lines import proves
from tests.compat.test_producer import check_results, check_unique_ids, pull_all


@proves("large batch", "unique ids")
def test_a_large_batch_is_stored_as_a_whole(driver: Driver, target: Target) -> None:
    topic = fresh_name("sending-large")
    sent = driver.send(target.namesrv, topic, mode="batch", prefix="b-", count=2_000, size=1_000)
    check_results(sent, target)
    rows = pull_all(driver, target, topic)
    assert column(rows, "keys") == [f"b-{number}" for number in range(2_000)]
    assert {row["queueId"] for row in rows} == {sent[0]["queueId"]}
    assert column(rows, "bodySize") == [1_000] * 2_000
    check_unique_ids(driver, target, sent[0], rows)
    ids = str(sent[0]["offsetMsgId"]).split(",")
    assert [int(each[16:], 16) for each in ids] == column(rows, "commitLogOffset")


@proves("what is refused, and why")
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"queue": 99}, "CODE: 1 .*99"),
        ({"size": 4 * 1024 * 1024 + 1}, "CODE: 13"),
        ({"mode": "batch", "count": 3, "delay": 2}, "not supported for batching"),
        ({"mode": "batch", "count": 5, "size": 1_000_000}, "CODE: 13"),
        ({"topic": "no/such name"}, "illegal characters"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, "forbidden"),
        ({"properties": {"long": "x" * 33_000}}, "CODE: 13"),
    ],
    ids=["queue", "body", "delayed batch", "batch", "name", "system topic", "properties"],
)
def test_what_cannot_be_is_refused(
    driver: Driver, target: Target, options: dict[str, object], reason: str
) -> None:
    topic = fresh_name("sending-refused")
    driver.send(target.namesrv, topic)
    place = {"topic": topic, "broker": target.broker_name, **options}
    with pytest.raises(StepFailed, match=reason):
        driver.ask(
            "send",
            **{"namesrv": target.namesrv, "group": "refused", "mode": "sync", "count": 1}
            | {"prefix": "r-", **place},
        )
    assert len(pull_all(driver, target, topic)) == 1


@proves("retries on another broker")
@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_a_send_that_fails_goes_to_another_broker(
    driver: Driver, target: Target, mode: str
) -> None:
    topic = fresh_name("sending-retried")
    await asyncio.to_thread(driver.send, target.namesrv, topic, prefix="first-")
    options = {"mode": mode, "group": fresh_name("retrying"), "prefix": "r-", "count": 8}
    async with dead_broker(target.namesrv, topic):
        sent = await asyncio.to_thread(driver.send, target.namesrv, topic, **options)
    check_results(sent, target)
    rows = await asyncio.to_thread(pull_all, driver, target, topic)
    assert set(column(rows, "keys")) == {"first-0", *(f"r-{number}" for number in range(8))}


@proves("a queue chosen by hash or by hand")
def test_a_queue_may_be_chosen(driver: Driver, target: Target) -> None:
    topic = fresh_name("sending-chosen")
    driver.send(target.namesrv, topic, prefix="first-")
    for shard in ("x", "y"):
        sent = driver.send(target.namesrv, topic, prefix=f"{shard}-", count=6, shard=shard)
        # Java's hash of a one-letter text is its code.
        assert set(column(sent, "queueId")) == {ord(shard) % 4}
    by_hand = {"queue": 2, "broker": target.broker_name}
    assert driver.send(target.namesrv, topic, **by_hand)[0]["queueId"] == 2


@proves("send hooks", "consume hooks")
def test_hooks_are_told(driver: Driver, target: Target, groups: Groups) -> None:
    topic, group = fresh_name("sending-hooks"), fresh_name("hooked")
    options = {"group": group, "hooks": True}
    driver.send(target.namesrv, topic, prefix="h-", count=2, **options)
    with pytest.raises(StepFailed, match="forbidden by a hook"):
        driver.send(target.namesrv, topic, prefix="forbidden-", **options)
    told = driver.rows("sendHooks", namesrv=target.namesrv, group=group)
    ended = [
        {"when": when, "key": f"h-{number}", **end}
        for number in range(2)
        for when, end in (("before send", {}), ("after send", {"end": "SEND_OK"}))
    ]
    assert told == ended
    consuming = groups.make(topic)
    member = consuming.join(hooks=True)
    consuming.received(member, 2)
    told = driver.rows("consumeHooks", id=member)
    assert sorted((str(row["when"]), str(row["key"]), row.get("end")) for row in told) == [
        *(("after consume", f"h-{number}", "CONSUME_SUCCESS") for number in range(2)),
        *(("before consume", f"h-{number}", None) for number in range(2)),
    ]


@proves("namespaces")
def test_a_namespace_has_names_of_its_own(driver: Driver, target: Target, groups: Groups) -> None:
    topic, space = fresh_name("sending-space"), fresh_name("space")
    at = {"namespace": space}
    driver.send(target.namesrv, topic, prefix="in-", count=2, group=fresh_name("in"), **at)
    driver.send(target.namesrv, topic, prefix="out-")
    stored = pull_all(driver, target, f"{space}%{topic}")
    assert sorted(map(str, column(stored, "keys"))) == ["in-0", "in-1"]
    group = groups.make(topic)
    rows = group.received(group.join(failTimes=1, **at), 4, settle_ms=1_000)
    assert {row["topic"] for row in rows} == {topic}
    assert sorted((str(row["keys"]), cast("int", row["reconsumeTimes"])) for row in rows) == [
        (f"in-{number}", times) for number in range(2) for times in range(2)
    ]
