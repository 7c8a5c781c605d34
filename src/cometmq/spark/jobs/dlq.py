"""Reports the dead letters of a group (counts, topics, retries, times) and sends chosen ones again.

A letter that is sent again has an id derived from its place in the dead-letter queue. Before
sending, the letters' topics are searched for these ids, and a letter that is found is not sent
again. This does not depend on brokers that drop repeated ids. After sending, the topics are
searched again, and the report states how many letters are missing. All consumer groups of a topic
receive letters that are sent again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Final

from pyspark.sql import functions as f

from cometmq.admin.api import Admin
from cometmq.admin.views import moment
from cometmq.core.errors import RouteNotFound
from cometmq.core.plural import plural
from cometmq.message.names import DLQ_PREFIX, RETRY_PREFIX
from cometmq.message.properties import (
    DLQ_ORIGIN_MESSAGE_ID,
    DLQ_ORIGIN_TOPIC,
    ORIGIN_MESSAGE_ID,
    RETRY_TOPIC,
)
from cometmq.protocol.bodies import PERM_READ, PERM_WRITE, readable
from cometmq.spark.jobs.inputs import InputOptions, read_live
from cometmq.spark.jobs.job import JobOption, Progress, progress_reported, silent
from cometmq.spark.jobs.reach import Reach
from cometmq.spark.jobs.search import readable as body_text
from cometmq.spark.options import BadOption, moment_ms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, Row, SparkSession


COLUMNS: Final = (
    *("topic", "broker_name", "queue_id", "queue_offset", "msg_id", "keys", "tags", "body"),
    *("properties", "born_timestamp", "store_timestamp", "reconsume_times", "flag"),
)
_KNOWN: Final = "redrive_id string"
_SENT: Final = ("body", "tags", "keys", "properties", "flag")


@dataclass(frozen=True, slots=True, kw_only=True)
class DlqOptions(Reach):
    """The group, the letters to choose, and whether to send them again."""

    nameservers: str
    group: Annotated[str, JobOption("The consumer group.", positional=True)]
    key: Annotated[str, JobOption("Only dead letters with this key.")] = ""
    message_id: Annotated[str, JobOption("Only the dead letter with this id or original id.")] = ""
    where: Annotated[
        str,
        JobOption(
            "Only dead letters for which this SQL is true; columns as in the source, and origin."
        ),
    ] = ""
    since_ms: Annotated[
        int | None,
        JobOption(
            "Only dead letters from this time: ISO 8601 or ms.", name="since", read=moment_ms
        ),
    ] = None
    until_ms: Annotated[
        int | None, JobOption("Only dead letters before this time.", name="until", read=moment_ms)
    ] = None
    limit: Annotated[int, JobOption("Number of dead letters to list, newest first.")] = 20
    redrive: Annotated[bool, JobOption("Send the selected dead letters to their topics again.")] = (
        False
    )
    make_readable: Annotated[
        bool, JobOption("Make a write-only dead-letter topic readable first.")
    ] = False


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter. ``dead`` is the time when it became one. ``redriven`` means that its topic has
    it again."""

    dead: str
    topic: str | None
    id: str
    keys: str | None
    tag: str | None
    retries: int
    redriven: bool
    body: str


@dataclass(frozen=True, slots=True)
class Origin:
    """The dead letters of one topic. ``after`` maps a number of retries, as text, to the number of
    letters with these retries. ``why`` has the likely reasons."""

    topic: str
    letters: int
    first: str
    last: str
    after: dict[str, int]
    why: str


@dataclass(frozen=True, slots=True)
class DlqReport:
    """Result of a run. ``chosen`` of all ``dead`` letters are counted in ``origins``; ``letters``
    lists the newest of them.

    Of the chosen letters, ``before`` had been sent again in earlier runs, and ``sent`` were sent in
    this run. ``lost`` letters cannot be sent, because their topic was not recorded. ``missing``
    letters were sent and are not in their topic; any value but 0 is an error. ``waiting`` is the
    number of pending retries.
    """

    LINES: ClassVar[str] = "letters"

    letters: tuple[Letter, ...]
    origins: tuple[Origin, ...]
    dead: int
    chosen: int
    waiting: int
    before: int
    sent: int
    lost: int
    missing: int
    ok: bool


