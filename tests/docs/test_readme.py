"""The README's chart and figures are those that were recorded, and its links work on PyPI."""

import json
import re

from scripts.readme_chart import CASES, CHART, RECORDED, chart, times_better
from tests.architecture.rules import ROOT
from tests.docs.pages import links

README = (ROOT / "README.md").read_text(encoding="utf-8")
RECORD = json.loads(RECORDED.read_text(encoding="utf-8"))


def test_the_chart_is_current() -> None:
    assert CHART.read_text(encoding="utf-8") == chart(RECORD), "run python -m scripts.readme_chart"


def test_less_is_better_for_times_and_memory() -> None:
    record: dict[str, dict[str, str | float]] = {
        "rate": {"ratio": 6.0, "better": "more"},
        "memory": {"ratio": 0.25, "better": "less"},
    }
    assert [times_better(record, case) for case in record] == [6.0, 4.0]
    assert all(times_better(RECORD, case) > 1 for case in CASES)


def test_the_figures_are_those_of_the_performance_page() -> None:
    """Each figure of the README's table stands in the page that says how it was measured."""
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    table = README.partition("## The figures")[2].partition("## When not")[0]
    figures = set(re.findall(r"(?<=[|/] )\d[\d .]*\d(?= [|/])", table))
    assert len(figures) > 25
    assert {figure for figure in figures if figure not in page} == set()


def test_links_work_anywhere() -> None:
    assert [link for link in links(README) if not link.startswith("https://")] == []
