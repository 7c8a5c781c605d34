"""Shares of queues beside those of RocketMQ's own strategies, over random groups."""

from __future__ import annotations

import random
from typing import Final

from cometmq.client.consumer.allocate import (
    ConsistentHash,
    MachineRoom,
    MachineRoomNearby,
    Strategy,
    average,
    circle,
    share,
)
from cometmq.message.model import MessageQueue
from tests.compat.driver import Driver, Json

STRATEGIES: Final[dict[str, Strategy]] = {
    "AVG": average,
    "AVG_BY_CIRCLE": circle,
    "CONSISTENT_HASH": ConsistentHash(),
    "CONSISTENT_HASH_3": ConsistentHash(3),
    "MACHINE_ROOM": MachineRoom(["r", "s"]),
    "MACHINE_ROOM_NEARBY": MachineRoomNearby(lambda broker: broker[0], lambda member: member[0]),
}
BROKERS: Final = ["r@a", "r@b", "s@a", "u@a", "rest", "s"]
GROUPS_EACH: Final = 250


def random_case(chance: random.Random, strategy: str) -> dict[str, Json]:
    brokers = chance.sample(BROKERS, chance.randint(1, 3))
    queues = [
        MessageQueue("tänzer%t", broker, at)
        for broker in brokers
        for at in range(chance.randint(1, 12))
    ]
    # Ids with and beyond what one UTF-16 unit holds are compared, and hashed, as Java does it.
    members: set[str] = {
        f"{chance.choice('rsu')}{chance.randint(0, 99)}@{chance.choice(['7', 'é', '￿', '🐍'])}"
        for _ in range(chance.randint(1, 9))
    }
    return {
        "strategy": strategy,
        "topic": "tänzer%t",
        "queues": [[queue.broker_name, queue.queue_id] for queue in sorted(queues)],
        "members": [*sorted(members, key=_java_order)],
    }


def _java_order(text: str) -> bytes:
    return text.encode("utf-16-be")


def ours(case: dict[str, Json]) -> list[list[int]]:
    assert isinstance(case["queues"], list)
    assert isinstance(case["members"], list)
    queues = [MessageQueue("tänzer%t", str(pair[0]), int(str(pair[1]))) for pair in case["queues"]]  # type: ignore[index]
    members = list(map(str, case["members"]))
    strategy = STRATEGIES[str(case["strategy"])]
    shuffled = random.Random(len(queues)).sample(members, len(members))
    found = [share(strategy, "group", "tänzer%t", queues, shuffled, each) for each in members]
    return [[queues.index(queue) for queue in each] for each in found]


def test_shares_are_those_of_rocketmq(driver: Driver) -> None:
    chance = random.Random(20_261_121)
    cases = [random_case(chance, name) for name in STRATEGIES for _ in range(GROUPS_EACH)]
    theirs = driver.ask("allocate", cases=cases)
    assert isinstance(theirs, list)
    for case, expected in zip(cases, theirs, strict=True):
        assert ours(case) == expected, case