def run(spark: SparkSession, options: DlqOptions, progress: Progress = silent) -> DlqReport:
    """Report the dead letters, and send the chosen ones again if requested.

    Raises BadOption if the topic may not be read, RouteNotFound if letters are to be sent to a
    topic that is gone.
    """
    dead, waiting = _counts(options)
    if not dead:
        return DlqReport((), (), 0, 0, waiting, 0, 0, 0, 0, ok=True)
    found = _read(spark, options).cache()
    try:
        with progress_reported(spark, "letters", progress):
            summary = _summary(found)
        origins = [row.origin for row in summary if row.origin is not None]
        topics = _existing(options, origins)
        gone = [topic for topic in origins if topic not in topics]
        if gone and options.redrive:
            raise RouteNotFound(
                gone[0], "create it, or select dead letters of other topics with --where"
            )
        first_ms = min((row["first"] for row in summary), default=0)
        there = _there(spark, options, found, topics, first_ms)
        before, sent, missing = len(there), 0, 0
        if options.redrive:
            with progress_reported(spark, "re-drive", progress):
                sent = _send(found, options, there)
            with progress_reported(spark, "check", progress):
                there = _there(spark, options, found, topics, first_ms)
            missing = before + sent - len(there)
        rows = found.withColumn("dead_ms", f.unix_millis("store_timestamp"))
        listed = rows.orderBy(f.desc("dead_ms"), "queue_offset").limit(options.limit).collect()
    finally:
        found.unpersist()
    return DlqReport(
        letters=tuple(_letter(row, there) for row in listed),
        origins=_origins(summary),
        dead=dead,
        chosen=sum(row.n for row in summary),
        waiting=waiting,
        before=before,
        sent=sent,
        lost=sum(row.n for row in summary if row.origin is None),
        missing=missing,
        ok=missing == 0,
    )


def dead_letters(group: str) -> str:
    """Return the topic of a group's dead letters."""
    return DLQ_PREFIX + group


def retries(group: str) -> str:
    """Return the retry topic of a group."""
    return RETRY_PREFIX + group


def with_origin(rows: DataFrame) -> DataFrame:
    """Return dead letters with added columns: ``origin`` (the topic to which the message was sent;
    null if no broker recorded it), ``origin_id`` (the id there) and ``redrive_id``."""
    of = f.col("properties")
    return rows.withColumns(
        {
            "origin": f.coalesce(of[DLQ_ORIGIN_TOPIC], of[RETRY_TOPIC]),
            "origin_id": f.coalesce(of[DLQ_ORIGIN_MESSAGE_ID], of[ORIGIN_MESSAGE_ID]),
            "redrive_id": redrive_id(),
        }
    )


def redrive_id() -> Column:
    """Return the message id that a dead letter gets each time it is sent again.

    The id is derived from the letter's place in the dead-letter queue. It has the form of a
    client's id, with a loopback address.
    """
    place = f.concat_ws("|", "topic", "broker_name", "queue_id", "queue_offset")
    digest = f.upper(f.sha2(place.cast("binary"), 256))
    return f.concat(
        f.lit("7F"), f.substring(digest, 1, 18), f.lit("00000000"), f.substring(digest, 19, 4)
    )


def why(reconsume_times: int, most: int) -> str:
    """Return the likely reason why a message is dead, from the number of times it was sent back.
    ``most`` is the highest number in the group."""
    if reconsume_times <= 0:
        return "sent by a producer, or sent back without a retry count"
    if reconsume_times < most:
        retries = plural(reconsume_times, "retry", "retries")
        return f"given up after {retries}: the consumer requested no further one"
    return f"failed {plural(reconsume_times, 'retry', 'retries')}, the group's limit"


def chosen(rows: DataFrame, key: str, message_id: str, where: str) -> DataFrame:
    """Return the letters selected by a key, an id (of the letter or of the original message) and
    SQL."""
    if key:
        rows = rows.where(f.array_contains(f.split("keys", " "), key))
    if message_id:
        named = (f.col("msg_id") == message_id) | (f.col("origin_id") == message_id)
        rows = rows.where(f.coalesce(named, f.lit(False)))
    return rows.where(where) if where else rows


def unreadable(topic: str, nameservers: str) -> BadOption:
    """Return the error for a topic that consumers may not read, with the remedy."""
    return BadOption(
        "group",
        f"{topic} is write-only, as old brokers create it: make it readable with --make-readable, "
        f"or with mqadmin updateTopicPerm -n '{nameservers}' -t '{topic}' -p 6",
    )


