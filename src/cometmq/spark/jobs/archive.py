"""Copies topics into an archive, each message once, so that they outlive the brokers' retention.

A live cluster is read as a stream. The checkpoint records what was read, and the table knows its
batches, so a run that is killed continues where it was. Store directories are read in one batch,
which leaves out what the archive has of each queue. Files get about the requested size and are
ordered by queue and offset. ``compact`` joins the small files of many small runs.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pyspark.sql import Observation
from pyspark.sql import functions as f

from cometmq.spark.jobs.archived import (
    ORDER,
    QUEUE,
    ArchiveTable,
    archived,
    dated,
    ends,
    partitions,
    table_at,
)
from cometmq.spark.jobs.inputs import Places, chosen, messages
from cometmq.spark.jobs.progress import Progress, drained, silent, tasks_told
from cometmq.spark.jobs.words import Word, size_bytes, span_ms
from cometmq.spark.options import BadOption
from cometmq.spark.schema import DDL, NAMES
from cometmq.spark.tables.sink import Mark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_QUERY_ID: Final = "sql.streaming.queryId"
_ADVISED: Final = "spark.sql.adaptive.advisoryPartitionSizeInBytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(Places):
    """Options of the job archive: the messages, the target, and the form of the archive."""

    target: Annotated[str, Word("The archive: a path or URL.", positional=True)]
    format: Annotated[Literal["parquet", "delta"], Word("The kind of table.")] = "parquet"
    hours: Annotated[bool, Word("Partition by hour of the day, too.")] = False
    file_bytes: Annotated[
        int, Word("About how large files get.", name="file-size", read=size_bytes)
    ] = 128_000_000
    batch_messages: Annotated[int, Word("Messages in a batch of the stream.")] = 1_000_000
    checkpoint: Annotated[str, Word("Where the stream's place is kept; in the archive.")] = ""
    every_ms: Annotated[
        int, Word("Follow the topics, a batch so often.", name="every", read=span_ms)
    ] = 0
    compact: Annotated[bool, Word("Join the archive's small files instead.")] = False


@dataclass(frozen=True, slots=True)
class Report:
    """Result of a run. ``messages`` were added in ``batches``; ``known`` batches already
    existed."""

    target: str
    messages: int = 0
    batches: int = 0
    known: int = 0
    files_before: int = 0
    files_after: int = 0


class Archiver:
    """Appends micro-batches to an archive and counts them: ``foreachBatch(archiver)``."""

    def __init__(self, table: ArchiveTable, options: Options) -> None:
        self._table = table
        self._options = options
        self.messages = self.batches = self.known = 0

    def __call__(self, rows: DataFrame, batch: int) -> None:
        query = rows.sparkSession.sparkContext.getLocalProperty(_QUERY_ID) or ""
        self.add(rows, Mark(query, batch))

    def add(self, rows: DataFrame, mark: Mark) -> None:
        """Append a batch unless the archive has it."""
        seen = Observation()
        told = rows.observe(seen, f.count("*").alias("messages"))
        if self._table.apply(shaped(told, self._options), mark):
            self.batches += 1
            self.messages += int(seen.get["messages"])
        else:
            self.known += 1

    def report(self) -> Report:
        """Return the counts so far."""
        return Report(self._options.target, self.messages, self.batches, self.known)


def run(spark: SparkSession, options: Options, progress: Progress = silent) -> Report:
    """Archive the current messages, or follow the topics until interrupted if ``every_ms`` is
    given.

    Raises BadOption if the options contradict each other.
    """
    if options.compact:
        from cometmq.spark.jobs.compaction import compact

        before, after = compact(spark, options.target, options.file_bytes, progress)
        return Report(options.target, files_before=before, files_after=after)
    table = table_at(options.target, options.format, hours=options.hours)
    archiver = Archiver(table, options)
    if options.archive:
        raise BadOption("archive", "an archive is made of a cluster or of store directories")
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


def start(spark: SparkSession, options: Options, archiver: Archiver) -> StreamingQuery:
    """Follow the topics until the query is stopped."""
    trigger = f"{options.every_ms} milliseconds"
    return _writer(spark, options, archiver).trigger(processingTime=trigger).start()


def _writer(spark: SparkSession, options: Options, archiver: Archiver) -> DataStreamWriter:
    if options.until_ms is not None:
        raise BadOption("until", "a stream has no end; use --since, or archive a store directory")
    reader = spark.readStream.format("rocketmq").schema(DDL)
    reader = reader.option("nameservers", options.nameservers)
    reader = reader.option("maxOffsetsPerTrigger", options.batch_messages)
    reader = reader.options(**chosen(options))
    if options.since_ms is None:
        reader = reader.option("startingOffsets", "earliest")
    else:
        reader = reader.option("startingTimestamp", str(options.since_ms))
    rows = reader.options(**options.read_options).load()
    checkpoint = options.checkpoint or f"{options.target.rstrip('/')}/_checkpoint"
    return rows.writeStream.foreachBatch(archiver).option("checkpointLocation", checkpoint)


def _add_stores(
    spark: SparkSession, options: Options, archiver: Archiver, progress: Progress
) -> None:
    """Add the messages of store directories that the archive lacks, as one batch."""
    table = table_at(options.target, options.format, hours=options.hours)
    rows = messages(spark, options, NAMES).drop("place")
    try:
        known = ends(archived(spark, options.target), options.topics)
    except BadOption:
        pass  # the first batch creates it
    else:
        same = [f.col(f"m.{name}").eqNullSafe(f.col(f"k.{name}")) for name in QUEUE]
        joined = rows.alias("m").join(f.broadcast(known.alias("k")), same, "left")
        new = f.col("archived_to").isNull() | (f.col("m.queue_offset") > f.col("archived_to"))
        rows = joined.where(new).select("m.*")
    query = "store-" + hashlib.sha256("\n".join(sorted(options.stores)).encode()).hexdigest()[:16]
    with tasks_told(spark, "archive", progress):
        if not rows.isEmpty():
            archiver.add(rows, Mark(query, table.last(spark, query) + 1))


def shaped(rows: DataFrame, options: Options) -> DataFrame:
    """Return the rows as they are written: in tasks of a file's size, ordered by queue and
    offset."""
    spark = rows.sparkSession
    # Only adaptive plans join and split tasks by size; Spark turns them off in a stream.
    spark.conf.set("spark.sql.adaptive.enabled", "true")
    spark.conf.set(_ADVISED, str(options.file_bytes))
    folders = partitions(hours=options.hours)
    balanced = dated(rows, hours=options.hours).hint("rebalance", *folders)
    return balanced.sortWithinPartitions(*folders, *(name for name in ORDER if name != "topic"))
