"""Measures topics: rates, delays until storing, sizes, balance of queues, hot keys, and lag of
groups.

The first pass over the messages reads only headers and tags, the second one only keys. The result
is written as an HTML file that needs no network, and as a JSON file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from pyspark.sql import functions as f

from cometmq.admin.api import Admin
from cometmq.admin.views import moment
from cometmq.core.clock import SystemClock
from cometmq.core.errors import BrokerRefused, RouteNotFound
from cometmq.spark.jobs.inputs import InputOptions, messages
from cometmq.spark.jobs.job import JobOption, Progress, progress_reported, silent, span_ms
from cometmq.spark.jobs.statsreport import GroupLag, HotKey, Measured, Skew, StatsReport, page

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

    from cometmq.client.blocking import Client
    from cometmq.protocol.bodies import ConsumeOffset

SHARES: Final = (50, 95, 99)
HEADS: Final = ("topic", "broker_name", "queue_id", "born_timestamp", "store_timestamp")
_DIMENSIONS: Final = ("topic", "queue", "tag", "bucket")

#: Spark's grouping id of each grouping set: a bit is 1 if its dimension is not grouped by.
_GROUPED: Final = {"topic": 0b0111, "queue": 0b0011, "tag": 0b0101, "bucket": 0b0110}


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsOptions(InputOptions):
    """Options of the job stats: the messages, the figures to compute, and the output folder."""

    output: Annotated[Path, JobOption("The folder for report.html and report.json.")] = Path(
        "stats"
    )
    groups: Annotated[
        tuple[str, ...], JobOption("A group to measure; the default is all groups of the topics.")
    ] = ()
    bucket_ms: Annotated[int, JobOption("Interval of the rates.", name="bucket", read=span_ms)] = (
        60_000
    )
    hot_keys: Annotated[int, JobOption("Number of hot keys to report; 0 reads no keys.")] = 10
    tags: Annotated[bool, JobOption("Also report each tag.")] = True


def run(spark: SparkSession, options: StatsOptions, progress: Progress = silent) -> StatsReport:
    """Measure topics and write the report. Raises BadOption, OSError, and the errors of reads."""
    inputs = options.named()
    with progress_reported(spark, "measure", progress):
        rows = _cube(spark, options).collect()
    hot: tuple[HotKey, ...] = ()
    if options.hot_keys:
        with progress_reported(spark, "keys", progress):
            hot = _hot_keys(spark, options)
    lags: tuple[GroupLag, ...] = ()
    if "live" in inputs:
        with options.connect(options.nameservers) as client:
            lags = group_lags(client, options.topics, options.groups)
    queues = _measured(rows, "queue")
    report = StatsReport(
        topics=_measured(rows, "topic"),
        queues=queues,
        tags=_measured(rows, "tag"),
        skew=skews(queues),
        hot_keys=hot,
        groups=lags,
        bucket_ms=options.bucket_ms,
        rates=_rates(rows),
        html=str(options.output / "report.html"),
    )
    write(report, options.output)
    return report


def write(report: StatsReport, output: Path) -> None:
    """Write report.html and report.json into a folder."""
    output.mkdir(parents=True, exist_ok=True)
    (output / "report.html").write_text(page(report, SystemClock().wall_ms()), encoding="utf-8")
    text = msgspec.json.format(msgspec.json.encode(report), indent=2)
    (output / "report.json").write_bytes(text)


def _cube(spark: SparkSession, options: StatsOptions) -> DataFrame:
    """Return all figures but those of keys, from one pass: a row for each topic, and for each
    queue, tag and time bucket of a topic."""
    columns = (*HEADS, "size_bytes", *(("tags",) if options.tags else ()))
    stored = f.unix_millis("store_timestamp")
    tag: Column = f.coalesce("tags", f.lit("")) if options.tags else f.lit("")
    found = messages(spark, options, columns).select(
        "topic",
        f.concat_ws("/", "broker_name", "queue_id").alias("queue"),
        tag.alias("tag"),
        (f.floor(stored / options.bucket_ms) * options.bucket_ms).alias("bucket"),
        stored.alias("stored"),
        f.greatest(stored - f.unix_millis("born_timestamp"), f.lit(0)).alias("lag"),
        "size_bytes",
    )
    sets = [["topic"], ["topic", "queue"], ["topic", "bucket"]]
    if options.tags:
        sets.append(["topic", "tag"])
    return found.groupingSets(sets, *_DIMENSIONS).agg(
        f.grouping_id(*_DIMENSIONS).alias("of"),
        f.count("*").alias("n"),
        f.sum("size_bytes").alias("bytes"),
        f.min("stored").alias("first"),
        f.max("stored").alias("last"),
        *_spread("lag"),
        *_spread("size_bytes"),
    )


def _spread(name: str) -> tuple[Column, ...]:
    shares = f.array(*(f.lit(share / 100) for share in SHARES))
    return (
        f.percentile_approx(name, shares, 1_000).alias(f"{name}_at"),
        f.max(name).alias(f"{name}_max"),
    )


def _measured(rows: Sequence[Row], dimension: str) -> tuple[Measured, ...]:
    chosen = [row for row in rows if row.of == _GROUPED[dimension]]
    found = [_one(row, dimension) for row in chosen]
    return tuple(sorted(found, key=lambda each: (-each.messages, each.name)))


def _one(row: Row, dimension: str) -> Measured:
    name = row.topic if dimension == "topic" else f"{row.topic} {row[dimension] or '(no tag)'}"
    return Measured(
        name=name,
        messages=row.n,
        bytes=row.bytes,
        per_s=round(row.n * 1000 / max(row["last"] - row["first"], 1_000), 1),
        first=moment(row["first"]),
        last=moment(row["last"]),
        lag_ms=_shares(row, "lag"),
        size_bytes=_shares(row, "size_bytes"),
    )


def _shares(row: Any, name: str) -> dict[str, int]:
    at = zip(SHARES, row[f"{name}_at"], strict=True)
    return {f"p{share}": int(value) for share, value in at} | {"max": int(row[f"{name}_max"])}


def _rates(rows: Sequence[Row]) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for row in sorted(
        (row for row in rows if row.of == _GROUPED["bucket"]), key=lambda r: r.bucket
    ):
        found.setdefault(row.topic, {})[int(row.bucket)] = row.n
    return found


def skews(queues: Sequence[Measured]) -> tuple[Skew, ...]:
    """Return the balance of each topic's queues, the most uneven topic first. Queues without
    messages are left out."""
    by_topic: dict[str, list[Measured]] = {}
    for queue in queues:
        by_topic.setdefault(queue.name.split(" ")[0], []).append(queue)
    found = []
    for topic, its in by_topic.items():
        fullest = max(its, key=lambda queue: queue.messages)
        mean = sum(queue.messages for queue in its) / len(its)
        name = fullest.name.split(" ")[1]
        found.append(Skew(topic, len(its), name, round(fullest.messages / mean, 2)))
    return tuple(sorted(found, key=lambda skew: (-skew.over_mean, skew.topic)))


def _hot_keys(spark: SparkSession, options: StatsOptions) -> tuple[HotKey, ...]:
    keys = messages(spark, options, ("topic", "keys")).where("keys is not null")
    each = keys.select("topic", f.explode(f.array_distinct(f.split("keys", " "))).alias("key"))
    counted = each.where("key <> ''").groupBy("topic", "key").count()
    rows = counted.orderBy(f.desc("count"), "topic", "key").limit(options.hot_keys).collect()
    return tuple(HotKey(row["topic"], row["key"], row["count"]) for row in rows)


def group_lags(
    client: Client, topics: Sequence[str], groups: Sequence[str] = ()
) -> tuple[GroupLag, ...]:
    """Return the lag of groups in topics, the largest first.

    If ``groups`` is empty, all groups of the topics are returned. Raises NotConnected and
    RequestTimedOut.
    """
    found = []
    admin = Admin(client.inner.session)
    for topic in topics:
        of_topic = client.wait(admin.groups_of(topic))
        for group in of_topic if not groups else [g for g in groups if g in of_topic]:
            progress = client.wait(admin.consumer_progress(group, topic))
            if progress:
                lags = {f"{q.broker_name}/{q.queue_id}": at for q, at in progress.items()}
                found.append(_lag(group, topic, lags, _behind_ms(client, admin, group, topic)))
    return tuple(sorted(found, key=lambda lag: (-lag.lag, lag.group, lag.topic)))


def _lag(
    group: str, topic: str, offsets: dict[str, ConsumeOffset], behind_ms: int | None
) -> GroupLag:
    lags = {queue: at.broker_offset - at.consumer_offset for queue, at in offsets.items()}
    worst = max(lags, key=lambda queue: lags[queue])
    return GroupLag(group, topic, sum(lags.values()), behind_ms, worst, lags[worst])


def _behind_ms(client: Client, admin: Admin, group: str, topic: str) -> int | None:
    try:
        spans = client.wait(admin.consumers.time_span(group, topic))
    except (BrokerRefused, RouteNotFound):
        return None  # an older broker does not support this request
    return max((max(span.delay_time, 0) for span in spans.values()), default=None)
