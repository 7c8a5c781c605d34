"""Copies topics into an archive, each message once, so that they outlive the brokers' retention.

An archive is a table of messages, partitioned by topic and by the day of the store time (UTC). It
has the source's columns (see schema.py), then ``day`` as ``2026-01-31``, and ``hour`` from 00 to 23
if it was created with hours. It is a Parquet, Delta or Iceberg table (inputs.kind_of).

A live cluster is read as a stream. The checkpoint records the offsets read, and the table records
its batches, so a run after a killed one continues where that one stopped. Store directories are
read in one batch; of each queue, only messages after the last archived offset are added. Files get
about the requested size and are ordered by queue and offset. The option ``compact`` joins the small
files of many small runs.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, Literal, Protocol
from urllib.parse import unquote
from uuid import uuid4

from pyspark.sql import Observation
from pyspark.sql import functions as f

from cometmq.core.errors import CometError
from cometmq.core.plural import plural
from cometmq.spark.jobs.icebergarchive import IcebergArchive, is_iceberg
from cometmq.spark.jobs.inputs import InputOptions, chosen, kind_of, messages, read_archive
from cometmq.spark.jobs.job import (
    JobOption,
    Progress,
    drained,
    progress_reported,
    silent,
    size_bytes,
    span_ms,
)
from cometmq.spark.options import BadOption, NoArchive
from cometmq.spark.schema import DDL, NAMES
from cometmq.spark.tables.datafiles import DATA, Folder, LocalFolder, folder_at, write_files
from cometmq.spark.tables.parquet import (
    BatchLog,
    DataFile,
    ParquetTable,
    Replaced,
    replace_files,
    replaced_files,
    schema_at,
)
from cometmq.spark.tables.sink import Mark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

QUEUE: Final = ("topic", "broker_name", "queue_id")
ORDER: Final = (*QUEUE, "queue_offset")

#: Parquet options for Bloom filters of message ids. A search by id then reads only the row groups
#: that may contain it. A filter that is not adaptive takes a megabyte even for few rows.
SEARCHABLE: Final = {
    "parquet.bloom.filter.enabled#msg_id": "true",
    "parquet.bloom.filter.adaptive.enabled": "true",
}

SMALL: Final = 0.75
"""A file below this fraction of the requested size is joined with others."""

_RUN_OFFSETS: Final = 10_000
"""Number of consecutive offsets of a queue that stay in one file if compaction splits a partition
into several files."""

_HOUR_MS: Final = 3_600_000
_QUERY_ID: Final = "sql.streaming.queryId"
_ADVISED: Final = "spark.sql.adaptive.advisoryPartitionSizeInBytes"
Partition = tuple[str, ...]


class CountDiffers(CometError):
    """Raised if a rewrite of files wrote another number of rows than it read. Nothing was
    changed."""

    def __init__(self, path: str, read: int, written: int) -> None:
        self.path = path
        self.read = read
        self.written = written
        rows = plural(read, "row was", "rows were")
        super().__init__(f"{path}: {rows} read and {written} written; nothing is changed")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveOptions(InputOptions):
    """Options of the job archive: the messages, the target, and the form of the archive."""

    target: Annotated[str, JobOption("Path or URL of the archive.", positional=True)]
    format: Annotated[Literal["parquet", "delta"], JobOption("Format of the tables.")] = "parquet"
    hours: Annotated[bool, JobOption("Also partition by hour of the day.")] = False
    file_bytes: Annotated[
        int, JobOption("Approximate size of a file.", name="file-size", read=size_bytes)
    ] = 128_000_000
    batch_messages: Annotated[int, JobOption("Messages per micro-batch of the stream.")] = 1_000_000
    checkpoint: Annotated[
        str, JobOption("Checkpoint directory of the stream; the default is in the archive.")
    ] = ""
    every_ms: Annotated[
        int,
        JobOption(
            "Follow the topics, with a micro-batch at this interval.", name="every", read=span_ms
        ),
    ] = 0
    compact: Annotated[bool, JobOption("Compact the small files of the archive instead.")] = False


@dataclass(frozen=True, slots=True)
class ArchiveReport:
    """Result of a run. ``messages`` were added in ``batches``; ``known`` batches were in the
    archive already. The numbers of files are those before and after a compaction."""

    target: str
    messages: int = 0
    batches: int = 0
    known: int = 0
    files_before: int = 0
    files_after: int = 0


class ArchiveTable(Protocol):
    """The methods of a table that an archive needs."""

    def apply(self, rows: DataFrame, mark: Mark) -> bool:
        """Append a batch unless the table has it already. Return whether it was appended."""

    def last(self, spark: SparkSession, query: str) -> int:
        """Return the highest batch of a query, NO_BATCH before its first."""


def run(spark: SparkSession, options: ArchiveOptions, progress: Progress = silent) -> ArchiveReport:
    """Archive the current messages; with ``every_ms``, follow the topics until interrupted; with
    ``compact``, compact the archive instead.

    Raises BadOption if the options contradict each other.
    """
    if options.compact:
        before, after = compact(spark, options.target, options.file_bytes, progress)
        return ArchiveReport(options.target, files_before=before, files_after=after)
    table = table_at(options.target, options.format, hours=options.hours)
    archiver = Archiver(table, options)
    if options.archive:
        raise BadOption("archive", "an archive is made from a cluster or from store directories")
    if "live" not in options.named():
        _add_stores(spark, options, archiver, progress)
    elif options.stores:
        raise BadOption("store", "give either a cluster or store directories")
    elif options.every_ms:
        start(spark, options, archiver).awaitTermination()
    else:
        query = _writer(spark, options, archiver).trigger(availableNow=True).start()
        drained(query, "archive", progress)
    return archiver.report()


def start(spark: SparkSession, options: ArchiveOptions, archiver: Archiver) -> StreamingQuery:
    """Follow the topics until the query is stopped."""
    trigger = f"{options.every_ms} milliseconds"
    return _writer(spark, options, archiver).trigger(processingTime=trigger).start()


def _writer(spark: SparkSession, options: ArchiveOptions, archiver: Archiver) -> DataStreamWriter:
    if options.until_ms is not None:
        raise BadOption("until", "a stream has no end: use --since, or archive a store directory")
    reader = spark.readStream.format("rocketmq").schema(DDL)
    reader = reader.option("nameservers", options.nameservers)
    reader = reader.option("maxOffsetsPerTrigger", options.batch_messages)
    reader = reader.options(**chosen(options))
    if options.since_ms is None:
        reader = reader.option("startingOffsets", "earliest")
    else:
        reader = reader.option("startingTimestamp", str(options.since_ms))
    rows = reader.options(**options.source_options()).load()
    if is_iceberg(options.target) and not options.checkpoint:
        raise BadOption("checkpoint", "an Iceberg table has no folder for it: name one")
    checkpoint = options.checkpoint or f"{options.target.rstrip('/')}/_checkpoint"
    return rows.writeStream.foreachBatch(archiver).option("checkpointLocation", checkpoint)


def _add_stores(
    spark: SparkSession, options: ArchiveOptions, archiver: Archiver, progress: Progress
) -> None:
    """Add the messages of store directories that the archive lacks, as one batch."""
    table = table_at(options.target, options.format, hours=options.hours)
    rows = messages(spark, options, NAMES).drop("place")
    query = "store-" + hashlib.sha256("\n".join(sorted(options.stores)).encode()).hexdigest()[:16]
    # Take the mark before the archive is read: if an earlier run commits its batch after that, both
    # batches have the same mark, and only the first is accepted.
    mark = Mark(query, table.last(spark, query) + 1)
    try:
        known = ends(read_archive(spark, options.target), options.topics)
    except NoArchive:
        pass  # the first batch creates it
    else:
        same = [f.col(f"m.{name}").eqNullSafe(f.col(f"k.{name}")) for name in QUEUE]
        joined = rows.alias("m").join(f.broadcast(known.alias("k")), same, "left")
        new = f.col("archived_to").isNull() | (f.col("m.queue_offset") > f.col("archived_to"))
        rows = joined.where(new).select("m.*")
    with progress_reported(spark, "archive", progress):
        if not rows.isEmpty():
            archiver.add(rows, mark)


class Archiver:
    """Appends micro-batches to an archive and counts them: ``foreachBatch(archiver)``."""

    def __init__(self, table: ArchiveTable, options: ArchiveOptions) -> None:
        self._table = table
        self._options = options
        self.messages = self.batches = self.known = 0

    def __call__(self, rows: DataFrame, batch: int) -> None:
        query = rows.sparkSession.sparkContext.getLocalProperty(_QUERY_ID) or ""
        self.add(rows, Mark(query, batch))

    def add(self, rows: DataFrame, mark: Mark) -> None:
        """Append a batch unless the archive has it, and count it."""
        seen = Observation()
        observed = rows.observe(seen, f.count("*").alias("messages"))
        if self._table.apply(shaped(observed, self._options), mark):
            self.batches += 1
            self.messages += int(seen.get["messages"])
        else:
            self.known += 1

    def report(self) -> ArchiveReport:
        """Return the counts so far."""
        return ArchiveReport(self._options.target, self.messages, self.batches, self.known)


def shaped(rows: DataFrame, options: ArchiveOptions) -> DataFrame:
    """Return the rows with the archive's columns, in tasks of about a file's size, ordered by queue
    and offset."""
    folders = partitions(hours=options.hours)
    return balanced(dated(rows, hours=options.hours), folders, options.file_bytes)


def balanced(rows: DataFrame, folders: Sequence[str], file_bytes: int) -> DataFrame:
    """Return rows in tasks of about ``file_bytes``, ordered by queue and offset. ``folders`` are
    the columns that become folders."""
    spark = rows.sparkSession
    # Only adaptive plans join and split tasks by size, and Spark turns them off in a stream.
    spark.conf.set("spark.sql.adaptive.enabled", "true")
    spark.conf.set(_ADVISED, str(file_bytes))
    within = [*folders, *(name for name in ORDER if name not in folders)]
    return rows.hint("rebalance", *folders).sortWithinPartitions(*within)


def table_at(path: str, kind: str, *, hours: bool) -> ArchiveTable:
    """Return the table to write. ``kind`` is parquet or delta; it is ignored if the path names an
    Iceberg table."""
    if is_iceberg(path):
        return IcebergArchive(path, partitions(hours=hours), SEARCHABLE)
    if kind == "delta":
        from cometmq.spark.tables.delta import DeltaLakeTable

        return DeltaLakeTable(path, partition_by=partitions(hours=hours), options=SEARCHABLE)
    return ParquetTable(path, partition_by=partitions(hours=hours), options=SEARCHABLE)


def partitions(*, hours: bool) -> tuple[str, ...]:
    """Return the columns that become folders."""
    return ("topic", "day", "hour") if hours else ("topic", "day")


def dated(messages: DataFrame, *, hours: bool) -> DataFrame:
    """Return messages with the columns of an archive. Days are those of UTC, whatever the session's
    time zone is."""
    stored_ms = f.unix_millis("store_timestamp")
    day = f.date_from_unix_date(f.floor(stored_ms / (24 * _HOUR_MS)).cast("int")).cast("string")
    found = messages.select(*NAMES).withColumn("day", day)
    if not hours:
        return found
    hour = f.pmod(f.floor(stored_ms / _HOUR_MS), f.lit(24)).cast("string")
    return found.withColumn("hour", f.lpad(hour, 2, "0"))


def ends(found: DataFrame, topics: Sequence[str]) -> DataFrame:
    """Return the highest offset of each queue in an archive, as ``archived_to``."""
    chosen = found.where(f.col("topic").isin(*topics)) if topics else found
    return chosen.groupBy(*QUEUE).agg(f.max("queue_offset").alias("archived_to"))


def compact(
    spark: SparkSession, path: str, file_bytes: int, progress: Progress = silent
) -> tuple[int, int]:
    """Join small files. Return the number of files before and after.

    Raises BadOption if there is no archive, CountDiffers.
    """
    kind = kind_of(spark, path)
    if kind == "iceberg":
        raise BadOption("compact", f"{path} is compacted by the tools of its catalogue")
    if kind == "delta":
        return _compact_delta(spark, path, file_bytes)
    folder = folder_at(path, spark)
    log = BatchLog(folder)
    before = replaced_files(folder)
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
    with progress_reported(spark, "compact", progress):
        replacements, read, written = _join(spark, folder, attempt, small, file_bytes)
    if read != written:
        folder.remove(f"{DATA}/{attempt}")
        raise CountDiffers(path, read, written)
    if not replace_files(folder, before, [file.name for file in chosen], replacements):
        folder.remove(f"{DATA}/{attempt}")
        raise BadOption("compact", f"another run has compacted files of {path} in the meantime")
    return len(files), len(files) - len(chosen) + len(replacements)


def joined_together(files: Sequence[DataFile], file_bytes: int) -> dict[Partition, list[DataFile]]:
    """Return the files to join by partition: files smaller than SMALL times ``file_bytes``, where a
    partition has several."""
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
) -> tuple[list[DataFile], int, int]:
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
    return [DataFile(file.name, file.size_bytes) for file in found], rows.count(), written


def _read(spark: SparkSession, folder: Folder, names: Sequence[str]) -> DataFrame:
    schema = schema_at(folder)
    reader = spark.read.schema(schema).option("basePath", folder.url(DATA))
    # Drop the column ``batch``, which Spark derives from the folder names.
    return reader.parquet(*(folder.url(name) for name in names)).select(*schema.names)


def _remove_replaced(folder: Folder, before: Replaced, files: Sequence[DataFile]) -> None:
    """Remove the files that previous runs replaced. Their readers are assumed to have finished."""
    counting = {file.name for file in files}
    for name in before.gone:
        if name not in counting:
            folder.remove(name)


def _compact_delta(spark: SparkSession, path: str, file_bytes: int) -> tuple[int, int]:
    from deltalake import DeltaTable

    folder = folder_at(path, spark)
    url = folder.url("").rstrip("/")
    table = DeltaTable(url.removeprefix("file://") if isinstance(folder, LocalFolder) else url)
    before = len(table.file_uris())
    table.optimize.compact(target_size=file_bytes)
    return before, len(table.file_uris())
