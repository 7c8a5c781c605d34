"""The Java push consumer: sharing, filters, broadcasting, retries, dead letters, order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import count
from typing import cast

import pytest

from tests.compat.anchor import wait_until
from tests.compat.conftest import Target
from tests.compat.driver import Driver, Json, column
from tests.compat.test_producer import props, pull_all

Row = dict[str, Json]
TIMEOUT_MS = 40_000


class Group:
    """The members of a consumer group in the Java programs."""

    ids = count()

    def __init__(self, driver: Driver, target: Target, group: str, topic: str) -> None:
        self._driver = driver
        self._common = {"namesrv": target.namesrv, "group": group, "topic": topic}
        self._members: list[str] = []

    def join(self, **options: object) -> str:
        """One more member; gives the id by which it is asked."""
        member = f"member{next(self.ids)}"
        self._driver.ask("consume", id=member, **{"filter": "*", **self._common, **options})
        self._members.append(member)
        return member

    def received(self, member: str, number: int, settle_ms: int = 500) -> list[Row]:
        """What a member got once that were `number` messages, and what came just after."""
        waits = {"timeoutMs": TIMEOUT_MS, "settleMs": settle_ms}
        return self._driver.rows("received", id=member, count=number, **waits)

    def leave(self, member: str) -> None:
        """A member goes."""
        self._members.remove(member)
        self._driver.ask("stop", id=member)

    def close(self) -> None:
        """All go."""
        for member in list(self._members):
            self.leave(member)


class Groups:
    """Makes groups for one test."""

    def __init__(self, driver: Driver, target: Target) -> None:
        self._driver = driver
        self._target = target
        self._made: list[Group] = []

    def make(self, group: str, topic: str) -> Group:
        """A group without members."""
        made = Group(self._driver, self._target, group, topic)
        self._made.append(made)
        return made

    def close(self) -> None:
        """Ends all of them."""
        for made in self._made:
            made.close()


@pytest.fixture
def groups(driver: Driver, target: Target) -> Iterator[Groups]:
    made = Groups(driver, target)
    yield made
    made.close()


def test_members_share_the_queues(driver: Driver, target: Target, groups: Groups) -> None:
    topic = "consumer-share"
    driver.send(target.namesrv, topic, prefix="old-", count=20)
    group = groups.make("share", topic)
    first = group.join()
    assert len(group.received(first, 20)) == 20
    second = group.join()

    def both_work() -> bool:
        driver.send(target.namesrv, topic, prefix="probe-", count=4)
        return bool(group.received(second, 1, settle_ms=0))

    wait_until(both_work, "the second member gets messages", 60)
    driver.send(target.namesrv, topic, prefix="new-", count=40)
    stored = set(column(pull_all(driver, target, topic), "keys"))

    def all_came() -> bool:
        rows = [*group.received(first, 20), *group.received(second, 1)]
        return stored == set(column(rows, "keys"))

    wait_until(all_came, "every message", 30)
    new = [
        {row["queueId"] for row in group.received(member, 1, 0) if "new-" in str(row["keys"])}
        for member in (first, second)
    ]
    assert len(new[0]) == len(new[1]) == 2
    assert not new[0] & new[1]


def test_tags_are_filtered(driver: Driver, target: Target, groups: Groups) -> None:
    topic = "consumer-tags"
    driver.send(target.namesrv, topic, prefix="t-", count=30, tags=["a", "b", "c"])
    group = groups.make("tags", topic)
    member = group.join(filter="a || c")
    rows = group.received(member, 20, settle_ms=1_000)
    assert sorted(str(row["keys"]) for row in rows) == sorted(
        f"t-{number}" for number in range(30) if number % 3 != 1
    )


def test_broadcasting_gives_all_to_all(driver: Driver, target: Target, groups: Groups) -> None:
    topic = "consumer-broadcast"
    driver.send(target.namesrv, topic, prefix="first-")
    group = groups.make("broadcast", topic)
    members = [group.join(model="BROADCASTING") for _ in range(2)]
    # A broadcasting consumer asks for its start only once it has its queues.
    for member in members:
        group.received(member, 1, settle_ms=0)
    driver.send(target.namesrv, topic, prefix="cast-", count=20)
    for member in members:
        keys = {str(row["keys"]) for row in group.received(member, 21)}
        assert keys >= {f"cast-{number}" for number in range(20)}


def test_refused_messages_come_again(driver: Driver, target: Target, groups: Groups) -> None:
    topic = "consumer-retry"
    driver.send(target.namesrv, topic, prefix="r-", count=6, tags=["a"])
    group = groups.make("retry", topic)
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


def test_a_hopeless_message_becomes_a_dead_letter(
    driver: Driver, target: Target, groups: Groups
) -> None:
    topic, name = "consumer-dead", "hopeless"
    driver.send(target.namesrv, topic, prefix="d-", count=2)
    group = groups.make(name, topic)
    member = group.join(failTimes=100, maxReconsume=1)
    group.received(member, 4)
    dead_topic = f"%DLQ%{name}"

    def both_dead() -> bool:
        routes = driver.mqadmin("topicRoute", "-n", target.namesrv, "-t", dead_topic)
        return "brokerDatas" in routes and len(pull_all(driver, target, dead_topic)) == 2

    wait_until(both_dead, "two dead letters", 30)
    rows = pull_all(driver, target, dead_topic)
    assert sorted(str(row["keys"]) for row in rows) == ["d-0", "d-1"]
    assert {row["queueId"] for row in rows} == {0}
    # mqadmin's and a pull consumer's look take the first topic's name from this property.
    assert {props(row)["RETRY_TOPIC"] for row in rows} == {topic}


def test_queues_stay_in_order(driver: Driver, target: Target, groups: Groups) -> None:
    topic = "consumer-order"
    driver.send(target.namesrv, topic, prefix="o-", count=40)
    group = groups.make("order", topic)
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


def test_a_group_goes_on_where_it_stopped(driver: Driver, target: Target, groups: Groups) -> None:
    topic = "consumer-resume"
    driver.send(target.namesrv, topic, prefix="before-", count=12)
    group = groups.make("resume", topic)
    member = group.join()
    group.received(member, 12)
    group.leave(member)
    driver.send(target.namesrv, topic, prefix="after-", count=8)
    rows = group.received(group.join(), 8, settle_ms=1_500)
    assert sorted(str(row["keys"]) for row in rows) == sorted(f"after-{n}" for n in range(8))
