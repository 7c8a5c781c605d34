"""Spark's executors as workers for pieces of anything: a function and a list, a task a piece."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from cometmq.spark.jobs.progress import Progress, tasks_told

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Work = Callable[[Any, Any, Callable[[int], None]], Any]
"""A function of what all pieces share, of its piece, and of whom to tell how many bytes it read."""


class SparkPool:
    """Works on pieces; ``shared`` is what each needs. Stages are called as their functions are."""

    def __init__(self, spark: SparkSession, shared: object, progress: Progress) -> None:
        self._spark = spark
        self._progress = progress
        self._shared = spark.sparkContext.broadcast(shared)

    def __enter__(self) -> SparkPool:
        return self

    def __exit__(self, *_: object) -> None:
        self._shared.destroy()

    def run(self, work: Work, pieces: Sequence[Any]) -> Iterator[Any]:
        """The results of all pieces. Raises what Spark raises."""
        if not pieces:
            return
        shared = self._shared

        def one(piece: Any) -> Any:
            return work(shared.value, piece, _nobody)

        stage = work.__name__.strip("_").replace("_", " ")
        with tasks_told(self._spark, stage, self._progress):
            tasks = self._spark.sparkContext.parallelize(list(pieces), len(pieces))
            found = tasks.map(one).collect()
        yield from found


def _nobody(size_bytes: int) -> None:
    """Is told the bytes that were read: here a task tells when it is done."""
