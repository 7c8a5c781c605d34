"""Charts are right in their marks, whatever the numbers are."""

import pytest

from cometmq.spark.jobs.charts import (
    BarChart,
    LineChart,
    amount,
    bar_chart,
    line_chart,
    nice,
    short,
)

MINUTE = 60_000


def test_a_line_has_a_point_a_bucket_and_zero_where_nothing_was() -> None:
    (line,) = line_chart({"a": {0: 60, 3 * MINUTE: 120}}, MINUTE).lines
    assert len(line.points) == 4
    ups = [round(y, 1) for _, y in line.points]
    assert ups[1] == ups[2] > ups[0] > ups[3]
    assert ups[1] - ups[3] == pytest.approx(2 * (ups[1] - ups[0]), abs=0.2)
    assert line.title == "a: at most 2.0 a second"


def test_long_times_are_drawn_in_few_points() -> None:
    (line,) = line_chart({"a": {at * MINUTE: 1 for at in range(10_000)}}, MINUTE).lines
    assert 200 < len(line.points) <= 240


def test_the_smallest_of_many_are_added_up() -> None:
    series = {f"topic-{at}": {0: 10 * at + 1, MINUTE: 1} for at in range(9)}
    found = line_chart(series, MINUTE)
    assert len(found.lines) == 6
    assert found.legend == ("topic-8", "topic-7", "topic-6", "topic-5", "topic-4", "4 others")


def test_one_moment_is_a_dot_and_none_is_no_chart() -> None:
    (dot,) = line_chart({"a": {0: 1}}, MINUTE).lines
    assert len(dot.points) == 1
    assert line_chart({}, MINUTE) == LineChart()
    assert bar_chart([], "ms") == BarChart()


def test_bars_are_as_long_as_their_values() -> None:
    drawn = bar_chart([("x", {"p50": 1.0, "p99": 4.0}), ("y", {"p50": 0, "p99": 2.0})], "ms")
    found = {bar.title: bar.width for bar in drawn.bars}
    assert found["x p99: 4 ms"] == pytest.approx(2 * found["y p99: 2 ms"], rel=0.01)
    assert found["y p50: 0 ms"] == 1
    assert not drawn.is_log
    assert bar_chart([("x", {"p50": 1.0, "p99": 40_000.0})], "ms").is_log


def test_the_smallest_bar_is_in_front() -> None:
    drawn = bar_chart([("x", {"p50": 1.0, "p99": 4.0})], "ms")
    assert [(bar.colour, bar.title) for bar in drawn.bars] == [
        (1, "x p99: 4 ms"),
        (0, "x p50: 1 ms"),
    ]
    assert drawn.legend == ("p50", "p99")


@pytest.mark.parametrize(
    ("value", "told"),
    [(0, "0"), (12, "12"), (0.1234, "0.123"), (9_999, "9,999"), (12_345, "12.3k"), (4.5e6, "4.5M")],
)
def test_amounts(value: float, told: str) -> None:
    assert amount(value) == told


@pytest.mark.parametrize(("value", "top"), [(0, 1), (1, 1), (1.1, 2), (23, 25), (99, 100)])
def test_scales_end_at_round_numbers(value: float, top: float) -> None:
    assert nice(value) == top


def test_long_names_are_cut_in_the_middle() -> None:
    assert short("a" * 20 + "b" * 20) == "a" * 16 + "…" + "b" * 16
