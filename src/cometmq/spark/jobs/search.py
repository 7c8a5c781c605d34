"""Finds messages by key, id, tag, time and text in a live cluster, in store directories and in an
archive, in one call. A message that is in several of them is returned once.

Keys are compared as text. (A broker's own index has only hashes of keys, and only for messages that
the broker still has.)
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Final

from pyspark.sql import Observation
from pyspark.sql import functions as f

from cometmq.admin.views import moment
from cometmq.spark.jobs.inputs import IDENTITY, InputOptions, messages, once
from cometmq.spark.jobs.job import JobOption, Progress, progress_reported, silent
from cometmq.spark.options import BadOption

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

COLUMNS: Final = (*IDENTITY, "broker_name", "keys", "tags", "body", "reconsume_times")
_ORDER: Final = ("store_timestamp", "topic", "queue_id", "queue_offset")


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions(InputOptions):
    """The conditions of the search, which are combined with AND."""

    key: Annotated[str, JobOption("One whole key of the message.")] = ""
    message_id: Annotated[str, JobOption("The producer's message id or the offset id.")] = ""
    tag: Annotated[str, JobOption("The tag.")] = ""
    text: Annotated[str, JobOption("Text that the body contains.")] = ""
    limit: Annotated[int, JobOption("Number of messages to list, oldest first.")] = 100


@dataclass(frozen=True, slots=True)
class Hit:
    """A message that was found. A body that is not UTF-8 is in base64. ``places`` lists the inputs
    that have the message."""

    stored: str
    topic: str
    broker: str | None
    queue: int
    offset: int
    id: str
    tag: str | None
    keys: str | None
    body: str
    is_base64: bool
    places: str


@dataclass(frozen=True, slots=True)
class SearchReport:
    """Result of a search. ``found`` counts each message once; ``hits`` are the oldest, at most
    ``limit``."""

    LINES: ClassVar[str] = "hits"

    hits: tuple[Hit, ...]
    found: int


def run(spark: SparkSession, options: SearchOptions, progress: Progress = silent) -> SearchReport:
    """Search messages. Raises BadOption if there is no condition or no input."""
    if not any((options.key, options.message_id, options.tag, options.text)) and (
        options.since_ms is None and options.until_ms is None
    ):
        raise BadOption("key", "no condition is given: give a key, message id, tag, text or time")
    seen = Observation()
    found = matching(spark, options).observe(seen, f.count("*").alias("found"))
    with progress_reported(spark, "search", progress):
        stamped = found.withColumn("stored_ms", f.unix_millis("store_timestamp"))
        rows = stamped.orderBy(*_ORDER).limit(options.limit).collect()
    return SearchReport(tuple(map(_hit, rows)), int(seen.get["found"]))


def matching(spark: SparkSession, options: SearchOptions) -> DataFrame:
    """Return the matching messages, each once, with COLUMNS and ``places`` (inputs.once)."""
    return once(messages(spark, options, COLUMNS, options.tag).where(_wanted(options)))


def _wanted(options: SearchOptions) -> Column:
    tests: list[Column] = []
    if options.key:
        tests.append(f.array_contains(f.split("keys", " "), options.key))
    if options.message_id:
        tests.append(f.col("msg_id") == options.message_id)
    if options.tag:
        tests.append(f.col("tags") == options.tag)
    if options.text:
        tests.append(f.contains(f.col("body"), f.lit(options.text.encode())))
    wanted = f.lit(True)
    for test in tests:
        wanted = wanted & test
    return wanted


def _hit(row: Row) -> Hit:
    body, is_base64 = readable(bytes(row.body))
    stored = moment(row.stored_ms)
    place = (row.topic, row.broker_name, row.queue_id, row.queue_offset)
    places = ",".join(row.places)
    return Hit(stored, *place, row.msg_id, row.tags, row.keys, body, is_base64, places)


def readable(body: bytes) -> tuple[str, bool]:
    """Return a body as text and False, or in base64 and True if it is not UTF-8."""
    try:
        return body.decode(), False
    except UnicodeDecodeError:
        return base64.b64encode(body).decode(), True
