"""Erases the content of all messages with certain keys from an archive, for erasure requests.

The rows stay, with their places and times. ``cometmq store redact`` does the same in the store
directories of brokers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pyspark.sql import functions as f

from cometmq.message import properties as props
from cometmq.message.tombstone import REDACTED, is_key, keys_in
from cometmq.spark.jobs.erasing import SELECTED, TopicErasure, erase, files_of, without_content
from cometmq.spark.jobs.job import JobOption, Progress, silent, size_bytes
from cometmq.spark.options import BadOption

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class RedactOptions:
    """Options of the job redact: the archive, the keys, and whether to change anything."""

    target: Annotated[str, JobOption("Path or URL of the archive.", positional=True)]
    keys: Annotated[tuple[str, ...], JobOption("A key or message id; repeatable.")] = ()
    keys_file: Annotated[str, JobOption("File with a key in each line.")] = ""
    topics: Annotated[
        tuple[str, ...],
        JobOption("Only messages sent to this topic, retries and dead letters too; repeatable."),
    ] = ()
    in_place: Annotated[bool, JobOption("Erase; without this option, only count.")] = False
    file_bytes: Annotated[
        int, JobOption("Approximate size of a new file.", name="file-size", read=size_bytes)
    ] = 128_000_000

    def wanted(self) -> tuple[str, ...]:
        """Return all keys, each once. Raises BadOption, OSError."""
        text = Path(self.keys_file).read_text("utf-8") if self.keys_file else ""
        found = [*self.keys, *keys_in(text)]
        if not found:
            raise BadOption("keys", "no key is given: use --key or --keys-file")
        for number, key in enumerate(found, 1):
            if not is_key(key):
                raise BadOption("keys", f"key {number} is not one key")
        return tuple(dict.fromkeys(found))


@dataclass(frozen=True, slots=True)
class RedactReport:
    """Result of a run. ``erased`` is false if the run only counted. ``ok`` is false if an erasure
    left files that may contain erased content.

    ``left`` names these files: data files that do not belong to the archive, and entries of a Delta
    log that contain a key as the bound of a column.
    """

    ok: bool
    target: str
    erased: bool
    messages: int
    files: int
    topics: tuple[TopicErasure, ...]
    left: tuple[str, ...]


def run(spark: SparkSession, options: RedactOptions, progress: Progress = silent) -> RedactReport:
    """Erase the content of the messages, or only count them. Raises BadOption, ArchiveChanged,
    CountDiffers."""
    keys = options.wanted()
    condition = of_keys(keys, options.topics)

    def select(rows: DataFrame) -> DataFrame:
        return rows.withColumn(SELECTED, condition)

    files = files_of(spark, options.target)
    done = erase(
        files, options.target, select, without_content(REDACTED, keys, files.schema),
        file_bytes=options.file_bytes, in_place=options.in_place, progress=progress,
    )  # fmt: skip
    left = (*done.left, *files.log_entries_with(keys))
    return RedactReport(
        not (options.in_place and left), options.target, options.in_place, done.messages,
        done.files, done.topics, left,
    )  # fmt: skip


def of_keys(keys: Sequence[str], topics: Sequence[str]) -> Column:
    """Return the condition that a message has one of the keys, and was sent to one of the topics if
    any are given."""
    own = f.split(f.coalesce("keys", f.lit("")), " ")
    found = f.exists(own, lambda key: key.isin(*keys)) | f.coalesce(
        f.col("msg_id").isin(*keys), f.lit(False)
    )
    if topics:
        sent = f.col("topic").isin(*topics)
        for name in props.ORIGIN_TOPICS:
            origin = f.col("properties").getItem(name)
            sent = sent | f.coalesce(origin.isin(*topics), f.lit(False))
        found = found & sent
    return found
