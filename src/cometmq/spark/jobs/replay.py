"""Sends messages of an archive, of store directories or of topics to a topic again.

The id of a message is derived from its original place, so a repeated replay sends the same ids. A
broker that drops repeated ids (``dropRepeatedIdsTopics``) keeps each message once. Options limit
the rate, and keep the order of each source queue or of each order key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeVar

from pyspark.sql import Observation
from pyspark.sql import functions as f

from cometmq.core.clock import SystemClock
from cometmq.message.properties import SHARDING_KEY
from cometmq.spark.jobs.inputs import IDENTITY, InputOptions, messages, once
from cometmq.spark.jobs.job import JobOption, Progress, progress_reported, silent
from cometmq.spark.jobs.reach import account_options, without_account
from cometmq.spark.options import BadOption

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")

COLUMNS: Final = (*IDENTITY, "broker_name", "keys", "tags", "body", "properties", "flag")
_PLACE: Final = ("topic", "broker_name", "queue_id", "queue_offset")
_SENT: Final = (*_PLACE, "body", "tags", "keys", "properties", "flag")
#: A task with a limited rate waits once it is this far ahead of its schedule.
_AHEAD_MS: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions(InputOptions):
    """Options of the job replay: the messages, their target, order and rate."""

    to: Annotated[str, JobOption("Target topic.", positional=True)]
    to_namesrv: Annotated[
        str, JobOption("Name servers of the target cluster, if it is another one.")
    ] = ""
    to_credentials: Annotated[
        str, JobOption("File with the account there; the one of the source is not used there.")
    ] = ""
    where: Annotated[
        str, JobOption("Only messages for which this SQL is true, such as tags = 'paid'.")
    ] = ""
    order: Annotated[
        Literal["none", "queue", "key"], JobOption("Keep the order of each source queue or key.")
    ] = "none"
    rate: Annotated[int, JobOption("Approximate limit of messages per second; 0: no limit.")] = 0
    dry_run: Annotated[bool, JobOption("Only count.")] = False

    def target_options(self) -> dict[str, str]:
        """Return the sink's options for account and TLS of the target. The account of the source is
        not used for another target. Raises BadOption."""
        found = self.access_options()
        if self.to_credentials or self.to_namesrv:
            found = without_account(found) | account_options(self.to_credentials)
        return found


@dataclass(frozen=True, slots=True)
class Source:
    """The chosen messages of one topic: their number, the size of their bodies in ``bytes``, and
    the first and last store time."""

    topic: str
    messages: int
    bytes: int
    first: str
    last: str


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """Result of a run to the topic ``to``. In a dry run ``sent`` is 0; in any other run ``sources``
    is empty. ``chosen`` counts each message once."""

    sources: tuple[Source, ...]
    chosen: int
    sent: int
    to: str


def run(spark: SparkSession, options: ReplayOptions, progress: Progress = silent) -> ReplayReport:
    """Send the messages, or only count them. Raises BadOption, and the sink's errors."""
    rows = chosen(spark, options)
    target = options.to_namesrv or options.nameservers
    if not target and not options.dry_run:
        raise BadOption("to-namesrv", "the target cluster is missing: give its name servers")
    if options.dry_run:
        with progress_reported(spark, "count", progress):
            sources = _counted(rows)
        return ReplayReport(sources, sum(each.messages for each in sources), 0, options.to)
    seen = Observation()
    ready = ordered(rows, options.order)
    if options.rate:
        ready = paced(ready, options.rate)
    with progress_reported(spark, "replay", progress):
        counted = ready.observe(seen, f.count("*").alias("sent"))
        send(counted, options.to, {"nameservers": target, **options.target_options()})
    sent = int(seen.get["sent"])
    return ReplayReport((), sent, sent, options.to)


def chosen(spark: SparkSession, options: ReplayOptions) -> DataFrame:
    """Return the messages to send, each once, with COLUMNS."""
    rows = messages(spark, options, COLUMNS)
    rows = once(rows) if len(options.named()) > 1 else rows.drop("place")
    return rows.where(options.where) if options.where else rows


def ordered(rows: DataFrame, order: str) -> DataFrame:
    """Return rows for the sink. To keep an order, add the column ``order_key``, and put all rows of
    a key in one task, in the order in which they were stored."""
    if order == "none":
        return rows.select(*_SENT)
    key = f.concat_ws("|", "topic", "broker_name", "queue_id")
    within = ["topic", "broker_name", "queue_id", "queue_offset"]
    if order == "key":
        # A message without a key has no order to keep, so its queue serves as the key.
        of_message = f.col("properties").getItem(SHARDING_KEY)
        key = f.coalesce(of_message, f.split("keys", " ").getItem(0), key)
        within = ["store_timestamp", *within]
    keyed = rows.withColumn("order_key", key)
    tasks = rows.sparkSession.sparkContext.defaultParallelism
    return (
        keyed.repartition(tasks, "order_key")
        .sortWithinPartitions(*within)
        .select(*_SENT, "order_key")
    )


def send(rows: DataFrame, topic: str, options: Mapping[str, str]) -> None:
    """Append rows to a topic. Their ids are derived from their original places."""
    writer = rows.write.format("rocketmq").mode("append").options(**options)
    writer.option("topic", topic).save()


def paced(rows: DataFrame, rate: int) -> DataFrame:
    """Return the same rows, delivered at about ``rate`` per second by all tasks together."""
    tasks = rows.sparkSession.sparkContext.defaultParallelism
    # Use an RDD: Spark's functions for Arrow batches need pandas, and speed does not matter here.
    found = rows.rdd.mapPartitions(pace(rate / tasks))
    return rows.sparkSession.createDataFrame(found, rows.schema, verifySchema=False)


def pace(per_s: float) -> Callable[[Iterable[T]], Iterator[T]]:
    """Return a function that yields its items at ``per_s`` per second."""

    def paced_things(things: Iterable[T]) -> Iterator[T]:
        clock, wait = SystemClock(), Event()
        start_ms = clock.monotonic_ms()
        for number, thing in enumerate(things):
            ahead_ms = start_ms + number * 1000 / per_s - clock.monotonic_ms()
            if ahead_ms > _AHEAD_MS:
                wait.wait(ahead_ms / 1000)
            yield thing

    return paced_things


def _counted(rows: DataFrame) -> tuple[Source, ...]:
    from cometmq.admin.views import moment

    stored = f.unix_millis("store_timestamp")
    counted = rows.groupBy("topic").agg(
        f.count("*").alias("n"),
        f.sum(f.length("body")).alias("bytes"),
        f.min(stored).alias("first"),
        f.max(stored).alias("last"),
    )
    return tuple(
        Source(row.topic, row.n, row.bytes, moment(row["first"]), moment(row["last"]))
        for row in counted.orderBy("topic").collect()
    )
