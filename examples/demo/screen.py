"""The screen with the result, and the live display during the run.

On a terminal, a live table follows the run. Elsewhere (continuous integration, a file) a line is
printed for every event and every few seconds.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from cometmq.core.clock import Clock
    from examples.demo.progress import Board, PartyResult, Report, Result

DRAW_INTERVAL_MS: Final = 200
LINE_INTERVAL_MS: Final = 5_000
DIFFERENCES_SHOWN: Final = 5


async def follow(board: Board, console: Console, clock: Clock) -> None:
    """Show the board until cancelled."""
    if console.is_terminal:
        await _follow_live(board, console, clock)
    else:
        await _follow_lines(board, console, clock)


async def _follow_live(board: Board, console: Console, clock: Clock) -> None:
    with Live(progress(board), console=console, auto_refresh=False, transient=True) as live:
        said = 0
        while True:
            for event in board.events[said:]:
                live.console.print(Text(f"  {event}", style="dim"))
            said = len(board.events)
            live.update(progress(board), refresh=True)
            await clock.sleep_ms(DRAW_INTERVAL_MS)


async def _follow_lines(board: Board, console: Console, clock: Clock) -> None:
    said = 0
    next_ms = 0
    try:
        while True:
            for event in board.events[said:]:
                console.print(Text(f"  {event}"), soft_wrap=True)
            said = len(board.events)
            if clock.monotonic_ms() >= next_ms:
                next_ms = clock.monotonic_ms() + LINE_INTERVAL_MS
                console.print(Text(line(board)), soft_wrap=True)
            await clock.sleep_ms(DRAW_INTERVAL_MS)
    except asyncio.CancelledError:
        for event in board.events[said:]:
            console.print(Text(f"  {event}"), soft_wrap=True)
        raise


def line(board: Board) -> str:
    """Return the board in one line."""
    parts = [f"{board.phase}: {board.committed} of {board.expected} changes"]
    parts.append(f"{board.published} published")
    parts += [
        f"{party.name} {party.taken}{'' if party.running else ' (stopped)'}"
        for party in board.parties.values()
    ]
    if board.spark_state:
        parts.append(f"spark {board.spark_state}")
    return ", ".join(parts)


def progress(board: Board) -> RenderableType:
    """Return the board as a small table with bars."""
    table = Table.grid(padding=(0, 2))
    goal = max(1, board.expected)
    rows = [("committed", board.committed, ""), ("published", board.published, "")]
    rows += [
        (party.name, party.taken, "" if party.running else "stopped")
        for party in board.parties.values()
    ]
    for name, count, note in rows:
        table.add_row(name, ProgressBar(goal, min(goal, count), width=40), f"{count:,}", note)
    if board.spark_state:
        table.add_row("spark", board.spark_state)
    return Group(Text(board.phase, style="bold"), table)


def render(result: Result) -> RenderableType:
    """Return the result as one screen."""
    rate = result.loaded / result.load_seconds if result.load_seconds > 0 else 0
    head = Text.assemble(
        ("CometMQ demo: ", "bold"),
        f"{result.published:,} changes published, {result.published_again:,} of them twice, the "
        f"first {result.loaded:,} in {result.load_seconds:.1f} s ({rate:,.0f}/s); "
        f"{result.seconds:.0f} s in all",
    )
    parts: list[RenderableType] = [head, _copies(result)]
    if result.report is not None:
        parts.append(_report(result.report))
    files = Table.grid(padding=(0, 2))
    for name, path in result.files.items():
        files.add_row(Text(name, style="dim"), Text(str(path), overflow="fold"))
    parts.append(files)
    parts.append(_verdict(result))
    return Group(*parts)


def _copies(result: Result) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("copy")
    counts = ("regions", "users", "applied", "twice", "late", "retried", "lag p50", "lag p99")
    for heading in counts:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("equal", no_wrap=True)
    table.add_row("base", *(f"{rows:,}" for rows in result.base_rows.values()))
    for party in result.parties:
        table.add_row(*_copy_cells(party))
    return table


def _copy_cells(party: PartyResult) -> list[RenderableType]:
    found = party.comparison
    counts = [party.applied, party.repeated, party.stale, party.retried]
    lags = [party.lag_p50_ms, party.lag_p99_ms]
    equal = Text("yes", "green") if found.equal else Text(f"NO: {found.different:,}", "red")
    return [
        found.name,
        *(f"{rows:,}" for rows in found.rows.values()),
        *("-" if count is None else f"{count:,}" for count in counts),
        *("-" if lag is None else f"{lag / 1000:.2f} s" for lag in lags),
        equal,
    ]


def _report(report: Report) -> Text:
    busiest = ", ".join(f"{country} {n:,} ({hour})" for country, hour, n in report.busiest)
    lags = ", ".join(f"{name} {lag:,} ms" for name, lag in report.lag_ms.items())
    return Text.assemble(
        ("Spark's report: ", "bold"),
        f"{report.changes:,} changes in {report.countries:,} countries; most in {busiest}; "
        f"lag {lags}",
    )


def _verdict(result: Result) -> Text:
    if result.ok:
        return Text("All copies are equal to the base, row by row.", style="bold green")
    lines = ["The run FAILED."]
    for party in result.parties:
        found = party.comparison
        lines += [f"  {found.name}: {what}" for what in found.differences[:DIFFERENCES_SHOWN]]
        left = found.different - DIFFERENCES_SHOWN
        if left > 0:
            lines.append(f"  {found.name}: {left:,} more")
    lines += [f"  {problem}" for problem in result.problems]
    return Text("\n".join(lines), style="bold red")
