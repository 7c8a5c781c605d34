"""The inputs of a job: a live cluster, store directories, an archive, or several of them at once.

Every input has the source's columns (see schema.py), so jobs need not distinguish the inputs. Time
ranges apply to the store time, and are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import unquote

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from cometmq.spark.jobs.icebergarchive import is_iceberg, read_iceberg
from cometmq.spark.jobs.job import JobOption
from cometmq.spark.jobs.reach import Reach
from cometmq.spark.options import BadOption, NoArchive, moment_ms
from cometmq.spark.schema import BY_NAME

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

LIVE: Final = "live"
STORE: Final = "store"
ARCHIVE: Final = "archive"

IDENTITY: Final = (
    *("topic", "queue_id", "queue_offset", "physical_offset"),
    *("store_timestamp", "store_host", "msg_id"),
)
"""Columns that together identify a stored message. They are the same in every copy of the message.
The broker's name is not among them: a record does not contain it, so it may be unknown for a store
directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputOptions(Reach):
    """The options that name the inputs. At least one must be given."""

    nameservers: Annotated[str, JobOption("Name servers of a live cluster, separated by ';'.")] = ""
    topics: Annotated[tuple[str, ...], JobOption("A topic; repeatable.")] = ()
    pattern: Annotated[
        str, JobOption("Regular expression for whole topic names, instead of topics.")
    ] = ""
    stores: Annotated[tuple[str, ...], JobOption("Store directory of a broker; repeatable.")] = ()
    brokers: Annotated[tuple[str, ...], JobOption("Broker name of each store directory.")] = ()
    archive: Annotated[str, JobOption("Archive written by the archive job.")] = ""
    since_ms: Annotated[
        int | None, JobOption("Start time: ISO 8601 or ms.", name="since", read=moment_ms)
    ] = None
    until_ms: Annotated[
        int | None, JobOption("End time, exclusive.", name="until", read=moment_ms)
    ] = None

    def named(self) -> tuple[str, ...]:
        """Return the names of the given inputs: LIVE, STORE, ARCHIVE. Raises BadOption if there is
        none."""
        given = {LIVE: self.nameservers, STORE: self.stores, ARCHIVE: self.archive}
        found = tuple(place for place, value in given.items() if value)
        if not found:
            raise BadOption("namesrv", "no input is given: give --namesrv, --store or --archive")
        return found


def messages(
    spark: SparkSession, inputs: InputOptions, columns: Sequence[str], tag: str = ""
) -> DataFrame:
    """Return the messages of all inputs, with the source's ``columns`` and the column ``place``.

    ``place`` names the input of a message. A message that is in two inputs appears twice. ``tag``
    is only a hint: a broker may filter by it, other inputs ignore it.
    """
    readers = {LIVE: _live, STORE: _stored, ARCHIVE: _archived}
    found = [
        readers[place](spark, inputs, tuple(columns), tag)
        .select(*columns)
        .withColumn("place", f.lit(place))
        for place in inputs.named()
    ]
    return reduce(DataFrame.unionByName, found)


def once(found: DataFrame, order: Sequence[str] = (LIVE, STORE, ARCHIVE)) -> DataFrame:
    """Return each message once. The new column ``places`` lists the inputs that have it; the other
    columns are taken from the first of these in ``order``. The rows must have the columns of
    IDENTITY."""
    rank = f.array_position(f.array(*map(f.lit, order)), f.col("place"))
    kept = [name for name in found.columns if name not in {*IDENTITY, "place"}]
    grouped = found.groupBy(*IDENTITY).agg(
        f.min_by(f.struct(*kept), rank).alias("kept"),
        f.array_sort(f.collect_set("place")).alias("places"),
    )
    return grouped.select(*IDENTITY, *(f.col(f"kept.{name}") for name in kept), "places")


def between(since_ms: int | None, until_ms: int | None) -> Column:
    """Return the condition that a message was stored in a time range."""
    inside = f.lit(True)
    if since_ms is not None:
        inside = inside & (f.col("store_timestamp") >= f.lit(_moment(since_ms)))
    if until_ms is not None:
        inside = inside & (f.col("store_timestamp") < f.lit(_moment(until_ms)))
    return inside


def read_live(
    spark: SparkSession, inputs: InputOptions, columns: Sequence[str], **options: str
) -> DataFrame:
    """Return the messages of a live cluster. Raises BadOption if no topic is named."""
    reader = spark.read.format("rocketmq").schema(_ddl(columns))
    reader = reader.option("nameservers", inputs.nameservers)
    reader = reader.options(**chosen(inputs)).options(**_times(inputs)).options(**options)
    return reader.options(**inputs.source_options()).load()


