"""The capacity page: its formulas, its simulation, and that it shows what they give."""

import math
from dataclasses import replace

import pytest

from scripts import spark_capacity as capacity
from scripts import spark_plan
from scripts.spark_capacity import MEASURED, PLANNED, catch_up_s, needed, simulate


def test_the_page_shows_the_tables() -> None:
    page = capacity.PAGE.read_text(encoding="utf-8")
    assert capacity.written(page) == page, "python -m scripts.spark_capacity writes them"


def test_a_page_without_a_place_is_refused() -> None:
    with pytest.raises(ValueError, match="needs"):
        capacity.written("no table")


def test_the_shape_of_a_day_keeps_its_sum() -> None:
    assert len(capacity.DAY_SHAPE) == 24
    assert sum(capacity.DAY_SHAPE) / 24 == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize(
    ("choices", "why"),
    [
        (replace(PLANNED, batched=False), "processor"),
        (replace(PLANNED, retention_h=240), "disk"),
        (replace(PLANNED, broker_network=capacity.GIGABIT), "network"),
    ],
)
def test_the_scarcest_thing_decides(choices: capacity.Choices, why: str) -> None:
    found = needed(1_000_000, choices=choices)
    assert found.why == why
    assert found.brokers > needed(500_000, choices=choices).brokers


def test_a_broker_more_for_the_one_that_is_away() -> None:
    assert needed(1).brokers == 2
    found = needed(1_000_000)
    load = 1_000_000 * capacity.PEAK * capacity.broker_us(MEASURED, PLANNED) / 1e6
    assert load / (found.brokers - 1) <= PLANNED.share


def test_cores_make_up_for_an_outage() -> None:
    cores = capacity.cores_needed(1_000_000, MEASURED, PLANNED)
    long = replace(PLANNED, outage_s=2 * PLANNED.catch_up_s)
    assert capacity.cores_needed(1_000_000, MEASURED, long) == pytest.approx(
        1_000_000 * capacity.PEAK * 3 * MEASURED.spark_us / 1e6, abs=1
    )
    assert cores < capacity.cores_needed(1_000_000, MEASURED, long)


def test_an_archive() -> None:
    found = capacity.archive(100 * capacity.TB, 1_000_000)
    assert found.messages * MEASURED.parquet_bytes == 100 * capacity.TB
    assert found.fill_days * capacity.DAY_S * 1_000_000 == pytest.approx(found.messages)
    assert found.files == 781_250


def test_the_simulation_agrees_with_the_formula() -> None:
    away_s, per_s, per_s_max = 600, 1_000.0, 1_500.0
    found = simulate(
        lambda _: per_s, per_s_max, batch_s=0.0, trigger_s=1.0,
        outage=(1_000, 1_000 + away_s), seconds=10_000,
    )  # fmt: skip
    assert catch_up_s(away_s, per_s, per_s_max) == 1_200
    assert found.caught_up_s == pytest.approx(1_200, rel=0.15)
    assert found.backlog_max >= away_s * per_s
    assert found.lag_max_s >= away_s
    assert found.lag_p50_s < 10


def test_a_batch_takes_no_more_than_its_cap() -> None:
    done = 0.0

    def arrivals(second: int) -> float:
        nonlocal done
        done += second % 7
        return float(second % 7)

    found = simulate(arrivals, 50.0, batch_s=0.5, trigger_s=2.0, cap=40, seconds=700)
    assert found.batches >= done / 40
    assert found.lag_max_s < 10


def test_what_is_too_slow_never_catches_up() -> None:
    assert catch_up_s(10, 100, 100) == math.inf
    found = simulate(lambda _: 100.0, 90.0, batch_s=0.5, outage=(100, 200), seconds=1_000)
    assert math.isnan(found.caught_up_s)
    assert found.backlog_max > 100 * 100


def test_an_empty_day() -> None:
    found = simulate(lambda _: 0.0, 1.0, batch_s=0.5, seconds=100)
    assert (found.batches, found.lag_max_s, found.backlog_max) == (0, 0.0, 0.0)


def test_a_cap_below_the_arrivals_falls_behind() -> None:
    free = simulate(lambda _: 100.0, 1_000.0, batch_s=0.1, seconds=500)
    capped = simulate(lambda _: 100.0, 1_000.0, batch_s=0.1, cap=500, seconds=500)
    assert capped.lag_max_s > 2 * free.lag_max_s


def test_a_plan_of_one_broker_takes_the_time_of_the_slower_side() -> None:
    # Two cores of 100 messages a second each, from a broker that sends 1 000 or 100 a second.
    case = spark_plan.Case([8_000_000], cores=2)
    found = spark_plan.run(case, spark_us=10_000, pull_us=1_000)
    assert found.tasks == 8
    assert found.seconds == pytest.approx(40_000)
    assert found.skew == pytest.approx([1.0] * 10)
    found = spark_plan.run(case, spark_us=10_000, pull_us=10_000)
    assert found.seconds == pytest.approx(80_000)


def test_brokers_in_turns_are_all_read_and_the_fullest_one_from_the_start() -> None:
    even = spark_plan.Case([16_000_000] * 4, cores=4)
    costs = {"spark_us": 10.0, "pull_us": 10.0}
    in_turns = spark_plan.run(even, **costs)
    assert in_turns.busy == (4,) * 10
    one_by_one = spark_plan.run(replace(even, order="sorted"), **costs)
    assert one_by_one.seconds == pytest.approx(4 * in_turns.seconds)
    assert max(one_by_one.skew) == pytest.approx(4)
    fuller = replace(even, messages=[48_000_000, *[16_000_000] * 3])
    costs["pull_us"] = 5.0
    rounds = spark_plan.run(replace(fuller, order="rounds"), **costs)
    assert rounds.busy[-1] == 1
    assert rounds.seconds == pytest.approx(320)
    assert spark_plan.run(fuller, **costs).seconds < 290
