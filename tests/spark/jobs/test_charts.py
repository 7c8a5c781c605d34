"""Charts are right in their marks, whatever the numbers are."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

from cometmq.spark.jobs.statsreport import amount, bars, lines, nice, short

MINUTE = 60_000


def svg(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text[: text.index("</svg>") + 6])


def points(line: ElementTree.Element) -> list[tuple[float, float]]:
    found = [pair.split(",") for pair in line.attrib["points"].split()]
    return [(float(x), float(y)) for x, y in found]


def test_a_line_has_a_point_a_bucket_and_zero_where_nothing_was() -> None:
    drawn = svg(lines({"a": {0: 60, 3 * MINUTE: 120}}, MINUTE))
    (line,) = drawn.iter("{http://www.w3.org/2000/svg}polyline")
    found = points(line)
    assert len(found) == 4
    ups = [round(y, 1) for _, y in found]
    assert ups[1] == ups[2] > ups[0] > ups[3]
    assert ups[1] - ups[3] == pytest.approx(2 * (ups[1] - ups[0]), abs=0.2)
    assert "a: at most 2.0 a second" in lines({"a": {0: 60, 3 * MINUTE: 120}}, MINUTE)


def test_long_times_are_drawn_in_few_points() -> None:
    drawn = svg(lines({"a": {at * MINUTE: 1 for at in range(10_000)}}, MINUTE))
    (line,) = drawn.iter("{http://www.w3.org/2000/svg}polyline")
    assert 200 < len(points(line)) <= 240


def test_the_smallest_of_many_are_added_up() -> None:
    series = {f"topic-{at}": {0: 10 * at + 1, MINUTE: 1} for at in range(9)}
    text = lines(series, MINUTE)
    assert len(list(svg(text).iter("{http://www.w3.org/2000/svg}polyline"))) == 6
    assert "4 others" in text
    assert "topic-8" in text
    assert "topic-0" not in text


def test_one_moment_is_a_dot_and_none_is_said() -> None:
    assert "<circle" in lines({"a": {0: 1}}, MINUTE)
    assert "Nothing" in lines({}, MINUTE)
    assert "Nothing" in bars([], "ms")


def test_bars_are_as_long_as_their_values() -> None:
    drawn = svg(bars([("x", {"p50": 1.0, "p99": 4.0}), ("y & z", {"p50": 0, "p99": 2.0})], "ms"))
    found = {
        next(iter(bar)).text: float(bar.attrib["width"])
        for bar in drawn.iter("{http://www.w3.org/2000/svg}rect")
    }
    assert found["x p99: 4 ms"] == pytest.approx(2 * found["y & z p99: 2 ms"], rel=0.01)
    assert found["y & z p50: 0 ms"] == 1
    assert "Logarithmic" in bars([("x", {"p50": 1.0, "p99": 40_000.0})], "ms")


def test_names_cannot_break_the_page() -> None:
    text = lines({"<script>": {0: 1}}, MINUTE) + bars([("<b>", {"<i>": 1})], "<u>")
    assert not re.search(r"<(script|b|u)>", text)


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
