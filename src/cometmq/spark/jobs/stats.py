"""Measures topics: rates, delays until storing, sizes, balance of queues, hot keys, and lag of
groups.

Messages are read once, only their headers and tags. A second pass reads only keys. The result is
written as one HTML file that needs no network, and one of JSON.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from pyspark.sql import functions as f

from cometmq.admin.views import moment
from cometmq.core.clock import SystemClock
from cometmq.spark.jobs.grouplag import GroupLag, group_lags
from cometmq.spark.jobs.inputs import Places, messages
from cometmq.spark.jobs.progress import Progress, silent, tasks_told
from cometmq.spark.jobs.statspage import page
from cometmq.spark.jobs.words import Word, span_ms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, Row, SparkSession

SHARES: Final = (50, 95, 99)
HEADS: Final = ("topic", "broker_name", "queue_id", "born_timestamp", "store_timestamp")
_DIMENSIONS: Final = ("topic", "queue", "tag", "bucket")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(Places):
    """Options of the job stats: the messages, the figures to compute, and the output folder."""

    output: Annotated[Path, Word("Where report.html and report.json go.")] = Path("stats")
    groups: Annotated[tuple[str, ...], Word("A group to measure; all of the topics' else.")] = ()
    bucket_ms: Annotated[int, Word("The grain of rates.", name="bucket", read=span_ms)] = 60_000
    hot_keys: Annotated[int, Word("How many hot keys to tell; 0 reads no keys.")] = 10
    tags: Annotated[bool, Word("Tell tags apart, too.")] = True


@dataclass(frozen=True, slots=True)
class Measured:
    """Messages of one topic, queue or tag. Lags are from birth to storing, in ms; sizes are those
    of records, in bytes. Both are given by percentile (``p50``) and maximum. ``per_s`` is the mean
    rate."""

    name: str
    messages: int
    bytes: int
    per_s: float
    first: str
    last: str
    lag_ms: dict[str, int]
    size_bytes: dict[str, int]


@dataclass(frozen=True, slots=True)
class Skew:
    """The balance of a topic's queues: the messages of the fullest queue divided by the mean."""

    topic: str
    queues: int
    fullest: str
    over_mean: float


@dataclass(frozen=True, slots=True)
class HotKey:
    """A key and the number of messages that have it."""

    topic: str
    key: str
    messages: int


@dataclass(frozen=True, slots=True)
class Report:
    """All measurements. ``rates`` are a topic's messages by bucket (ms since the epoch)."""

    topics: tuple[Measured, ...]
    queues: tuple[Measured, ...]
    tags: tuple[Measured, ...]
    skew: tuple[Skew, ...]
    hot_keys: tuple[HotKey, ...]
    groups: tuple[GroupLag, ...]
    bucket_ms: int
    rates: dict[str, dict[int, int]]
    html: str


def run(spark: SparkSession, options: Options, progress: Progress = silent) -> Report:
    """Measure topics and write the report. Raises BadOption, OSError, and the errors of reads."""
    places = options.named()
    with tasks_told(spark, "measure", progress):
        rows = _cube(spark, options).collect()
    hot: tuple[HotKey, ...] = ()
    if options.hot_keys:
        with tasks_told(spark, "keys", progress):
            hot = _hot_keys(spark, options)
    lags: tuple[GroupLag, ...] = ()
    if "live" in places:
        lags = group_lags(options.nameservers, options.topics, options.groups)
    queues = _measured(rows, "queue")
    report = Report(
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


def write(report: Report, output: Path) -> None:
    """Write report.html and report.json into a folder."""
    output.mkdir(parents=True, exist_ok=True)
    (output / "report.html").write_text(page(report, SystemClock().wall_ms()), encoding="utf-8")
    text = msgspec.json.format(msgspec.json.encode(report), indent=2)
    (output / "report.json").write_bytes(text)


def _cube(spark: SparkSession, options: Options) -> DataFrame:
    """Return all measurements but keys in one pass: a row for each topic, queue, tag and bucket."""
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


#: The grouping id has a 1 for every dimension that is not grouped by.
_GROUPED: Final = {"topic": 0b0111, "queue": 0b0011, "tag": 0b0101, "bucket": 0b0110}


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
    """Return the balance of each topic's queues, the most uneven topic first. Empty queues are not
    counted."""
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


def _hot_keys(spark: SparkSession, options: Options) -> tuple[HotKey, ...]:
    keys = messages(spark, options, ("topic", "keys")).where("keys is not null")
    each = keys.select("topic", f.explode(f.array_distinct(f.split("keys", " "))).alias("key"))
    counted = each.where("key <> ''").groupBy("topic", "key").count()
    rows = counted.orderBy(f.desc("count"), "topic", "key").limit(options.hot_keys).collect()
    return tuple(HotKey(row["topic"], row["key"], row["count"]) for row in rows)
