"""The format of an archive: a table of messages, partitioned by topic and day of storing (UTC).

It has the source's columns (see schema.py), then ``day`` as ``2026-01-31``, and ``hour`` from 00 to
23 if it was created with hours. It is a Parquet or a Delta table, as its folder shows.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import unquote

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from cometmq.spark.options import BadOption
from cometmq.spark.schema import NAMES
from cometmq.spark.tables.datafiles import DATA, folder_at
from cometmq.spark.tables.parquet import ParquetTable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from cometmq.spark.tables.sink import Mark

QUEUE: Final = ("topic", "broker_name", "queue_id")
ORDER: Final = (*QUEUE, "queue_offset")
_HOUR_MS: Final = 3_600_000
#: Bloom filters of message ids. A search by id then reads only the parts of files that may contain
#: it. A filter that is not adaptive takes a megabyte, however few the rows are.
SEARCHABLE: Final = {
    "parquet.bloom.filter.enabled#msg_id": "true",
    "parquet.bloom.filter.adaptive.enabled": "true",
}


class ArchiveTable(Protocol):
    """The kinds of tables that an archive can use."""

    def apply(self, rows: DataFrame, mark: Mark) -> bool:
        """Append a batch once."""

    def last(self, spark: SparkSession, query: str) -> int:
        """Return the highest batch of a query, NO_BATCH before its first."""


def partitions(*, hours: bool) -> tuple[str, ...]:
    """Return the columns that become folders."""
    return ("topic", "day", "hour") if hours else ("topic", "day")


def table_at(path: str, kind: str, *, hours: bool) -> ArchiveTable:
    """Return the table to write. ``kind`` is parquet or delta."""
    if kind == "delta":
        from cometmq.spark.tables.delta import DeltaLakeTable

        return DeltaLakeTable(path, partition_by=partitions(hours=hours), options=SEARCHABLE)
    return ParquetTable(path, partition_by=partitions(hours=hours), options=SEARCHABLE)


def archived(spark: SparkSession, path: str) -> DataFrame:
    """Return all messages of an archive. Raises BadOption if there is none."""
    if kind_of(spark, path) == "delta":
        return _delta(spark, path)
    try:
        return ParquetTable(path).read(spark)
    except FileNotFoundError:
        raise BadOption("archive", f"there is no archive at {path}") from None


def kind_of(spark: SparkSession, path: str) -> str:
    """Return the kind of the archive at ``path``, delta or parquet."""
    return "delta" if folder_at(path, spark).names("_delta_log") else "parquet"


def _delta(spark: SparkSession, path: str) -> DataFrame:
    """Return the rows of a Delta table. Joined files are in other folders than those of batches, so
    each kind is read separately."""
    from deltalake import DeltaTable

    folder = folder_at(path, spark)
    root = folder.url("").rstrip("/")
    table = DeltaTable(root.removeprefix("file://"))
    schema = StructType.fromJson(msgspec.json.decode(table.schema().to_json()))
    names = [unquote(name) for name in table.get_add_actions().column("path").to_pylist()]
    batches = [name for name in names if name.startswith(f"{DATA}/")]
    found = [spark.createDataFrame([], schema)]
    for base, chosen in (
        (f"{root}/{DATA}", batches),
        (root, [name for name in names if name not in set(batches)]),
    ):
        if chosen:
            reader = spark.read.schema(schema).option("basePath", base)
            rows = reader.parquet(*(folder.url(name) for name in chosen))
            found.append(rows.select(*schema.names))  # drops the batch, which is a folder
    return reduce(DataFrame.unionByName, found)


def dated(messages: DataFrame, *, hours: bool) -> DataFrame:
    """Return messages in the form of an archive. Days are UTC, whatever the session's time zone
    is."""
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
