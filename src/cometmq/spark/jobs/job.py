"""The form of a job (options, progress, result), the list of all jobs, and a pool that runs pieces
of work as Spark tasks.

A job NAME is a module of this package with three names:

    NameOptions     a frozen dataclass: the options of the job. The annotation of a field holds its
                    help: ``since_ms: Annotated[int | None, JobOption("...", name="since",
                    read=moment_ms)] = None``. A field without a JobOption is an option too, under
                    its own name
    NameReport      a frozen dataclass: the result. A field ``ok`` that is false means that the job
                    found an error in the data that it checks
    run             ``run(spark, options, progress=silent) -> NameReport``

A job's module is imported when the job is used, so that listing the jobs is cheap and needs no
Spark. Progress is what Spark reports: finished tasks of a batch, or offsets that a stream reached.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True, slots=True)
class JobProgram:
    """Contents of a job's module: the classes of its options and its result, and the function that
    runs it.

    ``run(spark, options, progress=silent)`` raises CometError, and Spark's errors.
    """

    options: type[Any]
    report: type[Any]
    run: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Job:
    """The name of a job, which is that of its module, and its summary."""

    name: str
    summary: str

    def load(self) -> JobProgram:
        """Import the job's module."""
        module = import_module(f"{__package__}.{self.name}")
        name = self.name.capitalize()
        return JobProgram(
            getattr(module, f"{name}Options"), getattr(module, f"{name}Report"), module.run
        )


@dataclass(frozen=True, slots=True)
class JobOption:
    """One option of a job. ``name`` is set if it differs from the field's. ``read`` parses the text
    and raises ValueError."""

    help: str
    positional: bool = False
    name: str = ""
    read: Callable[[str], Any] | None = None


JOBS: Final = (
    Job("archive", "Copy topics into Parquet or Delta before the brokers delete them."),
    Job("audit", "Check whole stores: compare records, queues and index with each other."),
    Job("compact", "Keep the content of the newest message of each key in an archive."),
    Job("dlq", "Show why messages became dead letters, and send selected ones again."),
    Job("rebuild", "Rebuild a store's queues and index from its log, in a new directory."),
    Job("redact", "Erase the content of all messages of some keys from an archive."),
    Job("replay", "Send messages of an archive, a store or topics to a topic again."),
    Job("search", "Find messages in a cluster, in store directories and in an archive."),
    Job("stats", "Measure rates, delays, sizes, hot keys and lags; writes an HTML report."),
    Job("sync", "Keep tables up to date from a topic of their changes."),
    Job("verify", "Compare two stores or clusters message by message."),
)
BY_NAME: Final = {job.name: job for job in JOBS}

Progress = Callable[[str, int, int], None]
"""Function called with a stage's name, the amount done, and the total (0 while it is unknown)."""

Work = Callable[[Any, Any, Callable[[int], None]], Any]
"""Function that processes one piece. Its arguments are the shared data, the piece, and a callback
for the number of bytes read."""

_UNITS: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}
_SIZE: Final = re.compile(r"(\d+)\s*([kmg]i?)?b?", re.IGNORECASE)
_SPAN: Final = re.compile(r"(\d+)\s*(ms|s|m|h|d)")
_SPANS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
POLL_S: Final = 0.3
_STREAM_POLL_S: Final = 1
_numbers: Final = itertools.count(1)
_RAISED: Final = re.compile(r"^[^\S\n]*([A-Za-z_][\w.]*): (.+)$", re.MULTILINE)


