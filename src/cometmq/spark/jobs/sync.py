"""Keeps a copy of tables in step with a topic of their changes, and reports on the changes.

    DIRECTORY/checkpoint          Spark's
    DIRECTORY/changes/batch=N/    every message of micro-batch N, as Parquet
    DIRECTORY/table/              the newest change of every row (see snapshots.py)
    DIRECTORY/report/             report.json, and changes by group and hour as Parquet

Each micro-batch is first written to ``changes``, then the buckets that it touches are merged. The
highest ``change`` of a row wins, so late or repeated changes undo nothing. Deleted rows are kept as
such, so that a late change does not revive them. An applied batch is recorded by stream and number
and is not applied again. Executors write all rows; the driver receives one line per bucket.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pyspark.sql import Observation
from pyspark.sql import functions as f

from cometmq.spark.jobs.changes import COLUMNS, STATE, STATE_DDL, bucket_of, newest, parsed
from cometmq.spark.jobs.copies import Copies
from cometmq.spark.jobs.progress import Progress, drained, silent, tasks_told
from cometmq.spark.jobs.report import ChangeReport, make_report
from cometmq.spark.jobs.words import Word
from cometmq.spark.options import BadOption
from cometmq.spark.tables.sink import NO_BATCH, Mark, TableSink
from cometmq.spark.tables.snapshots import Manifest, SnapshotTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter


@dataclass(frozen=True, slots=True)
class SyncOptions:
    """The topic to follow and the directory of the copy.

    ``nameservers`` is the source's option. ``group_by`` is the field of a row that the report
    counts by. ``schemas`` are the columns of tables as DDL; rows are checked against them, and
    typed copies have them. ``read_options`` are further options of the source.
    """

    nameservers: Annotated[str, Word("Name servers, several parted by ';'.")]
    topic: Annotated[str, Word("The topic of changes.", positional=True)]
    directory: Annotated[Path, Word("Where the copy lies.", positional=True)]
    buckets: Annotated[int, Word("Parts of the copy; those that a batch touches are merged.")] = 8
    max_offsets_per_trigger: Annotated[int, Word("Messages in a micro-batch.")] = 100_000
    trigger_ms: Annotated[int, Word("Between micro-batches, where the topic is followed.")] = 1_000
    group_by: Annotated[str, Word("The field of a row that the report counts by.")] = "country"
    schemas: Annotated[
        dict[str, str], Word("TABLE=DDL: the columns of a table; other rows are kept aside.")
    ] = field(default_factory=dict)
    postgres: Annotated[str, Word("A database to keep the tables of schemas in, too.")] = ""
    delta: Annotated[str, Word("A folder for Delta tables of their rows, batch by batch.")] = ""
    read_options: Annotated[dict[str, str], Word("KEY=VALUE, an option of the source.")] = field(
        default_factory=dict
    )

    @property
    def table(self) -> SnapshotTable:
        """The copy."""
        return SnapshotTable(self.directory / "table")

    @property
    def changes(self) -> Path:
        """The folder with every change, by batch."""
        return self.directory / "changes"


@dataclass(frozen=True, slots=True)
class SyncResult:
    """Result of a run: the live rows of each table, totals, and the report."""

    rows: dict[str, int]
    applied: int
    rejected: int
    batches: int
    report: ChangeReport


Options = SyncOptions
Report = SyncResult


def start(spark: SparkSession, options: SyncOptions) -> StreamingQuery:
    """Follow the topic until the query is stopped."""
    trigger = f"{options.trigger_ms} milliseconds"
    return _writer(spark, options).trigger(processingTime=trigger).start()


def catch_up(spark: SparkSession, options: SyncOptions, progress: Progress = silent) -> None:
    """Apply the current messages of the topic. Raises StreamingQueryException."""
    drained(_writer(spark, options).trigger(availableNow=True).start(), "sync", progress)


def drain(query: StreamingQuery) -> None:
    """Let a query from :func:`start` read to the end of the topic, then stop it. Raises
    StreamingQueryException if it failed."""
    query.processAllAvailable()
    query.stop()


def run(spark: SparkSession, options: SyncOptions, progress: Progress = silent) -> SyncResult:
    """Apply the current messages of the topic, then count and report."""
    catch_up(spark, options, progress)
    with tasks_told(spark, "report", progress):
        return finish(spark, options)


def finish(spark: SparkSession, options: SyncOptions) -> SyncResult:
    """Count the rows of the copy, and write the report on all changes so far."""
    manifest = options.table.current()
    counted = live(spark, options.directory).groupBy("table").count().collect()
    return SyncResult(
        rows={row["table"]: row["count"] for row in counted},
        applied=manifest.counts.get("applied", 0),
        rejected=manifest.counts.get("rejected", 0),
        batches=manifest.version,
        report=make_report(spark, options.changes, options.directory / "report", options.group_by),
    )


def live(spark: SparkSession, directory: Path) -> DataFrame:
    """Return the copy's rows: table, key, change, at_ms, and the row as JSON text."""
    table = SnapshotTable(directory / "table")
    paths = table.paths(table.current())
    read = spark.read.schema(STATE_DDL)
    rows = read.parquet(*paths) if paths else spark.createDataFrame([], STATE_DDL)
    rows = rows.where(f.col("op") != "delete")
    return rows.select("table", "key", "change", "at_ms", "row")


