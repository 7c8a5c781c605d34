"""Where consumers of the Java client stand: starts, plain pulls, lite pulls."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import cast

import pytest

from tests.client.shared_broker import fresh_name
from tests.compat.anchor import route_code, wait_until
from tests.compat.conftest import Target
from tests.compat.driver import Driver, Json, column
from tests.compat.groups import Groups
from tests.compat.lines import proves

QUEUES = range(4)
#: What lets groups begin where they want to, with the values that do and do not.
SWITCH = ("youngQueueFromStart", "false", "true")
MEMORY_RATIO = ("accessMessageInMemoryMaxRatio", "0", "40")


@pytest.fixture
def all_old(driver: Driver, target: Target) -> Iterator[None]:
    """The broker holds no queue for young, so that each group begins where it wants to."""

    def set_to(name: str, value: str) -> None:
        words = ("-n", target.namesrv, "-b", target.broker, "-k", name, "-v", value)
        assert "success" in driver.mqadmin("updateBrokerConfig", *words)

    name, off, on = SWITCH if target.name == "cometmq" else MEMORY_RATIO
    set_to(name, off)
    yield
    set_to(name, on)


def send_to_each(driver: Driver, target: Target, topic: str, prefix: str) -> set[str]:
    """One message to each queue of a topic, which is there afterwards; gives their keys."""
    place = {"broker": target.broker_name}
    for queue in QUEUES:
        driver.send(target.namesrv, topic, prefix=f"{prefix}{queue}-", queue=queue, **place)
    wait_until(lambda: route_code(target.namesrv, topic) == 0, f"a route of {topic}", 10)
    return {f"{prefix}{queue}-0" for queue in QUEUES}


def next_second() -> float:
    """Waits until a second has just begun, and the last but one is over; gives it."""
    began = time.time()
    wait_until(lambda: time.time() >= began + 1.5 and time.time() % 1 < 0.2, "a second begins", 5)
    return time.time() // 1


@proves("start positions")
@pytest.mark.usefixtures("all_old")
def test_groups_begin_where_they_want_to(driver: Driver, target: Target, groups: Groups) -> None:
    topic = fresh_name("positions-start")
    old = send_to_each(driver, target, topic, "old-")
    second = time.strftime("%Y%m%d%H%M%S", time.localtime(next_second()))
    timely = send_to_each(driver, target, topic, "timely-")
    starts = {
        "FIRST_OFFSET": (groups.make(topic, "first"), {}, old | timely),
        "TIMESTAMP": (groups.make(topic, "timely"), {"timestamp": second}, timely),
        "LAST_OFFSET": (groups.make(topic, "last"), {}, set[str]()),
    }
    members = {
        start: group.join(**{"from": start, **options})
        for start, (group, options, _) in starts.items()
    }
    for member in members.values():
        has_all = lambda m=member: driver.ask("assigned", id=m) == list(QUEUES)  # noqa: E731
        wait_until(has_all, "all queues", 20)
    new = send_to_each(driver, target, topic, "new-")
    for start, (group, _, wanted) in starts.items():
        rows = group.received(members[start], len(wanted | new))
        assert sorted(map(str, column(rows, "keys"))) == sorted(wanted | new), start


@proves("plain pull", "offsets kept and asked for")
def test_a_pull_is_told_where_it_stands(driver: Driver, target: Target) -> None:
    topic = fresh_name("positions-pull")
    place = {"queue": 1, "broker": target.broker_name}
    end = 5
    driver.send(target.namesrv, topic, prefix="p-", count=end, tags=["a"], **place)
    at = {"namesrv": target.namesrv, "topic": topic, **place}

    def offsets() -> dict[str, int]:
        return cast("dict[str, int]", driver.ask("offsets", timestamp=0, **at))

    wait_until(lambda: route_code(target.namesrv, topic) == 0, f"a route of {topic}", 10)
    wait_until(lambda: offsets()["max"] == end, "all messages", 10)

    def pull(offset: int, **options: object) -> dict[str, Json]:
        return cast("dict[str, Json]", driver.ask("pullAt", offset=offset, **at, **options))

    for offset, options, status, found, following in (
        (0, {}, "FOUND", end, end),
        (2, {}, "FOUND", end - 2, end),
        (0, {"filter": "b"}, "NO_MATCHED_MSG", 0, end),
        (end, {}, "NO_NEW_MSG", 0, end),
        (end + 10, {}, "OFFSET_ILLEGAL", 0, end),
    ):
        told = {"status": status, "found": found, "next": following, "min": 0, "max": end}
        assert pull(offset, **options) == told


class Lite:
    """One lite pull consumer of the Java programs."""

    def __init__(self, driver: Driver, target: Target, topic: str, **options: object) -> None:
        self._driver = driver
        self._id = fresh_name("lite")
        self._place = {"id": self._id, "topic": topic, "broker": target.broker_name}
        start = {"group": f"g-{topic}", "namesrv": target.namesrv}
        driver.ask("lite", **self._place, **start, **options)

    def poll(self, count: int, timeout_ms: int = 20_000) -> list[str]:
        """The keys of the next messages, in order."""
        rows = self._driver.rows("litePoll", id=self._id, count=count, timeoutMs=timeout_ms)
        return sorted(map(str, column(rows, "keys")))

    def ask(self, step: str, **options: object) -> Json:
        """Another step."""
        return self._driver.ask(step, **self._place, **options)


@pytest.fixture
def lites(driver: Driver) -> Iterator[list[Lite]]:
    """They stop with the test."""
    running: list[Lite] = []
    yield running
    for lite in running:
        lite.ask("liteStop")


#: RocketMQ 4's broker does not know the code under which the client of RocketMQ 5 pulls.
KNOWN_PULLS = pytest.mark.runs("4.9.7-cometmq", "5.5.0-cometmq", "4.9.7-java", "5.5.0-java5")


@KNOWN_PULLS
@proves("lite pull, subscribed", "offsets kept and asked for")
def test_a_lite_pull_group_goes_on_where_it_committed(
    driver: Driver, target: Target, lites: list[Lite]
) -> None:
    topic = fresh_name("positions-lite")
    first = send_to_each(driver, target, topic, "first-")
    lites.append(Lite(driver, target, topic))
    assert lites[0].poll(len(first)) == sorted(first)
    committed = cast("list[int]", lites[0].ask("liteCommit", queues=list(QUEUES)))
    assert sum(committed) == len(first)
    lites.pop().ask("liteStop")
    second = send_to_each(driver, target, topic, "second-")
    lites.append(Lite(driver, target, topic))
    assert lites[0].poll(len(second)) == sorted(second)
    assert lites[0].poll(1, 1_000) == []


@KNOWN_PULLS
@proves("lite pull, assigned; seek and pause")
def test_a_lite_pull_consumer_reads_what_it_is_assigned(
    driver: Driver, target: Target, lites: list[Lite]
) -> None:
    topic = fresh_name("positions-assigned")
    for _ in range(3):
        send_to_each(driver, target, topic, "q")
    lite = Lite(driver, target, topic, queues=[1, 3])
    lites.append(lite)
    assert lite.poll(6) == ["q1-0"] * 3 + ["q3-0"] * 3
    lite.ask("liteSeek", queues=[3], offset=1)
    assert lite.poll(2) == ["q3-0"] * 2
    # A pull that is under way ends as it would, so the paused queue begins anew.
    lite.ask("litePause", queues=[1], paused=True)
    lite.ask("liteSeek", queues=[1], offset=0)
    assert lite.poll(1, 1_500) == []
    lite.ask("litePause", queues=[1], paused=False)
    assert lite.poll(3) == ["q1-0"] * 3
