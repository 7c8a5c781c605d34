"""Where Java's new groups begin on a young queue of our broker: at 0, or where they ask to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.client.shared_broker import fresh_name
from tests.compat.anchor import route_code, wait_until
from tests.compat.conftest import Target
from tests.compat.driver import Driver, column
from tests.compat.groups import Groups

QUEUES = [0, 1, 2, 3]
KEY = "youngQueueFromStart"


@pytest.fixture
def exact(driver: Driver, target: Target) -> Iterator[None]:
    """New groups begin where they ask to, on young queues too."""

    def switch(value: str) -> None:
        words = ("-n", target.namesrv, "-b", target.broker, "-k", KEY, "-v", value)
        assert "success" in driver.mqadmin("updateBrokerConfig", *words)

    switch("false")
    yield
    switch("true")


def send_to_each(driver: Driver, target: Target, topic: str, prefix: str) -> set[str]:
    """One message to each queue of a topic; gives their keys."""
    for queue in QUEUES:
        place = {"queue": queue, "broker": target.broker_name}
        driver.send(target.namesrv, topic, prefix=f"{prefix}{queue}-", **place)
    wait_until(lambda: route_code(target.namesrv, topic) == 0, f"a route of {topic}")
    return {f"{prefix}{queue}-0" for queue in QUEUES}


@pytest.mark.runs("4.9.7-cometmq", "5.5.0-cometmq")
@pytest.mark.usefixtures("exact")
def test_the_last_is_what_comes_from_now_on(driver: Driver, target: Target, groups: Groups) -> None:
    topic = fresh_name("young")
    send_to_each(driver, target, topic, "old-")
    group = groups.make(topic)
    member = group.join(**{"from": "LAST_OFFSET"})
    wait_until(lambda: driver.ask("assigned", id=member) == QUEUES, "all queues")
    new = send_to_each(driver, target, topic, "new-")
    assert set(map(str, column(group.received(member, 4), "keys"))) == new


@pytest.mark.runs("4.9.7-cometmq", "5.5.0-cometmq")
def test_who_was_there_before_the_topic_misses_nothing(
    driver: Driver, target: Target, groups: Groups
) -> None:
    topic = fresh_name("younger")
    group = groups.make(topic)
    member = group.join(**{"from": "LAST_OFFSET"})
    sent = send_to_each(driver, target, topic, "first-")
    assert set(map(str, column(group.received(member, 4), "keys"))) == sent
