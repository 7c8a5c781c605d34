"""``make demo``: a broker, the run, and a comparison of the copies row by row.

python -m examples.demo [--directory DIR] [--changes N] [--rate N] [--seed S] [--no-spark]

The exit code is 0 only if every copy is equal to the base, row by row.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from cometmq.cli import logs, serve
from cometmq.core.clock import SystemClock
from cometmq.core.errors import CometError, SettingsError
from cometmq.net import eventloop
from examples.demo.pipeline import SparkPipeline
from examples.demo.run import Options, prepare
from examples.demo.screen import follow
from examples.demo.screen import render as draw

if TYPE_CHECKING:
    from examples.demo.progress import Result
    from examples.demo.run import Demo

DONE = 0
FAILED = 1
REFUSED = 2
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo with the options in ``arguments``; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m examples.demo")
    parser.add_argument(
        "--directory", type=Path, default=Path("demo-out"), help="directory for the run's files"
    )
    parser.add_argument("--changes", type=int, default=6_000, help="changes after the first load")
    parser.add_argument("--rate", type=int, default=400, help="changes a second after the load")
    parser.add_argument("--seed", type=int, default=7, help="the same seed makes the same changes")
    parser.add_argument(
        "--spark", action=argparse.BooleanOptionalAction, default=True, help="needs Java"
    )
    chosen = parser.parse_args(arguments)
    if chosen.changes < 0 or chosen.rate < 1:
        parser.error("--changes must not be negative, and --rate must be positive")
    if missing := what_is_missing(spark=chosen.spark):
        return _refuse(missing)
    logs.configure("warning")
    options = Options(
        chosen.directory, changes=chosen.changes, seed=chosen.seed, changes_per_s=chosen.rate
    )
    try:
        prepared = prepare(options, SystemClock())
    except SettingsError as error:
        return _refuse(str(error))
    if chosen.spark:
        prepared.pipeline = SparkPipeline(prepared.folder.spark)
    return run(prepared)


def run(prepared: Demo) -> int:
    """Run the demo and show it on the console; return the exit code."""
    console = Console(highlight=False, markup=False)

    async def show_and_run() -> Result:
        task = asyncio.current_task()
        assert task is not None
        # Stop in order, otherwise the broker and Spark would survive as orphans.
        serve.on_signals(task.cancel)
        async with asyncio.TaskGroup() as group:
            following = group.create_task(follow(prepared.board, console, prepared.clock))
            try:
                return await prepared.run()
            finally:
                following.cancel()

    try:
        result = eventloop.run(show_and_run())
    except asyncio.CancelledError:
        print("demo: interrupted", file=sys.stderr)
        return INTERRUPTED
    except (CometError, OSError, BaseExceptionGroup) as error:
        _explain(error)
        return FAILED
    console.print(draw(result))
    return DONE if result.ok else FAILED


def what_is_missing(*, spark: bool) -> str:
    """Return what this machine lacks and how to install it; empty if nothing is missing."""
    needed = ["pycountry", "pyspark", "pyarrow"] if spark else ["pycountry"]
    absent = [name for name in needed if find_spec(name) is None]
    if absent:
        return f"{', '.join(absent)} not installed: run `make setup`"
    java = Path(os.environ.get("JAVA_HOME", ""), "bin", "java")
    if spark and shutil.which("java") is None and not java.is_file():
        return (
            "Spark needs Java, which is not installed: apt-get install -y openjdk-17-jre-headless "
            "(or use --no-spark)"
        )
    return ""


def _refuse(problem: str) -> int:
    print(f"demo: {problem}", file=sys.stderr)
    return REFUSED


def _explain(error: BaseException) -> None:
    """Print each error on a line; raise errors again that are bugs, not failures of the run."""
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            _explain(part)
    elif isinstance(error, CometError | OSError):
        print(f"demo: {error}", file=sys.stderr)
    else:
        raise error


if __name__ == "__main__":
    sys.exit(main())