def _counts(options: DlqOptions) -> tuple[int, int]:
    """Return the number of dead letters on the brokers, and of retries not delivered to the group
    yet. With ``make_readable``, make a write-only topic readable first; else raise BadOption for
    it."""
    topic = dead_letters(options.group)
    with options.connect(options.nameservers) as client:
        admin = Admin(client.inner.session)
        waiting = client.wait(admin.consumer_progress(options.group, retries(options.group)))
        lag = sum(at.broker_offset - at.consumer_offset for at in waiting.values())
        try:
            route = client.wait(admin.topic_route(topic))
        except RouteNotFound:
            return 0, lag
        hidden = [data.broker_name for data in route.queue_datas if not readable(data.perm)]
        if hidden and not options.make_readable:
            raise unreadable(topic, options.nameservers)
        for data in route.queue_datas:
            if data.broker_name in hidden:
                change = admin.create_topic(
                    topic,
                    queues=max(data.read_queue_nums, data.write_queue_nums),
                    perm=PERM_READ | PERM_WRITE,
                    brokers=[data.broker_name],
                )
                client.wait(change)
        held = client.wait(admin.topic_stats(topic))
        return sum(each.max_offset - each.min_offset for each in held.values()), lag


def _existing(options: DlqOptions, topics: Sequence[str]) -> list[str]:
    """Return those of the topics that still exist."""
    with options.connect(options.nameservers) as client:
        known = set(client.wait(Admin(client.inner.session).list_topics()))
    return [topic for topic in topics if topic in known]


def _read(spark: SparkSession, options: DlqOptions) -> DataFrame:
    inputs = replace(
        _inputs(options),
        topics=(dead_letters(options.group),),
        since_ms=options.since_ms,
        until_ms=options.until_ms,
    )
    rows = with_origin(read_live(spark, inputs, COLUMNS))
    return chosen(rows, options.key, options.message_id, options.where)


def _inputs(options: DlqOptions) -> InputOptions:
    """Return the cluster as an input, with the options to connect."""
    return InputOptions(nameservers=options.nameservers, read_options=options.source_options())


def _summary(found: DataFrame) -> list[Row]:
    stored = f.unix_millis("store_timestamp")
    by_count = found.groupBy("origin", "reconsume_times").agg(
        f.count("*").alias("n"), f.min(stored).alias("first"), f.max(stored).alias("last")
    )
    return (
        by_count.groupBy("origin")
        .agg(
            f.sum("n").alias("n"),
            f.min("first").alias("first"),
            f.max("last").alias("last"),
            f.map_from_entries(
                f.sort_array(f.collect_list(f.struct("reconsume_times", "n")))
            ).alias("after"),
        )
        .orderBy(f.desc("n"), "origin")
        .collect()
    )


def _origins(summary: Sequence[Row]) -> tuple[Origin, ...]:
    most = max((times for row in summary for times in row["after"]), default=0)
    found = []
    for row in summary:
        after: dict[int, int] = row["after"]
        reasons = [f"{count}: {why(times, most)}" for times, count in after.items()]
        histogram = {plural(times, "retry", "retries"): count for times, count in after.items()}
        times = (moment(row["first"]), moment(row["last"]))
        found.append(Origin(row.origin or "?", row.n, *times, histogram, "; ".join(reasons)))
    return tuple(found)


def _there(
    spark: SparkSession, options: DlqOptions, found: DataFrame, topics: Sequence[str], first_ms: int
) -> set[str]:
    """Return the re-drive ids of the chosen letters that their topics hold."""
    if not topics:
        return set()
    inputs = replace(_inputs(options), topics=tuple(topics), since_ms=first_ms)
    held = read_live(spark, inputs, ("topic", "msg_id")).distinct()
    wanted = found.select(f.col("origin").alias("topic"), f.col("redrive_id").alias("msg_id"))
    rows = held.join(wanted, ["topic", "msg_id"], "left_semi").collect()
    return {row.msg_id for row in rows}


def _send(found: DataFrame, options: DlqOptions, there: set[str]) -> int:
    """Send the letters whose id is not in their topic yet. Return their number."""
    rows = found.where(f.col("origin").isNotNull())
    if there:
        known = found.sparkSession.createDataFrame([(each,) for each in there], _KNOWN)
        rows = rows.join(known, "redrive_id", "left_anti")
    count = rows.count()
    if count:
        kept = (*_SENT, f.col("origin").alias("topic"), f.col("redrive_id").alias("message_id"))
        writer = rows.select(*kept).write.format("rocketmq").mode("append")
        writer = writer.option("nameservers", options.nameservers)
        writer.options(**options.access_options()).save()
    return count


def _letter(row: Row, there: set[str]) -> Letter:
    return Letter(
        dead=moment(row.dead_ms),
        topic=row.origin,
        id=row.msg_id,
        keys=row["keys"],
        tag=row.tags,
        retries=row.reconsume_times,
        redriven=row.redrive_id in there,
        body=body_text(bytes(row.body))[0],
    )
