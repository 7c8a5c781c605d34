"""Progress of a job: the callback that jobs report to, and the sources of their numbers.

Spark reports the finished tasks of a batch, and the offsets that a stream has reached.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Progress = Callable[[str, int, int], None]
"""Called with a stage's name, the amount done, and the total (0 while it is unknown)."""

POLL_S: Final = 0.3
_STREAM_POLL_S: Final = 1

_numbers: Final = itertools.count(1)


def silent(stage: str, done: int, total: int) -> None:
    """Ignore the progress."""


@contextmanager
def tasks_told(spark: SparkSession, stage: str, progress: Progress) -> Iterator[None]:
    """Report the finished tasks of the Spark jobs that this thread starts in the block."""
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

    Raises StreamingQueryException if it failed.
    """
    first: Mapping[str, int] | None = None
    while not query.awaitTermination(_STREAM_POLL_S):
        for told in query.recentProgress[-1:]:
            source = told["sources"][0]
            if first is None:
                first = offsets_in(source["startOffset"])
            progress(stage, *advance(first, source))


def advance(first: Mapping[str, int], source: Mapping[str, Any]) -> tuple[int, int]:
    """Return the number of messages from the offsets ``first`` to the query's position, and to the
    end of the queues."""
    here, end = offsets_in(source["endOffset"]), offsets_in(source.get("latestOffset"))
    done = sum(at - first.get(queue, 0) for queue, at in here.items())
    total = sum(max(at, here.get(queue, 0)) - first.get(queue, 0) for queue, at in end.items())
    return done, max(done, total)


def offsets_in(offset: Any) -> dict[str, int]:
    """Return the offset of every queue in the source's offset, which Spark passes as text or as an
    object. Return none if it passes neither."""
    found = msgspec.json.decode(offset) if isinstance(offset, str) else offset
    queues = found.get("q") if isinstance(found, Mapping) else None
    return {str(queue): int(at) for queue, at in (queues or {}).items()}
