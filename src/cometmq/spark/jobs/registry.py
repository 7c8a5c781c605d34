"""The list of jobs. A job is a module of this package with three names:

    Options     a frozen dataclass: the options of the job (see words.py)
    Report      a frozen dataclass: the result. A field ``ok`` that is false means that the job
                found an error in the data that it checks
    run         ``run(spark, options, progress=silent) -> Report``

Modules are imported on use: listing the names is cheap and needs no Spark.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cometmq.spark.jobs.progress import Progress


class JobModule(Protocol):
    """The contents of a job's module."""

    Options: type[Any]
    Report: type[Any]

    def run(self, spark: SparkSession, options: Any, progress: Progress = ...) -> Any:
        """Run the job. Raises CometError, and Spark's errors."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job's name, which is its module's, and its summary."""

    name: str
    summary: str

    def load(self) -> JobModule:
        """Import the job's module."""
        return cast("JobModule", import_module(f"{__package__}.{self.name}"))


JOBS: Final = (
    Job("archive", "Copy topics into Parquet or Delta before the brokers delete them."),
    Job("audit", "Check whole stores: compare records, queues and index with each other."),
    Job("dlq", "Show why messages became dead letters, and send chosen ones again."),
    Job("rebuild", "Rebuild a store's queues and index from its log, in a new directory."),
    Job("replay", "Send messages of an archive, a store or topics to a topic again."),
    Job("search", "Find messages in a cluster, in store directories and in an archive."),
    Job("stats", "Measure rates, delays, sizes, hot keys and lags; writes an HTML report."),
    Job("sync", "Keep tables in step with a topic of their changes."),
    Job("verify", "Compare two stores or clusters message by message."),
)
BY_NAME: Final = {job.name: job for job in JOBS}
