"""The page of numbers is whole without a cluster, and shows what is in the report."""

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from cometmq.spark.jobs.stats import skews
from cometmq.spark.jobs.statsreport import GroupLag, HotKey, Measured, StatsReport, page, span

SVG = "{http://www.w3.org/2000/svg}"
SPREAD = {"p50": 3, "p95": 40, "p99": 900, "max": 60_000}


def measured(name: str, messages: int) -> Measured:
    times = ("2026-01-31 08:00:00.000+00:00", "2026-01-31 09:00:00.000+00:00")
    return Measured(name, messages, messages * 300, 1.5, *times, SPREAD, SPREAD)


def report(topics: int = 30) -> StatsReport:
    queues = tuple(measured(f"t{at} broker-a/{q}", 9 - q) for at in range(topics) for q in (0, 1))
    return StatsReport(
        topics=tuple(measured(f"t{at}", 100 - at) for at in range(topics)),
        queues=queues,
        tags=(measured("t0 paid", 50), measured("t0 (no tag)", 50)),
        skew=skews(queues),
        hot_keys=(HotKey("t0", "<b>A-17</b>", 12),),
        groups=(
            GroupLag("g", "t0", 12, 90_000, "t0@broker-a:0", 7),
            GroupLag("h", "t0", 0, None, "q", 0),
        ),
        bucket_ms=60_000,
        rates={f"t{at}": {0: 60, 120_000: 30} for at in range(topics)},
        html="x",
    )


class Tags(HTMLParser):
    """Counts tags and keeps those that are open."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in {"meta", "rect", "line", "polyline", "circle"} or tag in {"rect", "polyline"}:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        pass


def test_every_tag_is_closed_and_names_are_text() -> None:
    found = Tags()
    made = page(report(), 0)
    found.feed(made)
    assert [tag for tag in found.open if tag not in ("html", "body")] == []
    assert "<b>A-17" not in made
    assert "&lt;b&gt;A-17" in made
    assert "and 10 more" in made
    assert "1 min 30 s" in made


def test_charts_have_a_mark_for_each_number() -> None:
    made = page(report(2), 0)
    drawings = [ElementTree.fromstring(each) for each in re.findall(r"<svg.*?</svg>", made, re.S)]
    rates, lags, *_ = drawings
    assert [line.attrib["class"] for line in rates.iter(f"{SVG}polyline")] == ["line s0", "line s1"]
    assert [len(line.attrib["points"].split()) for line in rates.iter(f"{SVG}polyline")] == [3, 3]
    titles = [next(iter(bar)).text for bar in lags.iter(f"{SVG}rect")]
    assert titles[:2] == ["t0 max: 6e+04 ms", "t0 p99: 900 ms"]
    assert "Logarithmic scale" in made
    assert '<td class="n">100</td>' in made
    assert "<td>t1 broker-a/0</td>" not in made
    assert "<td>t1</td>" in made


def test_a_single_moment_is_a_dot() -> None:
    made = page(replace(report(1), rates={"<script>": {0: 60}}), 0)
    assert re.search(r'<circle class="dot s0".*?><title>&lt;script&gt;: at most 1.0', made)
    assert "<script" not in made


def test_parts_without_numbers_are_left_out() -> None:
    bare = StatsReport((), (), (), (), (), (), 60_000, {}, "x")
    made = page(bare, 0)
    assert "Hot keys" not in made
    assert "Consumer groups" not in made
    assert "Nothing" in made


@pytest.mark.parametrize(
    ("span_ms", "told"),
    [(0, "0 ms"), (999, "999 ms"), (90_000, "1 min 30 s"), (3_600_000, "1 h"), (10**8, "1 d 3 h")],
)
def test_spans_of_time(span_ms: int, told: str) -> None:
    assert span(span_ms) == told
