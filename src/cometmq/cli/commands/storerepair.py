"""``cometmq store repair``: repairs a stopped store of CometMQ or of a Java broker."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import Annotated

import typer

from cometmq.cli.commands.store import Bar, ConfigFile, Directory, refusing, settings
from cometmq.core.clock import SystemClock
from cometmq.store.config import DamagePolicy

LEFT = 1


class Choice(StrEnum):
    """Treatment of damage in the log."""

    refuse = "refuse"
    skip = "skip"
    truncate = "truncate"


def repair(
    directory: Directory,
    config: ConfigFile = None,
    damage: Annotated[
        Choice,
        typer.Option(
            help="What to do about damage in the log: nothing, leave out the damaged records, or "
            "end the log before them."
        ),
    ] = Choice.refuse,
    queues: Annotated[
        bool, typer.Option("--queues", help="Rebuild all queues, also those without damage.")
    ] = False,
    topic: Annotated[
        list[str] | None,
        typer.Option(help="Rebuild the queues of this topic; may be given several times."),
    ] = None,
    index: Annotated[bool, typer.Option("--index", help="Rebuild the index.")] = False,
    yes: Annotated[
        bool,
        typer.Option("--yes", help="Repair; without this option, only print what would be done."),
    ] = False,
    processes: Annotated[
        int, typer.Option(min=0, help="Number of processes that verify; 0: one per processor.")
    ] = 0,
) -> None:
    """Verify a stopped store, and rebuild the files that do not match the log.

    Replaced files are first moved to cometmq-set-aside in the store. Exit code 0: nothing to
    repair, or repaired. 1: something is left to repair. 2: the repair is not possible as requested.
    """
    from cometmq.store.tools.repair import examine, told
    from cometmq.store.tools.repair import repair as carry_out

    policy = DamagePolicy[damage.name.upper()]
    with refusing(), Bar("verifying") as bar:
        found, plan, sizes = examine(
            settings(directory, config), processes=processes, topics=topic or (),
            all_queues=queues, index=index, began=bar.began, progress=bar.advance,
        )  # fmt: skip
    for finding in found.findings:
        if finding.severity.value == "damage":
            typer.echo(finding.line())
    for line in plan.lines(policy):
        typer.echo(line if yes else f"would {line}")
    if plan.is_empty:
        typer.echo("nothing that a repair can fix" if plan.others else "nothing to repair")
    elif yes:
        with refusing(), Bar("repairing") as bar:
            report = carry_out(
                replace(sizes, damage_policy=policy), plan, SystemClock(), progress=_Steps(bar).to
            )
        for line in told(report):
            typer.echo(line)
    else:
        typer.echo("Nothing was changed: add --yes to repair.", err=True)
    if plan.others or not (yes or plan.is_empty):
        raise typer.Exit(LEFT)


class _Steps:
    """Translates positions to steps of a bar."""

    def __init__(self, bar: Bar) -> None:
        self._bar = bar
        self._reached = 0

    def to(self, position: int, end: int) -> None:
        """Advance the bar to a position; ``end`` is the last one."""
        self._bar.began(end)
        self._bar.advance(position - self._reached)
        self._reached = position
