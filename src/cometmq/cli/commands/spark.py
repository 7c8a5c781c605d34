"""``cometmq spark JOB``: runs a job of cometmq.spark.jobs on its own Spark session.

Spark is imported only when a job runs, so that other commands start fast.
"""

from __future__ import annotations

import os
import shutil
import signal
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, Field, fields, is_dataclass
from importlib.util import find_spec
from inspect import Parameter, Signature
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Annotated, Any, Final, Union, get_args, get_origin, get_type_hints

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cometmq.cli import render
from cometmq.cli.configuration import parse_settings
from cometmq.cli.connect import AsJson  # noqa: TC001 - typer reads it
from cometmq.core.errors import CometError, SettingsError
from cometmq.spark.jobs.job import JOBS, Job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cometmq.spark.jobs.job import JobOption

#: Options that have the same names in every command.
_NAMED: Final[Mapping[str, tuple[str, ...]]] = {"nameservers": ("--namesrv", "-n")}
_NAMESRV: Final = "NAMESRV_ADDR"


def command(options: type[Any], extra: Callable[..., None]) -> Callable[..., None]:
    """Return a function for typer with the fields of ``options`` and the keywords of ``extra``.

    It calls ``extra(options(...), **keywords)``.
    """
    own = {each.name: _parameter(each, hint) for each, hint in _hints(options)}
    also = Signature.from_callable(extra, eval_str=True).parameters
    others = [each for each in also.values() if each.kind is Parameter.KEYWORD_ONLY]

    def call(**values: Any) -> None:
        given = {name: _value(values.pop(name), options, name) for name in own}
        extra(options(**given), **values)

    call.__signature__ = Signature([*own.values(), *others])  # type: ignore[attr-defined]
    call.__annotations__ = {}
    return call


def _hints(options: type[Any]) -> list[tuple[Field[Any], Any]]:
    hints = get_type_hints(options, include_extras=True)
    return [(each, hints[each.name]) for each in fields(options) if each.init]


def _parameter(field: Field[Any], hint: Any) -> Parameter:
    word, kind = _split(hint)
    default = field.default if field.default_factory is MISSING else field.default_factory()
    needed = default is MISSING
    several = get_origin(kind) in (tuple, dict)
    kind = _plain(kind)
    help_text = word.help if word else None
    read = word.read if word else None
    if read is not None:
        read = _refusing(read)
    if word and word.positional:
        told = typer.Argument(help=help_text, parser=read, show_default=False)
    else:
        name = _name(field.name, word, several=several, is_on=default is True)
        names = _NAMED.get(field.name, (name,))
        shown = not (needed or several or default in (None, "", False))
        env = _NAMESRV if field.name == "nameservers" and needed else None
        told = typer.Option(*names, help=help_text, parser=read, show_default=shown, envvar=env)
    value = Parameter.empty if needed else (None if several else default)
    if value is None:
        kind = kind | None
    annotation: Any = Annotated[kind, told]
    return Parameter(field.name, Parameter.KEYWORD_ONLY, default=value, annotation=annotation)


def _split(hint: Any) -> tuple[JobOption | None, Any]:
    """Return the JobOption of an annotation, and the type without it and without None."""
    word: JobOption | None = None
    if get_origin(hint) is Annotated:
        hint, *notes = get_args(hint)
        word = next((note for note in notes if hasattr(note, "positional")), None)
    if get_origin(hint) in (Union, types.UnionType):
        hint = next(part for part in get_args(hint) if part is not type(None))
    return word, hint


def _plain(kind: Any) -> Any:
    """Return the type as typer knows it: several values are a list."""
    if get_origin(kind) is tuple:
        return list[get_args(kind)[0]]  # type: ignore[misc]
    return list[str] if get_origin(kind) is dict else kind


def _name(field: str, word: JobOption | None, *, several: bool, is_on: bool) -> str:
    name = (word.name if word else "") or (field.removesuffix("s") if several else field)
    name = name.replace("_", "-")
    return f"--{name}/--no-{name}" if is_on else f"--{name}"


def _refusing(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """Wrap a reader so that its ValueError becomes typer's error."""

    def parse(text: Any) -> Any:
        if not isinstance(text, str):
            return text
        try:
            return read(text)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    return parse


def _value(value: Any, options: type[Any], name: str) -> Any:
    """Convert a value read by typer to the type of the field."""
    kind = _split(get_type_hints(options, include_extras=True)[name])[1]
    if get_origin(kind) is tuple:
        return tuple(value or ())
    if get_origin(kind) is dict:
        return parse_settings(value or ())
    return value


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
        from cometmq.spark.jobs.job import silent

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
    from cometmq.spark.jobs.job import cause_of

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
    one.command(help=job.summary)(command(job.load().options, extra))
    return one


for _job in JOBS:
    _add(_job)
