"""How members of a Java group share queues: strategies, and order while members come and go."""

from __future__ import annotations

from typing import cast

import pytest

from tests.client.shared_broker import fresh_name
from tests.compat.anchor import wait_until
from tests.compat.conftest import Target
from tests.compat.driver import Driver
from tests.compat.groups import Groups
from tests.compat.lines import proves


@proves("allocation strategies")
@pytest.mark.parametrize(
    ("strategy", "shares"),
    [("AVG", [[0, 1], [2, 3]]), ("AVG_BY_CIRCLE", [[0, 2], [1, 3]]), ("CONSISTENT_HASH", None)],
)
def test_members_with_a_strategy_share(
    driver: Driver, target: Target, groups: Groups, strategy: str, shares: list[list[int]] | None
) -> None:
    topic = fresh_name("sharing")
    driver.send(target.namesrv, topic)
    group = groups.make(topic)
    members = [group.join(strategy=strategy) for _ in range(2)]

    def found() -> list[list[int]]:
        asked = (driver.ask("assigned", id=member) for member in members)
        return sorted(cast("list[int]", queues) for queues in asked)

    def is_shared() -> bool:
        if shares is not None:
            return found() == shares
        # Where two members lie on the ring is chance.
        return sorted(found()[0] + found()[1]) == [0, 1, 2, 3]

    wait_until(is_shared, f"shares {shares}")


@proves("allocation strategies")
def test_members_may_be_configured(driver: Driver, target: Target, groups: Groups) -> None:
    topic = fresh_name("sharing-config")
    driver.send(target.namesrv, topic)
    group = groups.make(topic)
    for queues in ([1], [0, 2, 3]):
        member = group.join(strategy="CONFIG", queues=queues, broker=target.broker_name)
        has_them = lambda m=member, q=queues: driver.ask("assigned", id=m) == q  # noqa: E731
        wait_until(has_them, f"queues {queues}")


@proves("queue locks through a rebalance", "push, orderly")
def test_order_holds_while_members_come_and_go(
    driver: Driver, target: Target, groups: Groups
) -> None:
    topic = fresh_name("sharing-order")
    place = {"broker": target.broker_name}

    def send(prefix: str) -> None:
        for queue in range(4):
            driver.send(target.namesrv, topic, prefix=f"{prefix}-", count=8, queue=queue, **place)

    group = groups.make(topic)
    first = group.join(orderly=True)
    send("one")
    group.received(first, 32, settle_ms=0)
    second = group.join(orderly=True)

    def both_have_queues() -> bool:
        queues = [cast("list[int]", driver.ask("assigned", id=each)) for each in (first, second)]
        return [len(each) for each in queues] == [2, 2]

    wait_until(both_have_queues, "two queues each")
    send("two")
    group.received(second, 16, settle_ms=0)
    rows = group.received(first, 48)
    assert len(rows) == 48
    group.leave(first)
    send("three")
    taken = group.received(second, 16 + 32)
    assert len(taken) == 48
    for queue in range(4):
        for member in (rows, taken):
            offsets = [row["queueOffset"] for row in member if row["queueId"] == queue]
            assert offsets == sorted(cast("list[int]", offsets))
        seen = [row["queueOffset"] for row in (*rows, *taken) if row["queueId"] == queue]
        assert sorted(cast("list[int]", seen)) == list(range(len(seen)))
