"""Keeps the content of the newest message of each key of a topic in an archive, and erases that of
earlier messages.

The rows stay, with their places and times, so queue offsets remain dense. The key is the whole text
of the column ``keys``. Messages without keys stay as they are. ``cometmq store compact`` does the
same in the store directories of brokers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from pyspark.sql import functions as f

from cometmq.message.tombstone import COMPACTED, ERASED
from cometmq.spark.jobs.erasing import SELECTED, TopicErasure, erase, files_of, without_content
from cometmq.spark.jobs.job import JobOption, Progress, silent, size_bytes

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_KEY = "_cometmq_key"
_NEWEST = "_cometmq_newest"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactOptions:
    """Options of the job compact: the archive, the topic, and whether to change anything."""

    target: Annotated[str, JobOption("Path or URL of the archive.", positional=True)]
    topic: Annotated[str, JobOption("The topic.", positional=True)]
    in_place: Annotated[bool, JobOption("Erase; without this option, only count.")] = False
    file_bytes: Annotated[
        int, JobOption("Approximate size of a new file.", name="file-size", read=size_bytes)
    ] = 128_000_000


@dataclass(frozen=True, slots=True)
class CompactReport:
    """Result of a run. ``messages`` is the number of messages that a later one with the same keys
    replaces, ``files`` that of the files with such messages. ``erased`` is false if the run only
    counted."""

    target: str
    erased: bool
    messages: int
    files: int
    topics: tuple[TopicErasure, ...]


def run(spark: SparkSession, options: CompactOptions, progress: Progress = silent) -> CompactReport:
    """Erase the content of replaced messages, or only count them. Raises BadOption, ArchiveChanged,
    CountDiffers."""
    files = files_of(spark, options.target)

    def select(rows: DataFrame) -> DataFrame:
        newest = (
            files.rows(files.names).where(_is_keyed(options.topic))
            .groupBy(f.col("keys").alias(_KEY)).agg(f.max(_age()).alias(_NEWEST))
        )  # fmt: skip
        same = _is_keyed(options.topic) & (f.col("keys") == f.col(_KEY))
        replaced = f.coalesce(_age() < f.col(_NEWEST), f.lit(False))
        joined = rows.join(newest, same, "left").withColumn(SELECTED, replaced)
        return joined.drop(_KEY, _NEWEST)

    done = erase(
        files, options.target, select, without_content(COMPACTED, (), files.schema),
        file_bytes=options.file_bytes, in_place=options.in_place, progress=progress,
    )  # fmt: skip
    return CompactReport(options.target, options.in_place, done.messages, done.files, done.topics)


def _is_keyed(topic: str) -> Column:
    erased = f.col("properties").getItem(ERASED).isNotNull()
    return (f.col("topic") == topic) & f.col("keys").isNotNull() & ~f.coalesce(erased, f.lit(False))


def _age() -> Column:
    """Return a message's store time and place, by which messages of several brokers are ordered."""
    return f.struct("store_timestamp", "broker_name", "physical_offset", "queue_id", "queue_offset")
