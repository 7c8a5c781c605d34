"""The screen says what happened, on a terminal and without one."""

import asyncio
import io
from collections import Counter
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from cometmq.core.clock import SystemClock
from examples.demo.compare import Comparison, Difference
from examples.demo.progress import Board, Party, PartyResult, Report, Result
from examples.demo.screen import follow, line, progress, render


def text(renderable: RenderableType, width: int = 140) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(renderable)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def board() -> Board:
    party = Party("social", running=False, outcomes=Counter(new=4_000, stale=2))
    return Board(10_000, {"social": party}, phase="changing", committed=5_000, published=4_900)


def result(different: int = 0, problems: tuple[str, ...] = ()) -> Result:
    rows = {"regions": 5_295, "users": 2_000}
    differences = tuple(Difference("users", f"U{n}", None, {"id": f"U{n}"}) for n in range(7))
    found = Comparison("social", rows, different, differences[:different], "abc123")
    party = PartyResult(found, 13_000, 256, 3, 120, 12, 340)
    spark = PartyResult(Comparison("spark", rows, 0, (), "abc123"))
    report = Report(13_256, 249, [("GB", "2026-03-04 05:00", 700)], {"p50": 900, "p99": 4_000})
    return Result(
        42.0, 13_000, 256, 6_500, 3.25, rows, "abc123", [party, spark], report,
        {"base": Path("demo/base.sqlite")}, [], problems,
    )  # fmt: skip


def test_a_good_run_says_so() -> None:
    shown = text(render(result()))
    assert "All copies are equal" in shown
    assert "FAILED" not in shown
    for expected in ("13,000", "2,000/s", "5,295", "0.34 s", "249", "GB", "demo/base.sqlite"):
        assert expected in shown


def test_a_difference_is_shown_and_the_rest_counted() -> None:
    bad = result(different=7)
    assert not bad.ok
    shown = text(render(bad))
    assert "FAILED" in shown
    assert "NO: 7" in shown
    assert "social: users U0: only in the copy" in shown
    assert "social: 2 more" in shown


def test_a_problem_fails_a_run_whose_rows_are_equal() -> None:
    bad = result(problems=("the broker ended with code 1",))
    assert not bad.ok
    assert "the broker ended with code 1" in text(render(bad))


def test_a_run_without_copies_is_not_good() -> None:
    empty = Result(1, 0, 0, 0, 0, {}, "", [], None, {}, [], [])
    assert not empty.ok


def test_one_line_tells_the_state() -> None:
    shown = line(board())
    assert shown == ("changing: 5000 of 10000 changes, 4900 published, social 4002 (stopped)")
    state = board()
    state.spark_state = "3 batches"
    assert line(state).endswith("spark 3 batches")


def test_the_live_view_shows_the_same_numbers() -> None:
    shown = text(progress(board()))
    for expected in ("changing", "5,000", "4,900", "4,002", "stopped"):
        assert expected in shown


@pytest.mark.parametrize("terminal", [True, False])
async def test_events_appear_while_it_runs(terminal: bool) -> None:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=100)
    state = board()
    shown = asyncio.ensure_future(follow(state, console, SystemClock()))
    state.say("the social platform stops")
    assert isinstance(console.file, io.StringIO)
    async with asyncio.timeout(60):
        while "social platform stops" not in console.file.getvalue():
            await asyncio.sleep(0.01)
    shown.cancel()
    with pytest.raises(asyncio.CancelledError):
        await shown
    assert "changing" in console.file.getvalue()
