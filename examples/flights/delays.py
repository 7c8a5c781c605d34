"""A Spark job on the topic of flights: the delay of each carrier, by hour.

python -m examples.flights.delays 127.0.0.1:9876
"""

import sys
from collections.abc import Iterable
from typing import Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from cometmq.spark.session import local_session
from examples.flights.data import Flight
from examples.flights.replay import TOPIC

#: The columns that the job needs; others are not decoded.
COLUMNS: Final = "tags string, body binary, born_timestamp timestamp"


class Delays(NamedTuple):
    """Number of flights planned, number of flights that left, and the sum of their delays in
    minutes."""

    flights: int
    left: int
    minutes: int


# --8<-- [start:job]
def messages(spark: SparkSession, nameservers: str, topic: str = TOPIC) -> DataFrame:
    """Return the flights in the topic."""
    read = spark.read.format("rocketmq").schema(COLUMNS)
    return read.option("nameservers", nameservers).option("topic", topic).load()


def delays(flights: DataFrame) -> DataFrame:
    """Return a row per carrier and hour (UTC). A cancelled flight counts in its scheduled hour."""
    late = f.get_json_object(f.col("body").cast("string"), "$.dep_delay").cast("int")
    return (
        flights.withColumn("late", late)
        .groupBy(
            f.col("tags").alias("carrier"), f.date_trunc("hour", "born_timestamp").alias("hour")
        )
        .agg(
            f.count("*").alias("flights"),
            f.count("late").alias("left"),
            f.coalesce(f.sum("late"), f.lit(0)).alias("minutes"),
        )
    )


# --8<-- [end:job]
def by_carrier(hours: DataFrame) -> DataFrame:
    """Return the year of each carrier, the largest delay first."""
    return (
        hours.groupBy("carrier")
        .agg(f.sum("flights").alias("flights"), f.sum("left").alias("left"),
             f.round(f.sum("minutes") / f.sum("left"), 1).alias("minutes_late"))
        .orderBy(f.desc("minutes_late"))
    )  # fmt: skip


def expected(flights: Iterable[Flight]) -> dict[tuple[str, int], Delays]:
    """Compute the result of :func:`delays` without Spark, by carrier and hour (ms)."""
    found: dict[tuple[str, int], Delays] = {}
    for flight in flights:
        place = flight.carrier, flight.born_ms // 3_600_000 * 3_600_000
        late = flight.row["dep_delay"]
        before = found.get(place, Delays(0, 0, 0))
        left, minutes = (0, 0) if late is None else (1, int(late))
        found[place] = Delays(before.flights + 1, before.left + left, before.minutes + minutes)
    return found


def collected(hours: DataFrame) -> dict[tuple[str, int], Delays]:
    """Return the result of :func:`delays` in the form of :func:`expected`."""
    rows = hours.withColumn("hour", f.unix_millis("hour")).collect()
    return {(r.carrier, r.hour): Delays(r.flights, r.left, r.minutes) for r in rows}


if __name__ == "__main__":
    session = local_session("flights")
    by_carrier(delays(messages(session, *(sys.argv[1:] or ["127.0.0.1:9876"])))).show()
    session.stop()
