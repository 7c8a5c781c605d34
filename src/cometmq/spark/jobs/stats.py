"""Measures topics: rates, delays until storing, sizes, balance of queues, hot keys, and lag of
groups.

One pass reads only the headers and tags of the messages, a second one only their keys. The result
is written as an HTML file that needs no network, and as a JSON file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from pyspark.sql import functions as f

from cometmq.admin.api import Admin
from cometmq.admin.views import moment
from cometmq.client.blocking import Client
from cometmq.core.clock import SystemClock
from cometmq.core.errors import BrokerRefused, RouteNotFound
from cometmq.spark.jobs.charts import amount, bars, lines
from cometmq.spark.jobs.inputs import Places, messages
from cometmq.spark.jobs.job import JobOption, Progress, progress_reported, silent, span_ms

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

    from cometmq.protocol.bodies import ConsumeOffset


@dataclass(frozen=True, slots=True)
class GroupLag:
    """The lag of a group in a topic: messages not consumed yet, the age of the oldest if the
    brokers report it, and the queue with the largest lag."""

    group: str
    topic: str
    lag: int
    behind_ms: int | None
    worst_queue: str
    worst_lag: int


def group_lags(
    nameservers: str, topics: Sequence[str], groups: Sequence[str] = ()
) -> tuple[GroupLag, ...]:
    """Return the lag of groups in topics, the largest first. If no group is named, return all
    groups of the topics.

    Raises NotConnected and RequestTimedOut.
    """
    found = []
    with Client(nameservers) as client:
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


ROWS: Final = 20
_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1c2530; --soft: #5d6b7a; --paper: #fbfbf9;
  --card: #fff; --rule: #dfe3e8; --c0: #1f6feb; --c1: #d97706; --c2: #15803d; --c3: #b4236b;
  --c4: #6d4bd8; --c5: #64748b; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --soft: #9aa7b5; --paper: #12161c;
  --card: #1a2029; --rule: #313a46; --c0: #6cb0ff; --c1: #f5b14c; --c2: #57cc81; --c3: #f587b9;
  --c4: #b19cff; --c5: #94a3b8; } }
* { box-sizing: border-box }
body { margin: 0 auto; padding: 2rem 1.2rem 4rem; max-width: 62rem; background: var(--paper);
  color: var(--ink); font: 15px/1.5 system-ui, "DejaVu Sans", sans-serif }
h1 { font-size: 1.6rem; margin: 0 } h2 { font-size: 1.1rem; margin: 0 0 .6rem }
p { margin: .2rem 0 .6rem; color: var(--soft) } .note { font-size: .8rem; margin: 0 }
section { background: var(--card); border: 1px solid var(--rule); border-radius: 10px;
  padding: 1.1rem 1.2rem; margin-top: 1.2rem; overflow-x: auto }
.numbers { display: flex; flex-wrap: wrap; gap: .4rem 2.4rem; margin-top: 1rem }
.numbers b { display: block; font-size: 1.5rem; font-variant-numeric: tabular-nums }
.numbers span { color: var(--soft); font-size: .85rem }
table { border-collapse: collapse; width: 100%; font-size: .85rem; margin-top: .8rem }
th, td { text-align: left; padding: .25rem .9rem .25rem 0; border-bottom: 1px solid var(--rule) }
th { color: var(--soft); font-weight: 600 } td { overflow-wrap: anywhere }
th.n, td.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
svg { display: block; width: 100%; height: auto } svg text { font-size: 12px; fill: var(--soft) }
.grid { stroke: var(--rule); stroke-width: 1 }
.line { fill: none; stroke: var(--c); stroke-width: 2; stroke-linejoin: round }
.dot, .bar { fill: var(--c) } .bar { rx: 3px }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; padding: 0;
  margin: .5rem 0 0; font-size: .85rem; color: var(--soft) }
.legend i { display: inline-block; width: .8rem; height: .8rem; border-radius: 3px;
  margin-right: .4rem; background: var(--c); vertical-align: -1px }
.s0 { --c: var(--c0) } .s1 { --c: var(--c1) } .s2 { --c: var(--c2) } .s3 { --c: var(--c3) }
.s4 { --c: var(--c4) } .s5 { --c: var(--c5) }
"""


