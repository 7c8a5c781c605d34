"""Queues take turns, failed brokers are passed over, and a key has one queue."""

from __future__ import annotations

import pytest

from cometmq.client.selection import FaultScores, RoundRobin, by_key
from cometmq.message.model import MessageQueue

pytestmark = pytest.mark.core

QUEUES = [MessageQueue("t", name, at) for name in "ab" for at in range(2)]


def test_every_queue_gets_its_turn() -> None:
    turns = RoundRobin()
    picked = [turns.pick(QUEUES) for _ in range(8)]
    assert picked[:4] == picked[4:]
    assert sorted(picked[:4]) == QUEUES


def test_topics_take_turns_apart() -> None:
    turns = RoundRobin()
    others = [MessageQueue("u", "a", at) for at in range(3)]
    first = turns.pick(QUEUES)
    for _ in range(5):
        turns.pick(others)
    assert turns.pick(QUEUES) == QUEUES[(QUEUES.index(first) + 1) % 4]


def test_a_list_that_shrank_is_no_problem() -> None:
    turns = RoundRobin()
    for _ in range(7):
        turns.pick(QUEUES)
    assert turns.pick(QUEUES[:1]) == QUEUES[0]


def test_the_broker_that_failed_is_avoided_while_there_is_another() -> None:
    turns = RoundRobin()
    for _ in range(8):
        assert turns.pick(QUEUES, avoid_broker="a").broker_name == "b"
    only = QUEUES[:2]
    assert turns.pick(only, avoid_broker="a") in only


def test_brokers_with_faults_are_passed_over() -> None:
    turns, faults = RoundRobin(), FaultScores()
    faults.refused("a", 0)
    for _ in range(8):
        assert turns.pick(QUEUES, faults=faults, now_ms=1).broker_name == "b"
    faults.answered("b", 600, 0)
    assert turns.pick(QUEUES, faults=faults, now_ms=1).broker_name == "b"
    assert {turns.pick(QUEUES, faults=faults, now_ms=700_000).broker_name for _ in range(4)} == {
        "a",
        "b",
    }


@pytest.mark.parametrize(
    ("key", "index"),
    # What Java prints for Math.abs(key.hashCode() % 3).
    [("AD-02", 0), ("order-7", 2), ("polygenelubricants", 2), ("a", 1), ("", 0)],
)
def test_a_key_goes_where_java_sends_it(key: str, index: int) -> None:
    assert by_key(QUEUES[:3], key) == QUEUES[index]
