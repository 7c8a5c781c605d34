"""A pool of workers on Spark's executors: applies a function to a list, one task per piece."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from cometmq.spark.jobs.job import Progress, progress_reported

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Work = Callable[[Any, Any, Callable[[int], None]], Any]
"""A function of the shared data, of its piece, and of a callback that takes the number of bytes
read."""


class SparkPool:
    """Processes pieces. ``shared`` is the data that each needs. A stage is named after its
    function."""

    def __init__(self, spark: SparkSession, shared: object, progress: Progress) -> None:
        self._spark = spark
        self._progress = progress
        self._shared = spark.sparkContext.broadcast(shared)

    def __enter__(self) -> SparkPool:
        return self

    def __exit__(self, *_: object) -> None:
        self._shared.destroy()

    def run(self, work: Work, pieces: Sequence[Any]) -> Iterator[Any]:
        """Yield the results of all pieces. Raises Spark's errors."""
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
    """Ignore the number of bytes read: here progress is counted in tasks."""
