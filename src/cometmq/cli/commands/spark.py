"""``cometmq spark JOB``: runs a job of cometmq.spark.jobs on its own Spark session.

Spark is imported only when a job runs, so that other commands start fast.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, Field, dataclass, fields
from importlib.util import find_spec
from inspect import Parameter, Signature
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Annotated, Any, Final, Union, get_args, get_origin, get_type_hints

from cometmq.cli import render
from cometmq.cli.command import Command, Exit, Noun, Refused
from cometmq.cli.configuration import parse_settings
from cometmq.cli.parser import Argument, Option, Parser
from cometmq.cli.render import Result
from cometmq.core.errors import CometError, SettingsError
from cometmq.spark.jobs.job import BY_NAME, JOBS, Job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cometmq.spark.jobs.job import JobOption

#: Options that have the same names in every command.
_NAMED: Final[Mapping[str, tuple[str, ...]]] = {"nameservers": ("--namesrv", "-n")}
_NAMESRV: Final = "NAMESRV_ADDR"


def command(options: type[Any], extra: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function for a command with the fields of ``options`` and the keywords of ``extra``.

    It calls ``extra(options(...), **keywords)``.
    """
    own = {each.name: _parameter(each, hint) for each, hint in _hints(options)}
    also = Signature.from_callable(extra, eval_str=True).parameters
    others = [each for each in also.values() if each.kind is Parameter.KEYWORD_ONLY]

    def call(**values: Any) -> Any:
        given = {name: _value(values.pop(name), options, name) for name in own}
        return extra(options(**given), **values)

    call.__signature__ = Signature(  # type: ignore[attr-defined]
        [*own.values(), *others], return_annotation=Result[dict[str, Any]]
    )
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
    help_text = word.help if word else ""
    read = word.read if word else None
    told: Argument | Option
    if word and word.positional:
        told = Argument(help=help_text, read=read)
    else:
        name = _name(field.name, word, several=several, is_on=default is True)
        names = _NAMED.get(field.name, (name,))
        env = _NAMESRV if field.name == "nameservers" and needed else ""
        told = Option(*names, help=help_text, read=read, env=env)
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
    """Return the type as the parser knows it: several values are a list."""
    if get_origin(kind) is tuple:
        return list[get_args(kind)[0]]  # type: ignore[misc]
    return list[str] if get_origin(kind) is dict else kind


def _name(field: str, word: JobOption | None, *, several: bool, is_on: bool) -> str:
    name = (word.name if word else "") or (field.removesuffix("s") if several else field)
    name = name.replace("_", "-")
    return f"--{name}/--no-{name}" if is_on else f"--{name}"


def _value(value: Any, options: type[Any], name: str) -> Any:
    """Convert a parsed value to the type of the field."""
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
_EXTRAS: Final = {"deltalake": "delta", "psycopg": "postgres", "pymysql": "mysql"}

Master = Annotated[
    str, Option(metavar="URL", help="Spark's master: local[N], spark://..., yarn, k8s://...")
]
Memory = Annotated[str, Option(help="Memory of the driver.")]
Conf = Annotated[list[str] | None, Option(metavar="KEY=VALUE", help="A setting of Spark.")]

app = Noun("spark", "Jobs on Spark: archive, search, check, replay and measure topics and stores.")


def run(
    job: Job,
    options: Any,
    *,
    master: str,
    memory: str,
    conf: list[str],
) -> Result[Any]:
    """Run a job and return its report; the exit code is 1 if the report is not ok."""
    with _explained(job.name):
        spark = _session(job.name, master, memory, parse_settings(conf))
        try:
            with _interruptible(spark), _bar() as progress:
                report = job.load().run(spark, options, progress)
        finally:
            _stop(spark)
    ok = getattr(report, "ok", True)
    return Result(items_of(report), shown=report, exit_code=0 if ok else FAILED)


def what_is_missing() -> str:
    """Return what this machine lacks for Spark and how to install it; "" if nothing is missing."""
    absent = [name for name in ("pyspark", "pyarrow", "numpy", "jinja2") if find_spec(name) is None]
    if absent:
        return f"{', '.join(absent)} not installed: pip install 'cometmq[spark]'"
    java = Path(os.environ.get("JAVA_HOME", ""), "bin", "java")
    if shutil.which("java") is None and not java.is_file():
        return (
            "Spark needs Java, which is not installed: apt-get install -y openjdk-17-jre-headless"
        )
    return ""


def items_of(report: Any) -> list[Any]:
    """Return the items of the JSON output: the rows of a report, or the report itself.

    The rows are in the field that the report's ``LINES`` names.
    """
    lines = getattr(report, "LINES", "")
    return list(getattr(report, lines)) if lines else [report]


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

    Another thread cancels the work, because this thread waits for Spark's response. Spark's own
    handler would send its request on the same connection, where it is answered only after that.
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
def _bar() -> Iterator[Callable[[str, int, int], None]]:
    """Show a progress bar for each stage on standard error, if that is a terminal."""
    console = render.progress_console()
    if console is None:
        from cometmq.spark.jobs.job import silent

        yield silent
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

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
        print(f"cometmq spark {job}: interrupted", file=sys.stderr)
        raise Exit(INTERRUPTED) from None
    except Exception as error:
        code = _code_of(error)
        if code is None:
            raise
        print(f"cometmq spark {job}: {_line_of(error)}", file=sys.stderr)
        raise Exit(code) from None


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


@dataclass(frozen=True, slots=True)
class JobCommand(Command):
    """Command of a job. Its options are known only after the module of the job is imported."""

    @property
    def item_type(self) -> Any:
        """Type of the rows: each job has its own."""
        return dict[str, Any]

    def parser(self, prog: str) -> Parser:
        """Return the parser of the job's options. Raises Refused without Spark or Java."""
        return of_job(BY_NAME[self.words]).parser(prog)

    def run(self, prog: str, words: Sequence[str]) -> int:
        """Run the job. Raises Refused without Spark or Java."""
        return of_job(BY_NAME[self.words]).run(prog, words)


def of_job(job: Job) -> Command:
    """Return the command of one job. Raises Refused without Spark or Java."""
    missing = what_is_missing()
    if missing:
        raise Refused(missing)

    def extra(
        options: Any, *, master: Master = "local[*]", memory: Memory = "1g", conf: Conf = None
    ) -> Result[Any]:
        return run(job, options, master=master, memory=memory, conf=conf or [])

    function = command(job.load().options, extra)
    function.__doc__ = job.summary
    return Command(job.name, function, noun="spark")


def _stub(summary: str) -> Callable[[], None]:
    """Return a function that has only the summary of a job."""

    def stub() -> None: ...

    stub.__doc__ = summary
    return stub


for _job in JOBS:
    app.commands[_job.name] = JobCommand(_job.name, _stub(_job.summary), noun="spark")
