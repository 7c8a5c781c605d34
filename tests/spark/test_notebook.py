"""The progress of a query, shown in a notebook and as lines."""

import json
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from cometmq.spark.notebook import Shown, after, show_progress


def report(batch: int, rows: int, read: int, end: int) -> Any:
    """What Spark says of a micro-batch."""
    source = SimpleNamespace(
        endOffset=json.dumps({"v": 1, "q": {"a|T<1>|0": read}}),
        latestOffset=json.dumps({"v": 1, "q": {"a|T<1>|0": end}}),
    )
    return SimpleNamespace(
        batchId=batch, timestamp=f"2026-01-01T00:00:{batch:02}.000Z", sources=[source],
        numInputRows=rows, processedRowsPerSecond=1234.5,
    )  # fmt: skip


class Query:
    """A query that says one thing more each time, and ends with or without an error."""

    def __init__(self, *said: Any, error: Exception | None = None) -> None:
        self.recentProgress: list[Any] = []
        self._said = [*said]
        self._error = error

    def awaitTermination(self, every_s: float) -> bool:
        assert every_s == 1
        if self._said:
            self.recentProgress.append(self._said.pop(0))
            return not self._said and self._error is None
        assert self._error is not None
        raise self._error


def test_rows_are_counted_once() -> None:
    first, second = report(0, 10, 10, 25), report(1, 15, 25, 25)
    shown = after(after(Shown(), [first]), [first, second])
    assert (shown.batch, shown.rows, shown.lag) == (1, 25, (("T<1>", "a", 0),))
    assert after(shown, [first, second]) == shown


def test_lines_outside_of_a_notebook(capsys: pytest.CaptureFixture[str]) -> None:
    query: Any = Query(report(0, 10, 10, 25), report(1, 15, 25, 25))
    show_progress(query)
    assert capsys.readouterr().out.splitlines() == [
        "batch 0: 10 rows, 1,234/s, 15 to read",
        "batch 1: 25 rows, 1,234/s, 0 to read",
    ]


def test_the_error_of_a_query_is_raised() -> None:
    query: Any = Query(report(0, 10, 10, 25), error=ValueError("on purpose"))
    with pytest.raises(ValueError, match="on purpose"):
        show_progress(query)


def test_a_table_in_a_notebook(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    updates: list[str] = []
    jupyter: Any = ModuleType("IPython")
    jupyter.get_ipython = object
    shell: Any = ModuleType("IPython.display")
    shell.HTML = str
    shell.display = lambda _, display_id: SimpleNamespace(update=updates.append)
    monkeypatch.setitem(sys.modules, "IPython", jupyter)
    monkeypatch.setitem(sys.modules, "IPython.display", shell)
    query: Any = Query(report(0, 10, 10, 25))
    show_progress(query)
    assert updates == [Shown(0, 10, 1234.5, (("T<1>", "a", 15),)).html()]
    assert "<td>T&lt;1&gt;</td><td>a</td><td>15</td>" in updates[0]
    assert capsys.readouterr().out == ""
