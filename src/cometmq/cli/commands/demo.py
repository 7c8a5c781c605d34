"""``cometmq demo``: the main job on real data, see cometmq.demo."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cometmq.cli import render
from cometmq.cli.connect import run
from cometmq.core.clock import SystemClock
from cometmq.core.errors import CometError

if TYPE_CHECKING:
    from cometmq.demo.result import Result

FAILED = 1


def demo(
    directory: Annotated[Path, typer.Option(help="Where the run keeps its files.")] = Path(
        "demo-out"
    ),
    changes: Annotated[int, typer.Option(min=0, help="Changes after the first load.")] = 6_000,
    seed: Annotated[int, typer.Option(help="The same one makes the same changes.")] = 7,
    spark: Annotated[bool, typer.Option(help="Keep a copy with Spark too (needs Java).")] = True,
    rate: Annotated[int, typer.Option(min=1, help="Changes a second after the load.")] = 400,
) -> None:
    """Run the main job: tables change, messages carry the changes, all copies end equal.

    The exit code is 0 only when every copy is equal to the base, row by row.
    """
    from cometmq.demo.run import Options, prepare
    from cometmq.demo.screen import follow
    from cometmq.demo.screen import render as draw

    console = render.console()
    clock = SystemClock()
    options = Options(directory, changes=changes, seed=seed, changes_per_s=rate)
    prepared = prepare(options, clock)
    if spark:
        from cometmq.demo.pipeline import SparkPipeline

        prepared.pipeline = SparkPipeline(prepared.folder.spark)

    async def main() -> Result:
        async with asyncio.TaskGroup() as group:
            following = group.create_task(follow(prepared.board, console, clock))
            try:
                return await prepared.run()
            finally:
                following.cancel()

    try:
        result = run(main())
    except* (CometError, OSError) as group:
        for error in _leaves(group):
            typer.echo(f"cometmq demo: {error}", err=True)
        raise typer.Exit(FAILED) from None
    console.print(draw(result))
    if not result.ok:
        raise typer.Exit(FAILED)


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found
