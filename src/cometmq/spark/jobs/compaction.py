"""Joins the small files of an archive into larger ones, while others read and write it.

Rows are not changed. They are read, ordered by queue and offset within a file, written, and counted
again before the new files replace the old ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote
from uuid import uuid4

from pyspark.sql import functions as f

from cometmq.core.errors import CometError
from cometmq.spark.jobs.archived import ORDER, SEARCHABLE, kind_of
from cometmq.spark.jobs.progress import Progress, silent, tasks_told
from cometmq.spark.options import BadOption
from cometmq.spark.tables import replaced
from cometmq.spark.tables.attempts import DATA, write_files
from cometmq.spark.tables.batchlog import BatchLog, DataFile
from cometmq.spark.tables.folders import Folder, LocalFolder, folder_at
from cometmq.spark.tables.parquet import schema_at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SMALL: Final = 0.75
"""A file below this fraction of the requested size is joined with others."""

_RUN_OFFSETS: Final = 10_000
"""Number of consecutive offsets of a queue that stay in one file if a partition is split into
several."""

Partition = tuple[str, ...]


class CountDiffers(CometError):
    """Raised if joining wrote another number of rows than it read; nothing was changed."""

    def __init__(self, path: str, read: int, written: int) -> None:
        self.path = path
        self.read = read
        self.written = written
        super().__init__(f"{path}: {read} rows were read and {written} written; nothing is changed")


def compact(
    spark: SparkSession, path: str, file_bytes: int, progress: Progress = silent
) -> tuple[int, int]:
    """Join small files. Return the number of files before and after.

    Raises BadOption if there is no archive, CountDiffers.
    """
    if kind_of(spark, path) == "delta":
        return _delta(spark, path, file_bytes)
    folder = folder_at(path, spark)
    log = BatchLog(folder)
    before = replaced.current(folder)
    files = log.files()
    if not files and not log.queries():
        raise BadOption("target", f"there is no archive at {path}")
    _remove_replaced(folder, before, files)
    small = joined_together(files, file_bytes)
    if not small:
        return len(files), len(files)
    chosen = [file for group in small.values() for file in group]
    # Named like an attempt at a batch, so that the table's own cleanup recognizes it.
    attempt = f"batch=00000000-joined-{uuid4().hex[:8]}"
    with tasks_told(spark, "compact", progress):
        stands, read, written = _join(spark, folder, attempt, small, file_bytes)
    if read != written:
        folder.remove(f"{DATA}/{attempt}")
        raise CountDiffers(path, read, written)
    if not replaced.exchange(folder, before, [file.name for file in chosen], stands):
        folder.remove(f"{DATA}/{attempt}")
        raise BadOption("compact", f"another run has joined files of {path} meanwhile")
    return len(files), len(files) - len(chosen) + len(stands)


def joined_together(files: Sequence[DataFile], file_bytes: int) -> dict[Partition, list[DataFile]]:
    """Return the small files of each partition that has several."""
    found: dict[Partition, list[DataFile]] = {}
    for file in files:
        if file.size_bytes < file_bytes * SMALL:
            found.setdefault(partition_of(file.name), []).append(file)
    return {partition: group for partition, group in found.items() if len(group) > 1}


def partition_of(name: str) -> Partition:
    """Return the folders between an attempt's folder and the file, each as ``column=value``."""
    return tuple(unquote(part) for part in name.split("/")[2:-1])


def _join(
    spark: SparkSession,
    folder: Folder,
    attempt: str,
    small: dict[Partition, list[DataFile]],
    file_bytes: int,
) -> tuple[list[replaced.Stand], int, int]:
    """Rewrite the rows of small files. Return the new files, and the numbers of rows read and
    written."""
    names = [file.name for group in small.values() for file in group]
    rows = _read(spark, folder, names)
    columns = [part.partition("=")[0] for part in next(iter(small))]
    plan, tasks = [], 0
    for partition, group in small.items():
        count = math.ceil(sum(file.size_bytes for file in group) / file_bytes)
        plan.append((*(part.partition("=")[2] for part in partition), tasks, count))
        tasks += count
    ddl = ", ".join([f"`{column}` string" for column in columns])
    planned = spark.createDataFrame(plan, f"{ddl}, first_task int, task_count int")
    run = f.floor(f.col("queue_offset") / _RUN_OFFSETS)
    task = f.col("first_task") + f.pmod(run, f.col("task_count"))
    placed = rows.join(f.broadcast(planned), columns).repartitionById(tasks, task.cast("int"))
    within = [*columns, *(name for name in ORDER if name not in columns)]
    shaped = placed.select(*rows.columns).sortWithinPartitions(*within)
    found = write_files(shaped, folder, attempt, columns, SEARCHABLE)
    written = _read(spark, folder, [file.name for file in found]).count()
    return [replaced.Stand(file.name, file.size_bytes) for file in found], rows.count(), written


def _read(spark: SparkSession, folder: Folder, names: Sequence[str]) -> DataFrame:
    schema = schema_at(folder)
    reader = spark.read.schema(schema).option("basePath", folder.url(DATA))
    # Drop the column of the batch, which comes from the folder name.
    return reader.parquet(*(folder.url(name) for name in names)).select(*schema.names)


def _remove_replaced(folder: Folder, before: replaced.Replaced, files: Sequence[DataFile]) -> None:
    """Remove the files that the previous run replaced: readers of that time have finished."""
    counting = {file.name for file in files}
    for name in before.gone:
        if name not in counting:
            folder.remove(name)


def _delta(spark: SparkSession, path: str, file_bytes: int) -> tuple[int, int]:
    from deltalake import DeltaTable

    folder = folder_at(path, spark)
    url = folder.url("").rstrip("/")
    table = DeltaTable(url.removeprefix("file://") if isinstance(folder, LocalFolder) else url)
    before = len(table.file_uris())
    table.optimize.compact(target_size=file_bytes)
    return before, len(table.file_uris())
