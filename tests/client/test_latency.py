"""Slow and failed brokers are left alone for the time that upstream gives them."""

from __future__ import annotations

import pytest

from cometmq.client.latency import FAILURE_LATENCY_MS, FaultScores, penalty_ms


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


def test_a_broker_is_left_alone_until_its_time_is_over() -> None:
    scores = FaultScores()
    assert scores.is_available("a", 0)
    scores.report("a", 1_200, 10)
    assert not scores.is_available("a", 60_009)
    assert scores.is_available("a", 60_010)
    scores.report("a", 5, 20)
    assert scores.is_available("a", 20)


def test_when_all_are_left_alone_the_first_to_be_back_is_taken() -> None:
    scores = FaultScores()
    scores.report("a", FAILURE_LATENCY_MS, 0)
    scores.report("b", 600, 0)
    scores.report("c", 2_500, 0)
    assert scores.least_bad(["a", "b", "c"], 1) == "b"
