"""``cometmq demo``: runs the main job on real data, see cometmq.demo."""

from __future__ import annotations

import asyncio
import os
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cometmq.cli import render, serve
from cometmq.cli.connect import run
from cometmq.core.clock import SystemClock
from cometmq.core.errors import CometError

if TYPE_CHECKING:
    from cometmq.demo.result import Result

FAILED = 1
REFUSED = 2
INTERRUPTED = 130


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
    missing = what_is_missing(spark=spark)
    if missing:
        typer.echo(f"cometmq demo: {missing}", err=True)
        raise typer.Exit(REFUSED)
    from cometmq.demo.pipeline import SparkPipeline
    from cometmq.demo.run import Options, prepare
    from cometmq.demo.screen import follow
    from cometmq.demo.screen import render as draw

    console = render.console()
    clock = SystemClock()
    options = Options(directory, changes=changes, seed=seed, changes_per_s=rate)
    prepared = prepare(options, clock)
    if spark:
        prepared.pipeline = SparkPipeline(prepared.folder.spark)

    async def main() -> Result:
        task = asyncio.current_task()
        assert task is not None
        # Stop in order, otherwise the broker and Spark would survive as orphans.
        serve.on_signals(task.cancel)
        async with asyncio.TaskGroup() as group:
            following = group.create_task(follow(prepared.board, console, clock))
            try:
                return await prepared.run()
            finally:
                following.cancel()

    try:
        result = run(main())
    except asyncio.CancelledError:
        typer.echo("cometmq demo: interrupted", err=True)
        raise typer.Exit(INTERRUPTED) from None
    except (CometError, OSError, BaseExceptionGroup) as error:
        _explain(error)
        raise typer.Exit(FAILED) from None
    console.print(draw(result))
    if not result.ok:
        raise typer.Exit(FAILED)


def what_is_missing(*, spark: bool) -> str:
    """Return what this machine lacks and how to install it; empty if nothing is missing."""
    needed = ["pycountry", "pyspark", "pyarrow"] if spark else ["pycountry"]
    absent = [name for name in needed if find_spec(name) is None]
    if absent:
        return f"{', '.join(absent)} not installed: pip install 'cometmq[demo]'"
    java = Path(os.environ.get("JAVA_HOME", ""), "bin", "java")
    if spark and shutil.which("java") is None and not java.is_file():
        return (
            "Java is missing, on which Spark runs: apt-get install -y openjdk-17-jre-headless "
            "(or --no-spark)"
        )
    return ""


def _explain(error: BaseException) -> None:
    """Print each error on a line; raise errors again that are bugs, not failures of the run."""
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            _explain(part)
    elif isinstance(error, CometError | OSError):
        typer.echo(f"cometmq demo: {error}", err=True)
    else:
        raise error
