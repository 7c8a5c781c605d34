"""Slow and failed brokers are left alone for the time that upstream gives them."""

from __future__ import annotations

import pytest

from cometmq.client.selection import FAILURE_LATENCY_MS, FaultScores, penalty_ms
from cometmq.message.model import MessageQueue

A, B, C = (MessageQueue("t", name, 0) for name in "abc")


@pytest.mark.parametrize(
    ("latency_ms", "expected_ms"),
    [
        (0, 0),
        (549, 0),
        (550, 30_000),
        (1_000, 60_000),
        (2_000, 120_000),
        (3_000, 180_000),
        (14_999, 180_000),
        (15_000, 600_000),
        (FAILURE_LATENCY_MS, 600_000),
    ],
)
def test_penalties(latency_ms: int, expected_ms: int) -> None:
    assert penalty_ms(latency_ms) == expected_ms


def test_a_slow_broker_is_left_alone_until_its_time_is_over() -> None:
    scores = FaultScores()
    assert scores.is_available("a", 0)
    scores.answered("a", 1_200, 10)
    assert not scores.is_available("a", 60_009)
    assert scores.is_available("a", 60_010)
    assert scores.to_probe(11) == []
    scores.answered("a", 5, 20)
    assert scores.is_available("a", 20)


def test_a_refusal_counts_as_a_failure_and_is_not_probed() -> None:
    scores = FaultScores()
    scores.refused("a", 0)
    assert not scores.is_available("a", 599_999)
    assert scores.is_available("a", 600_000)
    assert scores.to_probe(1) == []


def test_a_broker_that_cannot_be_reached_is_probed_until_it_is_back() -> None:
    scores = FaultScores()
    scores.unreachable(A, 0)
    scores.unreachable(B, 100_000)
    assert scores.to_probe(1) == [A, B]
    assert scores.to_probe(600_000) == [B]
    scores.is_back("b")
    assert scores.is_available("b", 100_001)
    assert scores.to_probe(100_001) == [A]


def test_when_all_are_left_alone_the_first_to_be_back_is_taken() -> None:
    scores = FaultScores()
    scores.refused("a", 0)
    scores.answered("b", 600, 0)
    scores.answered("c", 2_500, 0)
    assert scores.least_bad(["a", "b", "c"], 1) == "b"


def test_a_broker_that_answers_is_better_than_one_that_does_not() -> None:
    scores = FaultScores()
    scores.unreachable(A, 0)
    scores.refused("b", 500_000)
    assert scores.least_bad(["a", "b"], 500_001) == "b"