def read_archive(spark: SparkSession, path: str) -> DataFrame:
    """Return all messages of an archive. Raises NoArchive if there is none."""
    from cometmq.spark.tables.parquet import ParquetTable

    kind = kind_of(spark, path)
    if kind == "iceberg":
        return read_iceberg(spark, path)
    if kind == "delta":
        return _read_delta(spark, path)
    try:
        return ParquetTable(path).read(spark)
    except FileNotFoundError:
        raise NoArchive("archive", f"there is no archive at {path}") from None


def kind_of(spark: SparkSession, path: str) -> str:
    """Return the kind of the archive at ``path``: delta, iceberg or parquet."""
    from cometmq.spark.tables.datafiles import folder_at

    if is_iceberg(path):
        return "iceberg"
    return "delta" if folder_at(path, spark).names("_delta_log") else "parquet"


def _read_delta(spark: SparkSession, path: str) -> DataFrame:
    """Return the rows of a Delta table.

    Delta's compaction writes files outside the folder of batches. Spark needs one base path for
    partition columns, so the two kinds of files are read separately.
    """
    from deltalake import DeltaTable

    from cometmq.spark.tables.datafiles import DATA, folder_at

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
            # The selection drops the column ``batch``, which Spark derives from the folder names.
            found.append(rows.select(*schema.names))
    return reduce(DataFrame.unionByName, found)


def chosen(inputs: InputOptions) -> dict[str, str]:
    """Return the options of the source that choose the topics of a live cluster.

    Raises BadOption if none is named.
    """
    found = _topics(inputs)
    if not found and not {"subscribePattern", "assign"} & set(inputs.read_options):
        raise BadOption("topic", "a live cluster is read by topic: give a topic or a --pattern")
    return found


def _live(
    spark: SparkSession, inputs: InputOptions, columns: tuple[str, ...], tag: str
) -> DataFrame:
    wanted = tuple(dict.fromkeys((*columns, "store_timestamp")))
    found = read_live(spark, inputs, wanted, **({"filter": tag} if tag else {}))
    return found.where(between(inputs.since_ms, inputs.until_ms))


def _stored(
    spark: SparkSession, inputs: InputOptions, columns: tuple[str, ...], _: str
) -> DataFrame:
    wanted = tuple(dict.fromkeys((*columns, "topic", "store_timestamp")))
    reader = spark.read.format("rocketmq").schema(_ddl(wanted))
    reader = reader.option("store", ",".join(inputs.stores))
    if inputs.brokers:
        reader = reader.option("brokerName", ",".join(inputs.brokers))
    reader = reader.options(**_topics(inputs)).options(**_times(inputs))
    found = reader.options(**inputs.read_options).load()
    return found.where(between(inputs.since_ms, inputs.until_ms))


def _archived(spark: SparkSession, inputs: InputOptions, _: tuple[str, ...], __: str) -> DataFrame:
    found = read_archive(spark, inputs.archive)
    if inputs.topics:
        found = found.where(f.col("topic").isin(*inputs.topics))
    if inputs.pattern:
        found = found.where(f.col("topic").rlike(f"^(?:{inputs.pattern})$"))
    if inputs.since_ms is not None:
        found = found.where(f.col("day") >= f.lit(_moment(inputs.since_ms).strftime("%Y-%m-%d")))
    if inputs.until_ms is not None:
        found = found.where(f.col("day") <= f.lit(_moment(inputs.until_ms).strftime("%Y-%m-%d")))
    return found.where(between(inputs.since_ms, inputs.until_ms))


def _topics(inputs: InputOptions) -> dict[str, str]:
    if inputs.topics and inputs.pattern:
        raise BadOption("pattern", "cannot be given together with topics")
    if inputs.pattern:
        return {"subscribePattern": inputs.pattern}
    return {"topic": ",".join(inputs.topics)} if inputs.topics else {}


def _times(inputs: InputOptions) -> dict[str, str]:
    given = {"startingTimestamp": inputs.since_ms, "endingTimestamp": inputs.until_ms}
    return {name: str(at_ms) for name, at_ms in given.items() if at_ms is not None}


def _ddl(columns: Sequence[str]) -> str:
    return ", ".join(f"{name} {BY_NAME[name].spark}" for name in columns)


def _moment(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)
