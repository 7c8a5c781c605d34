"""The Java push consumer: sharing, filters, broadcasting, retries, dead letters, order."""

from __future__ import annotations

from collections import defaultdict
from typing import cast

from tests.client.shared_broker import fresh_name
from tests.compat.anchor import wait_until
from tests.compat.conftest import Target
from tests.compat.driver import Driver, Json, column
from tests.compat.groups import Groups
from tests.compat.lines import proves
from tests.compat.test_producer import props, pull_all

Row = dict[str, Json]


@proves("push, clustering")
def test_members_share_the_queues(driver: Driver, target: Target, groups: Groups) -> None:
    topic = fresh_name("consumer-share")
    driver.send(target.namesrv, topic, prefix="old-", count=20)
    group = groups.make(topic)
    first = group.join()
    assert len(group.received(first, 20)) == 20
    second = group.join()

    def both_have_queues() -> bool:
        shares = (cast("list[int]", driver.ask("assigned", id=each)) for each in (first, second))
        return [len(share) for share in shares] == [2, 2]

    wait_until(both_have_queues, "two queues each")
    driver.send(target.namesrv, topic, prefix="new-", count=40)
    stored = set(column(pull_all(driver, target, topic), "keys"))

    def all_came() -> bool:
        rows = [*group.received(first, 20), *group.received(second, 1)]
        return stored == set(column(rows, "keys"))

    wait_until(all_came, "every message")
    new = [
        {row["queueId"] for row in group.received(member, 1, 0) if "new-" in str(row["keys"])}
        for member in (first, second)
    ]
    assert len(new[0]) == len(new[1]) == 2
    assert not new[0] & new[1]


@proves("tags")
def test_tags_are_filtered(driver: Driver, target: Target, groups: Groups) -> None:
    topic = fresh_name("consumer-tags")
    driver.send(target.namesrv, topic, prefix="t-", count=30, tags=["a", "b", "c"])
    group = groups.make(topic)
    member = group.join(filter="a || c")
    rows = group.received(member, 20, settle_ms=1_000)
    assert sorted(str(row["keys"]) for row in rows) == sorted(
        f"t-{number}" for number in range(30) if number % 3 != 1
    )


@proves("push, broadcasting")
def test_broadcasting_gives_all_to_all(driver: Driver, target: Target, groups: Groups) -> None:
    topic = fresh_name("consumer-broadcast")
    driver.send(target.namesrv, topic, prefix="first-")
    group = groups.make(topic)
    members = [group.join(model="BROADCASTING") for _ in range(2)]
    # A broadcasting consumer asks for its start only once it has its queues.
    for member in members:
        group.received(member, 1, settle_ms=0)
    driver.send(target.namesrv, topic, prefix="cast-", count=20)
    for member in members:
        keys = {str(row["keys"]) for row in group.received(member, 21)}
        assert keys >= {f"cast-{number}" for number in range(20)}


@proves("send-back and retry topic")
def test_refused_messages_come_again(driver: Driver, target: Target, groups: Groups) -> None:
    topic = fresh_name("consumer-retry")
    driver.send(target.namesrv, topic, prefix="r-", count=6, tags=["a"])
    group = groups.make(topic)
    member = group.join(failTimes=2)
    deliveries: dict[str, list[Row]] = defaultdict(list)
    for row in group.received(member, 18, settle_ms=1_500):
        deliveries[str(row["keys"])].append(row)
    assert len(deliveries) == 6
    for rows in deliveries.values():
        assert column(rows, "reconsumeTimes") == [0, 1, 2]
        assert {row["topic"] for row in rows} == {topic}
        assert {row["tags"] for row in rows} == {"a"}
        assert len({props(row)["UNIQ_KEY"] for row in rows}) == 1
        assert props(rows[1])["RETRY_TOPIC"] == topic
        first, second, third = (cast("int", row["storeTimestamp"]) for row in rows)
        assert second - first >= 900
        assert third - second >= 900


@proves("dead letters")
def test_a_hopeless_message_becomes_a_dead_letter(
    driver: Driver, target: Target, groups: Groups
) -> None:
    topic = fresh_name("consumer-dead")
    driver.send(target.namesrv, topic, prefix="d-", count=2)
    group = groups.make(topic)
    member = group.join(failTimes=100, maxReconsume=1)
    group.received(member, 4)
    dead_topic = f"%DLQ%g-{topic}"

    def both_dead() -> bool:
        routes = driver.mqadmin("topicRoute", "-n", target.namesrv, "-t", dead_topic)
        return "brokerDatas" in routes and len(pull_all(driver, target, dead_topic)) == 2

    wait_until(both_dead, "two dead letters")
    rows = pull_all(driver, target, dead_topic)
    assert sorted(str(row["keys"]) for row in rows) == ["d-0", "d-1"]
    assert {row["queueId"] for row in rows} == {0}
    # mqadmin's and a pull consumer's look take the first topic's name from this property.
    assert {props(row)["RETRY_TOPIC"] for row in rows} == {topic}


@proves("push, orderly")
def test_queues_stay_in_order(driver: Driver, target: Target, groups: Groups) -> None:
    topic = fresh_name("consumer-order")
    driver.send(target.namesrv, topic, prefix="o-", count=40)
    group = groups.make(topic)
    member = group.join(orderly=True, failTimes=1)
    rows = group.received(member, 80, settle_ms=1_000)
    by_queue: dict[Json, list[Row]] = defaultdict(list)
    for row in rows:
        by_queue[row["queueId"]].append(row)
    assert sum(len(each) for each in by_queue.values()) == 80
    for each in by_queue.values():
        # Each message is refused once, given again at once, and only then the next one comes.
        offsets = sorted({cast("int", row["queueOffset"]) for row in each})
        assert column(each, "queueOffset") == [offset for offset in offsets for _ in range(2)]


@proves("offsets kept and asked for")
def test_a_group_goes_on_where_it_stopped(driver: Driver, target: Target, groups: Groups) -> None:
    topic = fresh_name("consumer-resume")
    driver.send(target.namesrv, topic, prefix="before-", count=12)
    group = groups.make(topic)
    member = group.join()
    group.received(member, 12)
    group.leave(member)
    driver.send(target.namesrv, topic, prefix="after-", count=8)
    rows = group.received(group.join(), 8, settle_ms=1_500)
    assert sorted(str(row["keys"]) for row in rows) == sorted(f"after-{n}" for n in range(8))
