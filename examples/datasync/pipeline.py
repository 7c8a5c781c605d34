"""Keeps the copies in step with Spark: each micro-batch of changes goes to every copy, once.

python -m examples.datasync.pipeline NAMESERVERS SERVER FOLDER     until it is killed
"""

import sys
from pathlib import Path
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.readwriter import DataStreamWriter

from cometmq.spark.jobs.changes import COLUMNS, parsed
from cometmq.spark.session import local_session
from cometmq.spark.tables.delta import DeltaLakeTable
from cometmq.spark.tables.postgres import PostgresTable
from examples.datasync.base import TOPIC
from examples.datasync.copies import PLATFORMS, Places
from examples.demo.tables import TABLES, Table

#: Maximum number of changes in a micro-batch.
BATCH = 4_000
_TYPES: Final = {"TEXT": "string", "INTEGER": "int"}


# --8<-- [start:pipeline]
class Copies:
    """All copies, as a function for ``foreachBatch``."""

    def __init__(self, places: Places) -> None:
        self.history = DeltaLakeTable(str(places.history))
        self.databases = [
            (table, PostgresTable(
                places.database(platform), table.name,
                keys=[table.key], newest_by=["change"], deleted="deleted",
            ))
            for platform in PLATFORMS
            for table in TABLES.values()
        ]  # fmt: skip

    def __call__(self, messages: DataFrame, batch: int) -> None:
        """Apply a batch. A copy that already has it is left unchanged."""
        changes = parsed(messages, buckets=1).drop("bucket").cache()
        self.history(changes, batch)
        for table, copy in self.databases:
            copy(rows_of(changes, table), batch)
        changes.unpersist()


def rows_of(changes: DataFrame, table: Table) -> DataFrame:
    """Return the changed rows of a table with the number of the change, and whether the row was
    deleted."""
    own = (f.col("table") == table.name) & f.col("problem").isNull()
    row = changes.where(own).withColumn("row", _row(table))
    key = f.coalesce(f"row.{table.key}", "key").alias(table.key)
    others = [f.col(f"row.{name}") for name in table.names[1:]]
    gone = (f.col("op") == "delete").alias("deleted")
    return row.select(key, *others, "change", gone)


# --8<-- [end:pipeline]
def _row(table: Table) -> Column:
    columns = (f"{name} {_TYPES[kind.split()[0]]}" for name, kind in table.columns)
    return f.from_json("row", ", ".join(columns))


def writer(spark: SparkSession, nameservers: str, places: Places) -> DataStreamWriter:
    """Return the query's writer, still without a trigger."""
    messages = (
        spark.readStream.format("rocketmq")
        .schema(COLUMNS)
        .option("nameservers", nameservers)
        .option("topic", TOPIC)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", BATCH)
        .load()
    )
    write = messages.writeStream.foreachBatch(Copies(places))
    return write.option("checkpointLocation", str(places.checkpoint))


def catch_up(spark: SparkSession, nameservers: str, places: Places) -> None:
    """Apply the current messages of the topic, starting at the checkpoint."""
    writer(spark, nameservers, places).trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    # A short-lived process: using only the JVM's quick compiler is faster.
    quick = {"spark.driver.extraJavaOptions": "-Xss8m -XX:TieredStopAtLevel=1"}
    session = local_session("datasync", settings=quick)
    where = Places(sys.argv[2], Path(sys.argv[3]))
    writer(session, sys.argv[1], where).trigger(
        processingTime="0 seconds"
    ).start().awaitTermination()
