"""Filters of the Java consumer: SQL92 at the broker, and what a filter that is none is told."""

from __future__ import annotations

import pytest

from tests.client.shared_broker import fresh_name
from tests.compat.conftest import Target
from tests.compat.driver import Driver, StepFailed, column
from tests.compat.groups import Groups
from tests.compat.lines import proves
from tests.compat.test_producer import pull_all


@proves("SQL92")
def test_sql92_selects_by_properties(driver: Driver, target: Target, groups: Groups) -> None:
    topic = fresh_name("selecting-sql")
    for colour, size in (("red", 1), ("red", 7), ("green", 8), ("blue", 9)):
        properties = {"colour": colour, "amount": str(size)}
        driver.send(
            target.namesrv, topic, prefix=f"{colour}-{size}-", count=2, properties=properties,
            tags=["a", "b"],
        )  # fmt: skip
    driver.send(target.namesrv, topic, prefix="bare-")
    group = groups.make(topic)
    wanted = "(amount > 5 AND colour IN ('red', 'green')) OR (TAGS = 'b' AND amount = 1)"
    rows = group.received(group.join(filter=wanted, sql=True), 5, settle_ms=1_000)
    assert sorted(map(str, column(rows, "keys"))) == [
        *("green-8-0", "green-8-1", "red-1-1", "red-7-0", "red-7-1"),
    ]


@proves("SQL92")
def test_a_held_pull_is_woken_by_what_it_selects(
    driver: Driver, target: Target, groups: Groups
) -> None:
    topic = fresh_name("selecting-held")
    driver.send(target.namesrv, topic, prefix="old-")
    group = groups.make(topic)
    member = group.join(filter="colour = 'red'", sql=True)
    for number in range(3):
        driver.send(target.namesrv, topic, prefix=f"red-{number}-", properties={"colour": "red"})
        driver.send(target.namesrv, topic, prefix=f"no-{number}-", properties={"colour": "no"})
    rows = group.received(member, 3, settle_ms=500)
    assert sorted(map(str, column(rows, "keys"))) == [f"red-{number}-0" for number in range(3)]
    assert len(pull_all(driver, target, topic)) == 7


@proves("SQL92")
def test_a_filter_that_is_none_is_refused_at_the_start(
    driver: Driver, target: Target, groups: Groups
) -> None:
    topic = fresh_name("selecting-bad")
    driver.send(target.namesrv, topic)
    group = groups.make(topic)
    with pytest.raises(StepFailed, match="CODE: 23"):
        group.join(filter="colour ==", sql=True)
