"""``cometmq spark JOB``: runs a job of cometmq.spark.jobs on its own Spark session.

Spark is imported only when a job runs, so that other commands start fast.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from importlib.util import find_spec
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cometmq.cli import render
from cometmq.cli.commands import jobwords
from cometmq.cli.connect import AsJson  # noqa: TC001 - typer reads it
from cometmq.cli.servers import parse_settings
from cometmq.core.errors import CometError, SettingsError
from cometmq.spark.jobs.registry import JOBS, Job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FAILED: Final = 1
REFUSED: Final = 2
INTERRUPTED: Final = 130
_CANCEL_S: Final = 0.2
_EXTRAS: Final = {"deltalake": "delta", "psycopg": "postgres"}

Master = Annotated[
    str, typer.Option(metavar="URL", help="Spark's master: local[N], spark://..., yarn, k8s://...")
]
Memory = Annotated[str, typer.Option(help="Memory of the driver.")]
Conf = Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="A setting of Spark.")]

app = typer.Typer(
    help="Jobs on Spark: archive, search, check, replay and measure topics and stores.",
    no_args_is_help=True,
)


def run(
    job: Job,
    options: Any,
    *,
    master: str,
    memory: str,
    conf: list[str],
    as_json: bool,
) -> None:
    """Run a job and print its report; raise typer.Exit if the report is not ok."""
    with _explained(job.name):
        spark = _session(job.name, master, memory, parse_settings(conf))
        try:
            with _interruptible(spark), _bar(shown=not as_json) as progress:
                report = job.load().run(spark, options, progress)
        finally:
            _stop(spark)
    if as_json:
        render.print_json(json_lines(report))
    else:
        print_report(report)
    if not getattr(report, "ok", True):
        raise typer.Exit(FAILED)


def what_is_missing() -> str:
    """Return what this machine lacks for Spark and how to install it; empty if nothing is
    missing.
    """
    absent = [name for name in ("pyspark", "pyarrow", "numpy") if find_spec(name) is None]
    if absent:
        return f"{', '.join(absent)} not installed: pip install 'cometmq[spark]'"
    java = Path(os.environ.get("JAVA_HOME", ""), "bin", "java")
    if shutil.which("java") is None and not java.is_file():
        return (
            "Spark needs Java, which is not installed: apt-get install -y openjdk-17-jre-headless"
        )
    return ""


def json_lines(report: Any) -> list[Any]:
    """Return the values that --json prints, one per line.

    These are the rows of the report's field named by ``LINES``, or the whole report.
    """
    lines = getattr(report, "LINES", "")
    return list(getattr(report, lines)) if lines else [report]


def print_report(report: Any) -> None:
    """Print a report: each list of values as a table, then all single values in one table."""
    found = {each.name: getattr(report, each.name) for each in fields(report)}
    found = {name: value for name, value in found.items() if value not in (None, (), [], {})}
    tables = {name: value for name, value in found.items() if isinstance(value, tuple | list)}
    plain = [(name.replace("_", " "), _text(v)) for name, v in found.items() if name not in tables]
    for name, rows in tables.items():
        typer.echo(f"{name.replace('_', ' ')}:")
        if is_dataclass(rows[0]):
            render.print_rows(rows)
        else:
            for row in rows:
                typer.echo(f"  {row}")
    if plain:
        render.print_table(("", ""), plain)


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={_text(each)}" for key, each in value.items())
    if is_dataclass(value):
        return _text({each.name: getattr(value, each.name) for each in fields(value)})
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _session(name: str, master: str, memory: str, conf: dict[str, str]) -> SparkSession:
    from cometmq.spark.session import session_on

    return session_on(master, f"cometmq-{name}", {"spark.driver.memory": memory, **conf})


def _stop(spark: SparkSession) -> None:
    for query in spark.streams.active:
        query.stop()
    spark.stop()


@contextmanager
def _interruptible(spark: SparkSession) -> Iterator[None]:
    """Let an interrupt cancel Spark's work in the block, which then raises KeyboardInterrupt.

    Another thread cancels the work: this thread waits for Spark's response, and a request of
    Spark's own handler on the same connection would be answered only after it.
    """
    asked, done = Event(), Event()

    def cancel() -> None:
        while not done.wait(_CANCEL_S):
            for query in spark.streams.active:
                query.stop()
            spark.sparkContext.cancelAllJobs()

    def on_interrupt(*_: object) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()
        Thread(target=cancel, name="cancel Spark's jobs", daemon=True).start()

    before = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield
    except Exception:
        if not asked.is_set():
            raise
    finally:
        done.set()
        signal.signal(signal.SIGINT, before)
    if asked.is_set():
        raise KeyboardInterrupt


@contextmanager
def _bar(*, shown: bool) -> Iterator[Callable[[str, int, int], None]]:
    """Show a progress bar for each stage on standard error, if that is a terminal."""
    console = render.console(stderr=True)
    if not (shown and console.is_terminal):
        from cometmq.spark.jobs.progress import silent

        yield silent
        return
    text = TextColumn("{task.description}")
    columns = (text, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        stages = {}

        def tell(stage: str, done: int, total: int) -> None:
            if stage not in stages:
                stages[stage] = bar.add_task(stage, total=None)
            bar.update(stages[stage], completed=done, total=total or None)

        yield tell


@contextmanager
def _explained(job: str) -> Iterator[None]:
    """Turn the errors of a job into one line and an exit code."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"cometmq spark {job}: interrupted", err=True)
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:
        code = _code_of(error)
        if code is None:
            raise
        typer.echo(f"cometmq spark {job}: {_line_of(error)}", err=True)
        raise typer.Exit(code) from None


def _code_of(error: Exception) -> int | None:
    """Return the exit code for an error; None for a bug."""
    from pyspark.errors import PySparkException

    if (
        isinstance(error, SettingsError)
        or _extra_for(error)
        or (isinstance(error, CometError) and isinstance(error, ValueError))
    ):
        return REFUSED
    return FAILED if isinstance(error, CometError | PySparkException | OSError) else None


def _line_of(error: Exception) -> str:
    from cometmq.spark.jobs.failures import cause_of

    extra = _extra_for(error)
    if extra:
        return f"{error}: pip install 'cometmq[{extra}]'"
    return cause_of(error)


def _extra_for(error: Exception) -> str:
    """Return the extra of this package that a failed import needs; empty for another error."""
    name = error.name if isinstance(error, ModuleNotFoundError) else None
    return _EXTRAS.get((name or "").partition(".")[0], "")


def _add(job: Job) -> None:
    """Add a job's command.

    Its options are known only after its module is imported, so the arguments are passed on to an
    application that is made then.
    """
    words = {"allow_extra_args": True, "ignore_unknown_options": True}

    @app.command(job.name, help=job.summary, context_settings=words, add_help_option=False)
    def call(context: typer.Context) -> None:
        missing = what_is_missing()
        if missing:
            typer.echo(f"cometmq spark {job.name}: {missing}", err=True)
            raise typer.Exit(REFUSED)
        of_job(job)(args=list(context.args), prog_name=f"cometmq spark {job.name}")


def of_job(job: Job) -> typer.Typer:
    """Return the command line of one job."""

    def extra(
        options: Any,
        *,
        master: Master = "local[*]",
        memory: Memory = "1g",
        conf: Conf = None,
        as_json: AsJson = False,
    ) -> None:
        run(job, options, master=master, memory=memory, conf=conf or [], as_json=as_json)

    one = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    one.command(help=job.summary)(jobwords.command(job.load().Options, extra))
    return one


for _job in JOBS:
    _add(_job)