def size_bytes(text: str) -> int:
    """Parse a size like 128MB, 64Mi or a number of bytes. Raises ValueError."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a size such as 128MB, 64MiB or 1000000")
    return int(found[1]) * _UNITS[(found[2] or "").lower()]


def span_ms(text: str) -> int:
    """Parse a span of time like 500ms, 30s, 15m, 2h or 7d into milliseconds. Raises ValueError."""
    found = _SPAN.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a duration such as 500ms, 30s, 15m, 2h or 7d")
    return int(found[1]) * _SPANS_MS[found[2]]


def silent(stage: str, done: int, total: int) -> None:
    """Ignore the progress."""


@contextmanager
def progress_reported(spark: SparkSession, stage: str, progress: Progress) -> Iterator[None]:
    """Report the finished tasks of the Spark jobs that this thread starts in the block, every
    POLL_S seconds."""
    if progress is silent:
        yield
        return
    context = spark.sparkContext
    group = f"cometmq-{stage}-{next(_numbers)}"
    done = Event()

    def watch() -> None:
        while not done.wait(POLL_S):
            progress(stage, *_tasks(context.statusTracker(), group))

    context.setJobGroup(group, stage)
    watcher = Thread(target=watch, name=f"progress of {stage}", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
        # None removes the property.
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
    finished = max(_tasks(context.statusTracker(), group)[1], 1)
    progress(stage, finished, finished)


def _tasks(tracker: Any, group: str) -> tuple[int, int]:
    """Return the finished and the total number of tasks in a group's jobs."""
    done = total = 0
    for job in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job)
        for stage_id in info.stageIds if info else ():
            stage = tracker.getStageInfo(stage_id)
            if stage:
                done += stage.numCompletedTasks
                total += stage.numTasks
    return done, total


def drained(query: StreamingQuery, stage: str, progress: Progress) -> None:
    """Wait for the end of a query with the trigger availableNow, and report its progress.

    Raises StreamingQueryException if the query fails.
    """
    first: Mapping[str, int] | None = None
    while not query.awaitTermination(_STREAM_POLL_S):
        for latest in query.recentProgress[-1:]:
            source = latest["sources"][0]
            if first is None:
                first = offsets_in(source["startOffset"])
            progress(stage, *advance(first, source))


def advance(first: Mapping[str, int], source: Mapping[str, Any]) -> tuple[int, int]:
    """Return the number of messages from the offsets ``first`` to the query's position, and from
    ``first`` to the end of the queues. ``source`` is the source's part of Spark's progress."""
    here, end = offsets_in(source["endOffset"]), offsets_in(source.get("latestOffset"))
    done = sum(at - first.get(queue, 0) for queue, at in here.items())
    total = sum(max(at, here.get(queue, 0)) - first.get(queue, 0) for queue, at in end.items())
    return done, max(done, total)


def offsets_in(offset: Any) -> dict[str, int]:
    """Return the offset of every queue in an offset of the source, which Spark passes as JSON text
    or as an object; empty for anything else."""
    found = msgspec.json.decode(offset) if isinstance(offset, str) else offset
    queues = found.get("q") if isinstance(found, Mapping) else None
    return {str(queue): int(at) for queue, at in (queues or {}).items()}


def cause_of(error: BaseException) -> str:
    """Return the innermost cause in the text of Spark's error: the last error of CometMQ if there
    is one, else the last Python error."""
    text = str(error).strip()
    raised: list[tuple[str, str]] = _RAISED.findall(text)
    ours = [sentence for name, sentence in raised if name.startswith("cometmq.")]
    if ours:
        return ours[-1]
    if "Traceback (most recent call last)" in text and raised:
        return ": ".join(raised[-1])
    return " ".join(text.split("\n\n")[0].split("JVM stacktrace:")[0].split())


class SparkPool:
    """Processes pieces of work as Spark tasks. ``shared`` is the data that each piece needs. In the
    progress, a stage has the name of its function."""

    def __init__(self, spark: SparkSession, shared: object, progress: Progress) -> None:
        self._spark = spark
        self._progress = progress
        self._shared = spark.sparkContext.broadcast(shared)

    def __enter__(self) -> SparkPool:
        return self

    def __exit__(self, *_: object) -> None:
        self._shared.destroy()

    def run(self, work: Work, pieces: Sequence[Any]) -> Iterator[Any]:
        """Process each piece in one task, and yield the results in order. Raises Spark's
        errors."""
        if not pieces:
            return
        shared = self._shared

        def one(piece: Any) -> Any:
            return work(shared.value, piece, _nobody)

        stage = work.__name__.strip("_").replace("_", " ")
        with progress_reported(self._spark, stage, self._progress):
            tasks = self._spark.sparkContext.parallelize(list(pieces), len(pieces))
            found = tasks.map(one).collect()
        yield from found


def _nobody(size_bytes: int) -> None:
    """Ignore the number of bytes read: the progress of a pool is counted in tasks."""