def page(report: StatsReport, made_ms: int) -> str:
    """Return the whole HTML file."""
    parts = [
        _head(report, made_ms),
        _section("Messages stored per second", "", _rates_section(report)),
    ]
    topics = report.topics[:ROWS]
    parts.append(_section("Delay from birth to storage", _LATE, _lags(topics)))
    sizes = [(each.name, each.size_bytes) for each in topics]
    parts.append(_section("Size of records", "Head, properties and body.", bars(sizes, "B")))
    parts.append(_section("Queues", _SKEW, _queues(report)))
    if any(not tag.name.endswith(" (no tag)") for tag in report.tags):
        parts.append(_section("Tags", "", _measured_section(report.tags)))
    if report.hot_keys:
        parts.append(_section("Hot keys", "Messages that carry a key.", _keys(report)))
    if report.groups:
        parts.append(_section("Consumer groups", _BEHIND, _groups(report)))
    head = f"<meta charset=utf-8><title>Message statistics</title><style>{_STYLE}</style>"
    view = '<meta name=viewport content="width=device-width,initial-scale=1">'
    body = f"<body>{''.join(parts)}</body>"
    return f"<!doctype html><html lang=en><head>{view}{head}</head>{body}</html>"


_NONE: Final = "There are no messages"
#: The length of a moment's text up to its seconds; all are in UTC.
_SECONDS: Final = 19
_LATE: Final = (
    "From birth (producer's clock) to storage (broker's clock); 0 if the producer's clock is ahead."
)
_SKEW: Final = "Messages of each queue. Skew is the largest queue divided by the mean of its topic."
_BEHIND: Final = "Messages not consumed yet, and the age of the oldest of them."


def _head(report: StatsReport, made_ms: int) -> str:
    messages = sum(topic.messages for topic in report.topics)
    size = sum(topic.bytes for topic in report.topics)
    first = min((topic.first for topic in report.topics), default="")
    last = max((topic.last for topic in report.topics), default="")
    lag = sum(group.lag for group in report.groups)
    numbers = [
        (f"{messages:,}", "messages"),
        (f"{amount(size)}B", "stored"),
        (f"{len(report.topics)}", "topics"),
        (f"{len(report.queues)}", "queues"),
        (f"{lag:,}", "messages not consumed"),
    ]
    markup = "".join(f"<div><b>{value}</b><span>{name}</span></div>" for value, name in numbers)
    times = f"{first[:_SECONDS]} to {last[:_SECONDS]} (UTC)"
    made = f"<p>{times if messages else _NONE}; made {moment(made_ms)[:_SECONDS]}</p>"
    return f'<h1>Message statistics</h1>{made}<div class="numbers">{markup}</div>'


def _section(title: str, note: str, body: str) -> str:
    markup = f"<p>{escape(note)}</p>" if note else ""
    return f"<section><h2>{escape(title)}</h2>{markup}{body}</section>"


def _rates_section(report: StatsReport) -> str:
    return lines(report.rates, report.bucket_ms) + _measured_section(report.topics)


def _lags(topics: Sequence[Measured]) -> str:
    return bars([(each.name, each.lag_ms) for each in topics], "ms")


def _queues(report: StatsReport) -> str:
    chart = bars([(each.name, {"messages": each.messages}) for each in report.queues[:ROWS]], "")
    skew = [(s.topic, s.queues, s.fullest, f"{s.over_mean:.2f}") for s in report.skew[:ROWS]]
    return chart + _table(("topic", "queues", "fullest", "skew"), skew)


def _keys(report: StatsReport) -> str:
    rows = [(f"{each.topic} {each.key}", {"messages": each.messages}) for each in report.hot_keys]
    return bars(rows, "")


