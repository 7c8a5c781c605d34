"""Rates of one consumer's topics."""

from __future__ import annotations

from cometmq.client.consumer.stats import ConsumerStats
from cometmq.protocol.bodies import TopicRates


def test_rates_since_the_start() -> None:
    stats = ConsumerStats(1_000)
    stats.pulled("t", 30, 12)
    stats.pulled("t", 10, 4)
    counters = stats.of("t")
    counters.succeeded += 20
    counters.failed += 5
    counters.measured += 2
    counters.consume_ms += 7
    assert counters.rates(11_000) == TopicRates(8.0, 4.0, 3.5, 2.0, 0.5, 5)
    assert stats.of("u").rates(11_000) == TopicRates()


def test_what_is_over_a_minute_old_counts_no_more() -> None:
    stats = ConsumerStats(0)
    stats.of("t").succeeded += 600
    for now_ms in range(5_000, 70_001, 5_000):
        stats.sample(now_ms)
    assert stats.of("t").rates(70_000).consume_ok_tps == 0
    stats.of("t").succeeded += 60
    assert stats.of("t").rates(70_000).consume_ok_tps == 1


def test_failures_count_for_an_hour() -> None:
    stats = ConsumerStats(0)
    stats.of("t").failed += 3
    for now_ms in range(60_000, 3_600_001, 60_000):
        stats.sample(now_ms)
    rates = stats.of("t").rates(3_600_000)
    assert (rates.consume_failed_msgs, rates.consume_failed_tps) == (3, 0)
    stats.of("t").failed += 1
    for now_ms in range(3_660_000, 3_720_001, 60_000):
        stats.sample(now_ms)
    assert stats.of("t").rates(3_720_000).consume_failed_msgs == 1
