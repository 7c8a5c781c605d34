"""The SVG of a benchmark: well-formed, to scale, and readable on light and dark pages."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from benchmarks import charts
from benchmarks.figures import REFERENCE, Row

SPACE = "{http://www.w3.org/2000/svg}"


def elements(svg: str, name: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(svg).iter(SPACE + name))


def texts(svg: str) -> list[str | None]:
    return [element.text for element in elements(svg, "text")]


def bars_of(svg: str) -> list[float]:
    return [
        float(each.attrib["width"]) for each in elements(svg, "rect") if each.attrib["x"] == "350"
    ]


def test_bars_are_to_the_scale_of_their_row() -> None:
    row = Row("a & b <c>", "us", "less", rounds={"cometmq": [1.0, 2.0, 3.0], REFERENCE: [4.0]})
    svg = charts.bars("Title", [row])
    ours, java = bars_of(svg)
    assert ours == pytest.approx(java / 2)
    assert {"Title", "a & b <c>", "us, less is better", "2.00", "4.00"} <= set(texts(svg))


def test_a_row_without_rounds_has_no_bar() -> None:
    empty = Row("nothing", "us", "less", rounds={"cometmq": []})
    assert bars_of(charts.bars("Title", [empty])) == []
    assert bars_of(charts.bars("Title", [])) == []


def test_both_kinds_of_page_are_thought_of() -> None:
    for svg in (charts.bars("t", []), charts.lines("t", "x", "y", {})):
        assert "prefers-color-scheme:dark" in svg


def test_a_line_goes_through_its_points_from_left_to_right() -> None:
    points = [(100.0, 10.0), (1.0, 5.0), (10.0, 0.0)]
    svg = charts.lines("Title", "connections", "messages/s", {"cometmq": points, "java": []})
    line = elements(svg, "polyline")[0].attrib["points"]
    xs, ys = zip(*(map(float, point.split(",")) for point in line.split()), strict=True)
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1])  # a tenfold is a tenfold
    assert ys[1] - ys[0] == pytest.approx(ys[0] - ys[2])  # 0, 5 and 10
    assert {"1", "10", "100", "connections", "messages/s", "cometmq"} <= set(texts(svg))


def test_one_point_and_zeros_are_drawn() -> None:
    svg = charts.lines("Title", "x", "y", {"cometmq": [(8.0, 0.0)]})
    assert len(elements(svg, "circle")) == 1
    assert "nothing was measured" in texts(charts.lines("Title", "x", "y", {"cometmq": []}))


@pytest.mark.parametrize(
    ("highest", "marks"),
    [
        (43_200, ["0", "10 000", "20 000", "30 000", "40 000", "50 000"]),
        (100, ["0", "20", "40", "60", "80", "100"]),
        (0.9, ["0", "0.2", "0.4", "0.6", "0.8", "1"]),
        (346, ["0", "100", "200", "300", "400"]),
    ],
)
def test_the_marks_of_an_axis_are_round(highest: float, marks: list[str]) -> None:
    svg = charts.lines("Title", "connections", "y", {"cometmq": [(7, 1.0 * highest)]})
    assert [text for text in texts(svg) if text in marks] == marks
