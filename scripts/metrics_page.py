"""Writes the tables of docs/metrics.md from the descriptions of the metrics.

Run `python -m scripts.metrics_page` after a change of a metric; a test fails if the page differs.
"""

import os.path
from collections.abc import Iterable
from pathlib import Path

from cometmq.broker.metrics import catalog
from cometmq.monitoring import process
from cometmq.monitoring.series import KnownFrom, Metric
from cometmq.namesrv import metrics
from scripts.marks import write_tables

PAGE = Path(__file__).resolve().parent.parent / "docs" / "metrics.md"


def metric_row(metric: Metric) -> str:
    """Return one row of a table of metrics."""
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    meaning = f"{metric.meaning}. {metric.difference}" if metric.difference else metric.meaning
    return f"| `{metric.name}` | {metric.kind.value} | {labels} | {meaning} |"


def metrics_table(rows: Iterable[Metric]) -> str:
    """Return a table of metrics, by name."""
    head = ["| name | type | labels | meaning |", "|---|---|---|---|"]
    return "\n".join([*head, *map(metric_row, sorted(rows, key=lambda each: each.name))])


def tables() -> dict[str, str]:
    """Return all tables, by the names of their marks."""
    by_source = {
        known_from: metrics_table(each for each in catalog.METRICS if each.known_from is known_from)
        for known_from in KnownFrom
    }
    return {
        "metrics of RocketMQ 5": by_source[KnownFrom.BROKER_5],
        "metrics of rocketmq-exporter": by_source[KnownFrom.EXPORTER],
        "metrics of CometMQ": by_source[KnownFrom.OURS],
        "metrics of a name server": metrics_table(metrics.METRICS),
        "metrics of a process": metrics_table(process.METRICS),
    }


def replace_tables(page: str) -> str:
    """Return the page with each table between its marks."""
    return write_tables(page, "scripts/metrics_page.py", tables())


if __name__ == "__main__":
    PAGE.write_text(replace_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(os.path.relpath(PAGE))
