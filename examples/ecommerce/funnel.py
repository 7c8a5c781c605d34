"""A Spark query over the shop's events: the number of each kind, and the money, by minute."""

from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from examples.ecommerce.books import Minutes
from examples.ecommerce.events import TOPIC

_EVENT: Final = "`order` string, kind string, cents bigint, at_ms bigint"
#: Events that arrive later than this, by their own time, are not counted.
LATENESS: Final = "30 minutes"


# --8<-- [start:funnel]
def events(spark: SparkSession, nameservers: str) -> DataFrame:
    """Return each event once. A dead letter that is sent again is the same event."""
    messages = (
        spark.readStream.format("rocketmq")
        .schema("body binary")
        .option("nameservers", nameservers)
        .option("topic", TOPIC)
        .option("startingOffsets", "earliest")
        .load()
    )
    event = f.from_json(f.col("body").cast("string"), _EVENT).alias("event")
    return (
        messages.select(event)
        .select("event.*", f.timestamp_millis("event.at_ms").alias("at"))
        .withWatermark("at", LATENESS)
        .dropDuplicatesWithinWatermark(["order", "kind"])
    )


def by_minute(happened: DataFrame) -> DataFrame:
    """Return events and cents of each kind in each minute."""
    counted = happened.groupBy(f.window("at", "1 minute"), "kind")
    return counted.agg(f.count("*").alias("events"), f.sum("cents").alias("cents")).select(
        f.col("window.start").alias("minute"), "kind", "events", "cents"
    )


def follow(spark: SparkSession, nameservers: str, folder: Path) -> StreamingQuery:
    """Write the changed minutes into ``folder``, batch by batch, until the query is stopped."""

    def write(changed: DataFrame, number: int) -> None:
        # A batch that is repeated after a crash overwrites its files with the same content.
        changed.write.mode("overwrite").parquet(str(folder / "minutes" / f"batch={number:06}"))

    return (
        by_minute(events(spark, nameservers))
        .writeStream.outputMode("update")
        .foreachBatch(write)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(processingTime="1 second")
        .start()
    )


# --8<-- [end:funnel]
def minutes(spark: SparkSession, folder: Path) -> DataFrame:
    """Return each minute as of its last batch."""
    last = f.max_by(f.struct("events", "cents"), "batch").alias("last")
    written = spark.read.parquet(str(folder / "minutes"))
    return written.groupBy("minute", "kind").agg(last).select("minute", "kind", "last.*")


def revenue(found: DataFrame) -> DataFrame:
    """Return the funnel and the money that was kept, one row per minute."""
    kinds: list[bool | float | int | str] = ["placed", "paid", "shipped", "sold-out", "refunded"]
    counts = found.groupBy("minute").pivot("kind", kinds).agg(f.sum("events")).na.fill(0)
    signed = f.when(f.col("kind") == "paid", f.col("cents")).when(
        f.col("kind") == "refunded", -f.col("cents")
    )
    money = found.groupBy("minute").agg((f.coalesce(f.sum(signed), f.lit(0)) / 100).alias("euros"))
    return counts.join(money, "minute").orderBy("minute")


def collected(found: DataFrame) -> Minutes:
    """Return the minutes in the form of :meth:`Books.minutes`."""
    rows = found.withColumn("minute", f.unix_millis("minute")).collect()
    return {(row.minute, row.kind): (row.events, row.cents) for row in rows}
