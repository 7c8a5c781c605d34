"""Shows the progress of a streaming query while it runs: a table in a notebook, lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any

from cometmq.spark.querylag import lag_of

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class Shown:
    """The progress of a query: number of the last micro-batch, rows read so far, and messages left
    to read by topic and broker. ``last`` is the batch and the time of the newest report."""

    batch: int = -1
    rows: int = 0
    rows_per_s: float = 0.0
    lag: tuple[tuple[str, str, int], ...] = ()
    last: tuple[int, str] = (-1, "")

    def text(self) -> str:
        """Return the progress as one line."""
        left = sum(messages for _, _, messages in self.lag)
        return f"batch {self.batch}: {self.rows:,} rows, {self.rows_per_s:,.0f}/s, {left:,} to read"

    def html(self) -> str:
        """Return the progress as a table."""
        rows = "".join(
            f"<tr><td>{escape(topic)}</td><td>{escape(broker)}</td><td>{messages:,}</td></tr>"
            for topic, broker, messages in self.lag
        )
        head = "<tr><th>topic</th><th>broker</th><th>messages to read</th></tr>"
        return f"<p>{escape(self.text())}</p><table>{head}{rows}</table>"


def show_progress(query: StreamingQuery, every_s: float = EVERY_S) -> None:
    """Show the progress of a query until it ends. Raises the query's error, if it fails.

    In Jupyter the cell shows a table that is updated; elsewhere each change is a line of standard
    output. An interrupt stops the display, not the query.
    """
    show = _display() or _write
    shown = Shown()
    ended = False
    while not ended:
        ended = bool(query.awaitTermination(every_s))  # type: ignore[arg-type]
        newer = after(shown, query.recentProgress)
        if newer != shown:
            shown = newer
            show(shown)


def after(shown: Shown, progress: Iterable[StreamingQueryProgress]) -> Shown:
    """Return ``shown`` updated by those reports of Spark that are newer."""
    for each in progress:
        at = (each.batchId, each.timestamp)
        if at <= shown.last:
            continue
        lag: dict[tuple[str, str], int] = {}
        for source in each.sources:
            lag |= lag_of(source.endOffset, source.latestOffset)
        shown = replace(
            shown,
            batch=each.batchId,
            rows=shown.rows + max(each.numInputRows or 0, 0),
            rows_per_s=each.processedRowsPerSecond or 0.0,
            lag=tuple((topic, broker, lag[topic, broker]) for topic, broker in sorted(lag)),
            last=at,
        )
    return shown


def _write(shown: Shown) -> None:
    sys.stdout.write(shown.text() + "\n")
    sys.stdout.flush()


def _display() -> Callable[[Shown], None] | None:
    """Return a function that shows a table in a notebook's cell, or None outside of a notebook."""
    jupyter: Any = sys.modules.get("IPython")
    if jupyter is None or jupyter.get_ipython() is None:
        return None
    module: Any = import_module("IPython.display")
    handle = module.display(module.HTML(""), display_id=True)
    return lambda shown: handle.update(module.HTML(shown.html()))