def _groups(report: StatsReport) -> str:
    rows = [
        (
            *(each.group, each.topic, f"{each.lag:,}"),
            "?" if each.behind_ms is None else span(each.behind_ms),
            f"{each.worst_lag:,} in {each.worst_queue}",
        )
        for each in report.groups[:ROWS]
    ]
    chart = bars([(f"{g.group} {g.topic}", {"lag": g.lag}) for g in report.groups[:ROWS]], "")
    return chart + _table(("group", "topic", "lag", "behind", "worst queue"), rows)


def _measured_section(rows: Sequence[Measured]) -> str:
    markup = [
        (
            *(each.name, f"{each.messages:,}", f"{each.per_s:,}", f"{amount(each.bytes)}B"),
            *(f"{each.lag_ms[share]:,}" for share in ("p50", "p99")),
            *(each.first[:_SECONDS], each.last[:_SECONDS]),
        )
        for each in rows[:ROWS]
    ]
    left = len(rows) - len(markup)
    note = f"<p class=note>and {left} more, in report.json</p>" if left else ""
    heads = ("", "messages", "a second", "size", "lag p50 ms", "p99", "first", "last")
    return _table(heads, markup) + note


def _table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    found = [[str(cell) for cell in row] for row in rows]
    is_number = [
        bool(found) and all(row[at][:1].isdigit() and "-" not in row[at] for row in found)
        for at in range(len(heads))
    ]

    def row(cells: Sequence[str], kind: str) -> str:
        markup = (
            f"<{kind}{' class=n' if right else ''}>{escape(cell)}</{kind}>"
            for cell, right in zip(cells, is_number, strict=True)
        )
        return f"<tr>{''.join(markup)}</tr>"

    return f"<table>{row(heads, 'th')}{''.join(row(cells, 'td') for cells in found)}</table>"


def span(span_ms: int) -> str:
    """Return a span of time in its two largest units: 1 d 4 h, 3 min 20 s."""
    left_s = span_ms // 1000
    if not left_s:
        return f"{span_ms} ms"
    found: list[tuple[int, str]] = []
    for size_s, unit in ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")):
        count, left_s = divmod(left_s, size_s)
        if count or found:
            found.append((count, unit))
    return " ".join(f"{count} {unit}" for count, unit in found[:2] if count)


SHARES: Final = (50, 95, 99)
HEADS: Final = ("topic", "broker_name", "queue_id", "born_timestamp", "store_timestamp")
_DIMENSIONS: Final = ("topic", "queue", "tag", "bucket")


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsOptions(Places):
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
class StatsReport:
    """All measurements.

    ``rates`` maps each topic to its message counts by bucket (its start, ms since the epoch).
    ``html`` is the path of report.html.
    """

    topics: tuple[Measured, ...]
    queues: tuple[Measured, ...]
    tags: tuple[Measured, ...]
    skew: tuple[Skew, ...]
    hot_keys: tuple[HotKey, ...]
    groups: tuple[GroupLag, ...]
    bucket_ms: int
    rates: dict[str, dict[int, int]]
    html: str


def run(spark: SparkSession, options: StatsOptions, progress: Progress = silent) -> StatsReport:
    """Measure topics and write the report. Raises BadOption, OSError, and the errors of reads."""
    places = options.named()
    with progress_reported(spark, "measure", progress):
        rows = _cube(spark, options).collect()
    hot: tuple[HotKey, ...] = ()
    if options.hot_keys:
        with progress_reported(spark, "keys", progress):
            hot = _hot_keys(spark, options)
    lags: tuple[GroupLag, ...] = ()
    if "live" in places:
        lags = group_lags(options.nameservers, options.topics, options.groups)
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


def _hot_keys(spark: SparkSession, options: StatsOptions) -> tuple[HotKey, ...]:
    keys = messages(spark, options, ("topic", "keys")).where("keys is not null")
    each = keys.select("topic", f.explode(f.array_distinct(f.split("keys", " "))).alias("key"))
    counted = each.where("key <> ''").groupBy("topic", "key").count()
    rows = counted.orderBy(f.desc("count"), "topic", "key").limit(options.hot_keys).collect()
    return tuple(HotKey(row["topic"], row["key"], row["count"]) for row in rows)