def _writer(spark: SparkSession, options: SyncOptions) -> DataStreamWriter:
    messages = (
        spark.readStream.format("rocketmq")
        .schema(COLUMNS)
        .option("nameservers", options.nameservers)
        .option("topic", options.topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", options.max_offsets_per_trigger)
        .options(**options.read_options)
        .load()
    )
    if (options.postgres or options.delta) and not options.schemas:
        raise BadOption("schema", "copies in PostgreSQL and Delta need the columns of their tables")
    copies = Copies(
        ChangeTable(options),
        options.table,
        options.changes,
        options.schemas,
        postgres=options.postgres,
        delta=options.delta,
    )
    writer = messages.writeStream.foreachBatch(copies)
    return writer.option("checkpointLocation", str(options.directory / "checkpoint"))


class ChangeTable(TableSink):
    """The copy and the folder of changes; applies each micro-batch once."""

    def __init__(self, options: SyncOptions) -> None:
        self._options = options

    def __str__(self) -> str:
        return str(self._options.directory)

    def last(self, spark: SparkSession, query: str) -> int:
        current = self._options.table.current()
        return current.batch if current.query == query else NO_BATCH

    def write(self, rows: DataFrame, mark: Mark) -> bool:
        options, spark, table = self._options, rows.sparkSession, self._options.table
        current = table.current()
        folder = str(options.changes / f"batch={mark.batch:08}")
        found = parsed(rows, options.buckets, options.schemas)
        seen = Observation()
        found.observe(
            seen,
            f.count("*").alias("messages"),
            f.count("problem").alias("rejected"),
            f.collect_set("bucket").alias("touched"),
        ).write.mode("overwrite").parquet(folder)
        counted = seen.get
        touched: list[int] = sorted(counted["touched"])
        version = current.version + 1
        if touched:
            batch = spark.read.schema(found.schema).parquet(folder).where("problem is null")
            merged = _merged(batch, table.paths(current, touched), options.buckets)
            target = merged.write.mode("overwrite").partitionBy("bucket")
            target.parquet(str(table.folder(version)))
        applied = counted["messages"] - counted["rejected"]
        counts = {
            "applied": current.counts.get("applied", 0) + applied,
            "rejected": current.counts.get("rejected", 0) + counted["rejected"],
        }
        buckets = current.buckets | dict.fromkeys(touched, version)
        table.commit(Manifest(version, *mark, buckets, counts))
        return True


def _merged(batch: DataFrame, before: list[str], buckets: int) -> DataFrame:
    """Merge a batch into the previous rows of its buckets. One task writes a bucket."""
    rows = batch.select(*STATE)
    if before:
        rows = rows.unionByName(batch.sparkSession.read.schema(STATE_DDL).parquet(*before))
    return newest(rows.withColumn("bucket", bucket_of(buckets)).repartition("bucket"))
