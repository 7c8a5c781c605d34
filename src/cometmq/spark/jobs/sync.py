"""Keeps a copy of tables up to date from a topic of their changes, and reports on the changes.

    DIRECTORY/checkpoint          Spark's checkpoint of the stream
    DIRECTORY/changes/batch=N/    every message of micro-batch N, as Parquet
    DIRECTORY/table/              the newest change of every row (see snapshots.py)
    DIRECTORY/report/             report.json, and changes by group and hour as Parquet

Each micro-batch is first written to ``changes``, then merged into the buckets of ``table`` that it
touches. The highest ``change`` of a row wins, so late or repeated changes undo nothing. A deleted
row stays in ``table``, marked as deleted, so that a late change does not restore it. An applied
batch is recorded by query and number, and is not applied again. Executors write all rows; the
driver receives only totals and the numbers of buckets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from pyspark.sql import Observation
from pyspark.sql import functions as f

from cometmq.spark.jobs.changes import (
    COLUMNS,
    STATE,
    STATE_DDL,
    bucket_of,
    newest,
    parsed,
    with_group_value,
)
from cometmq.spark.jobs.job import JobOption, Progress, drained, progress_reported, silent
from cometmq.spark.jobs.reach import Reach
from cometmq.spark.options import BadOption
from cometmq.spark.tables.sink import NO_BATCH, Mark, TableSink
from cometmq.spark.tables.snapshots import Manifest, SnapshotTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

BUSIEST: Final = 10
_PERCENTILES: Final = (50, 95, 99)
_QUERY_ID: Final = "sql.streaming.queryId"


@dataclass(frozen=True, slots=True)
class SyncOptions(Reach):
    """The topic to follow and the directory of the copy.

    ``nameservers`` is the source's option. ``group_by`` is the field of a row by which the report
    counts changes. ``schemas`` are the columns of tables as DDL. Rows are checked against them, and
    the copies in databases and Delta have these columns.
    """

    nameservers: Annotated[str, JobOption("Name servers, separated by ';'.")]
    topic: Annotated[str, JobOption("Topic of changes.", positional=True)]
    directory: Annotated[Path, JobOption("Directory of the copy.", positional=True)]
    buckets: Annotated[
        int, JobOption("Parts of the copy; a micro-batch merges only the parts that it changes.")
    ] = 8
    max_offsets_per_trigger: Annotated[int, JobOption("Messages per micro-batch.")] = 100_000
    trigger_ms: Annotated[
        int, JobOption("Time between micro-batches while the topic is followed.")
    ] = 1_000
    group_by: Annotated[str, JobOption("Field of a row by which the report groups its counts.")] = (
        "country"
    )
    schemas: Annotated[
        dict[str, str], JobOption("TABLE=DDL: the columns of a table; other rows are kept aside.")
    ] = field(default_factory=dict)
    postgres: Annotated[
        str, JobOption("Database that also stores the tables given as schemas.")
    ] = ""
    mysql: Annotated[
        str, JobOption("URL of a MySQL or MariaDB database that also stores these tables.")
    ] = ""
    delta: Annotated[
        str, JobOption("Folder for Delta tables of their rows, written with each micro-batch.")
    ] = ""

    @property
    def table(self) -> SnapshotTable:
        """The copy."""
        return SnapshotTable(self.directory / "table")

    @property
    def changes(self) -> Path:
        """The folder with every change, by batch."""
        return self.directory / "changes"


@dataclass(frozen=True, slots=True)
class SyncReport:
    """Result of a run: the number of rows of each table without deleted ones, totals, and the
    report."""

    rows: dict[str, int]
    applied: int
    rejected: int
    batches: int
    report: ChangeReport


class ChangeReport(msgspec.Struct, frozen=True):
    """Figures about all changes so far.

    ``busiest`` are (group, hour, changes), the most changes first. ``lag_ms`` is the time from the
    producer's to the store time, by percentile. ``per_s`` is the number of changes per second
    between the first and the last one stored.
    """

    changes: int
    groups: int
    busiest: list[tuple[str, str, int]]
    lag_ms: dict[str, int]
    per_s: float


def make_report(spark: SparkSession, changes: Path, target: Path, group_by: str) -> ChangeReport:
    """Read all changes, write the report into ``target`` and return it."""
    if not any(changes.glob("batch=*/*.parquet")):
        return ChangeReport(0, 0, [], {}, 0.0)
    good = spark.read.parquet(str(changes)).where("problem is null")
    counts = _by_hour(good, group_by)
    hours = str(target / "changes_by_hour")
    counts.write.mode("overwrite").parquet(hours)
    written = spark.read.schema(counts.schema).parquet(hours)
    totals = written.agg(f.sum("changes").alias("n"), f.count_distinct("of").alias("groups"))
    total = totals.head()
    assert total is not None
    top = written.orderBy(f.desc("changes"), "of", "hour").limit(BUSIEST).collect()
    lag_ms, per_s = _times(good)
    report = ChangeReport(
        changes=total["n"] or 0,
        groups=total["groups"],
        busiest=[(row["of"] or "?", row["hour"], row["changes"]) for row in top],
        lag_ms=lag_ms,
        per_s=per_s,
    )
    (target / "report.json").write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2))
    return report


def _by_hour(changes: DataFrame, group_by: str) -> DataFrame:
    hour = f.date_format(f.timestamp_millis("at_ms"), "yyyy-MM-dd HH:00").alias("hour")
    grouped = with_group_value(changes, group_by).groupBy("of", hour)
    return grouped.agg(f.count("*").alias("changes"))


def _times(changes: DataFrame) -> tuple[dict[str, int], float]:
    """Return the lags in ms by percentile, and the number of changes per second."""
    stored = f.unix_millis("store_timestamp")
    lag = stored - f.unix_millis("born_timestamp")
    shares = f.array(*(f.lit(percent / 100) for percent in _PERCENTILES))
    found = changes.agg(
        f.percentile_approx(lag, shares, 10_000).alias("lags"),
        f.max(lag).alias("longest"),
        f.count("*").alias("n"),
        (f.max(stored) - f.min(stored)).alias("span_ms"),
    ).head()
    if found is None or not found["n"]:
        return {}, 0.0
    lag_ms = {f"p{share}": int(v) for share, v in zip(_PERCENTILES, found["lags"], strict=True)}
    per_s = found["n"] * 1000 / max(found["span_ms"], 1)
    return lag_ms | {"max": int(found["longest"])}, round(per_s, 1)


class Copies:
    """Applies each micro-batch to the copy in the directory, then to the typed copies in databases
    and Delta: ``foreachBatch(copies)``.

    ``schemas`` are the columns of each table as DDL. A table without a schema has no typed copy.
    """

    def __init__(
        self,
        copy: TableSink,
        table: SnapshotTable,
        changes: Path,
        schemas: Mapping[str, str],
        *,
        postgres: str = "",
        mysql: str = "",
        delta: str = "",
    ) -> None:
        self._copy = copy
        self._table = table
        self._changes = changes
        self._schemas = dict(schemas)
        self._merged = {name: _merged_tables(name, postgres, mysql) for name in schemas}
        self._delta = {name: _delta(delta, name) for name in schemas if delta}

    def __call__(self, rows: DataFrame, batch: int) -> None:
        self._copy(rows, batch)
        if not self._delta and not any(self._merged.values()):
            return
        query = rows.sparkSession.sparkContext.getLocalProperty(_QUERY_ID) or ""
        after = self.after(rows, batch)
        for name, ddl in self._schemas.items():
            of_table = typed(after.where(f.col("table") == name), ddl)
            deleted = (f.col("_op") == "delete").alias("_deleted")
            kept = [column for column in of_table.columns if column != "_op"]
            for table in self._merged[name]:
                table.apply(of_table.select(*kept, deleted), Mark(query, batch))
            if name in self._delta:
                self._delta[name].apply(of_table, Mark(query, batch))

    def after(self, rows: DataFrame, batch: int) -> DataFrame:
        """Return the current state of the rows that a batch touched, including deleted rows."""
        spark = rows.sparkSession
        folder = str(self._changes / f"batch={batch:08}")
        found = spark.read.parquet(folder).where("problem is null")
        keys = found.select("table", "key", "bucket").distinct()
        touched = sorted(row.bucket for row in keys.select("bucket").distinct().collect())
        paths = self._table.paths(self._table.current(), touched)
        if not paths:
            return spark.createDataFrame([], STATE_DDL)
        state = spark.read.schema(STATE_DDL).parquet(*paths)
        return state.join(keys.drop("bucket"), ["table", "key"], "left_semi")


def typed(rows: DataFrame, ddl: str) -> DataFrame:
    """Return the rows of one table with the columns of ``ddl``, which are null in deleted rows."""
    found = rows.select(
        f.col("key").alias("_key"),
        f.col("change").alias("_change"),
        f.col("op").alias("_op"),
        f.from_json("row", ddl).alias("r"),
    )
    return found.select("_key", "_change", "_op", "r.*")


def _merged_tables(table: str, postgres: str, mysql: str) -> list[TableSink]:
    """Return the table in each database whose address is not empty."""
    found: list[TableSink] = []
    keys, newest_by, deleted = ("_key",), ("_change",), "_deleted"
    if postgres:
        from cometmq.spark.tables.postgres import PostgresTable

        merged = PostgresTable(postgres, table, keys=keys, newest_by=newest_by, deleted=deleted)
        found.append(merged)
    if mysql:
        from cometmq.spark.tables.mysql import MySqlTable

        found.append(MySqlTable(mysql, table, keys=keys, newest_by=newest_by, deleted=deleted))
    return found


def _delta(root: str, table: str) -> TableSink:
    from cometmq.spark.tables.delta import DeltaLakeTable

    return DeltaLakeTable(f"{root.rstrip('/')}/{table}")


def start(spark: SparkSession, options: SyncOptions) -> StreamingQuery:
    """Follow the topic until the query is stopped."""
    trigger = f"{options.trigger_ms} milliseconds"
    return _writer(spark, options).trigger(processingTime=trigger).start()


def catch_up(spark: SparkSession, options: SyncOptions, progress: Progress = silent) -> None:
    """Apply the current messages of the topic. Raises StreamingQueryException."""
    drained(_writer(spark, options).trigger(availableNow=True).start(), "sync", progress)


def drain(query: StreamingQuery) -> None:
    """Let a query from :func:`start` read to the end of the topic, then stop it. Raises
    StreamingQueryException if the query fails."""
    query.processAllAvailable()
    query.stop()


def run(spark: SparkSession, options: SyncOptions, progress: Progress = silent) -> SyncReport:
    """Apply the current messages of the topic, then count and report."""
    catch_up(spark, options, progress)
    with progress_reported(spark, "report", progress):
        return finish(spark, options)


def finish(spark: SparkSession, options: SyncOptions) -> SyncReport:
    """Count the rows of the copy, and write the report on all changes so far."""
    manifest = options.table.current()
    counted = live(spark, options.directory).groupBy("table").count().collect()
    return SyncReport(
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
        .options(**options.source_options())
        .load()
    )
    if (options.postgres or options.mysql or options.delta) and not options.schemas:
        raise BadOption(
            "schema", "copies in databases and Delta need the columns of their tables: give them"
        )
    copies = Copies(
        ChangeTable(options),
        options.table,
        options.changes,
        options.schemas,
        postgres=options.postgres,
        mysql=options.mysql,
        delta=options.delta,
    )
    writer = messages.writeStream.foreachBatch(copies)
    return writer.option("checkpointLocation", str(options.directory / "checkpoint"))


class ChangeTable(TableSink):
    """The copy and the folder of changes, as a table that applies each micro-batch once."""

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
    """Merge a batch with the previous rows of its buckets, in the paths ``before``. One task writes
    each bucket."""
    rows = batch.select(*STATE)
    if before:
        rows = rows.unionByName(batch.sparkSession.read.schema(STATE_DDL).parquet(*before))
    return newest(rows.withColumn("bucket", bucket_of(buckets)).repartition("bucket"))
