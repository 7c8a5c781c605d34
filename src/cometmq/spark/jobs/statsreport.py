"""The report of the job stats: the classes of its figures, and an HTML page that shows them.

The page is made from ``templates/statistics.html``. Its charts are inline SVG, so it needs no
network.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from cometmq.admin.views import moment
from cometmq.spark.jobs.charts import BarChart, LineChart, amount, bar_chart, line_chart

ROWS: Final = 20

#: Length of the text of a time up to its seconds. All times are in UTC.
_SECONDS: Final = 19
_NONE: Final = "There are no messages"

_LATE: Final = (
    "From birth (producer's clock) to storage (broker's clock); 0 if the producer's clock is ahead."
)
_SKEW: Final = "Messages of each queue. Skew is the largest queue divided by the mean of its topic."
_BEHIND: Final = "Messages not consumed yet, and the age of the oldest of them."


@dataclass(frozen=True, slots=True)
class Measured:
    """Figures of one topic, queue or tag. Lags are from the producer's to the store time; sizes are
    those of records. Both are by percentile (``p50``) and maximum. ``per_s`` is the mean rate."""

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
class GroupLag:
    """The lag of a group in a topic: messages not consumed yet, the age of the oldest if the
    brokers report it, and the queue with the largest lag."""

    group: str
    topic: str
    lag: int
    behind_ms: int | None
    worst_queue: str
    worst_lag: int


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


@dataclass(frozen=True, slots=True)
class _Table:
    """A table of the page. ``numbers`` tells for each column whether it has numbers. ``left`` is
    the number of rows that are not shown."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Sequence[bool]
    left: int = 0


@dataclass(frozen=True, slots=True)
class _Section:
    """A part of the page: a title, and a note, charts and a table if it has them."""

    title: str
    note: str = ""
    lines: LineChart | None = None
    bars: BarChart | None = None
    table: _Table | None = None


def page(report: StatsReport, made_ms: int) -> str:
    """Return the whole HTML file."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    templates = Environment(
        loader=PackageLoader("cometmq.spark.jobs"), undefined=StrictUndefined,
        autoescape=True, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    return templates.get_template("statistics.html").render(
        times=_times(report),
        made=moment(made_ms)[:_SECONDS],
        numbers=_numbers(report),
        sections=_sections(report),
    )


def _times(report: StatsReport) -> str:
    if not any(topic.messages for topic in report.topics):
        return _NONE
    first = min(topic.first for topic in report.topics)
    last = max(topic.last for topic in report.topics)
    return f"{first[:_SECONDS]} to {last[:_SECONDS]} (UTC)"


def _numbers(report: StatsReport) -> list[tuple[str, str]]:
    return [
        (f"{sum(topic.messages for topic in report.topics):,}", "messages"),
        (f"{amount(sum(topic.bytes for topic in report.topics))}B", "stored"),
        (f"{len(report.topics)}", "topics"),
        (f"{len(report.queues)}", "queues"),
        (f"{sum(group.lag for group in report.groups):,}", "messages not consumed"),
    ]


def _sections(report: StatsReport) -> list[_Section]:
    topics = report.topics[:ROWS]
    lags = bar_chart([(each.name, each.lag_ms) for each in topics], "ms")
    sizes = bar_chart([(each.name, each.size_bytes) for each in topics], "B")
    rates = line_chart(report.rates, report.bucket_ms)
    found = [
        _Section("Messages stored per second", lines=rates, table=_measured(report.topics)),
        _Section("Delay from birth to storage", _LATE, bars=lags),
        _Section("Size of records", "Head, properties and body.", bars=sizes),
        _queues(report),
    ]
    if any(not tag.name.endswith(" (no tag)") for tag in report.tags):
        found.append(_Section("Tags", table=_measured(report.tags)))
    if report.hot_keys:
        keys = [(f"{each.topic} {each.key}", {"messages": each.messages})
                for each in report.hot_keys]  # fmt: skip
        found.append(_Section("Hot keys", "Messages that carry a key.", bars=bar_chart(keys, "")))
    if report.groups:
        found.append(_groups(report))
    return found


def _queues(report: StatsReport) -> _Section:
    bars = [(each.name, {"messages": each.messages}) for each in report.queues[:ROWS]]
    skew = [
        (each.topic, str(each.queues), each.fullest, f"{each.over_mean:.2f}")
        for each in report.skew[:ROWS]
    ]
    table = _table(("topic", "queues", "fullest", "skew"), skew)
    return _Section("Queues", _SKEW, bars=bar_chart(bars, ""), table=table)


def _groups(report: StatsReport) -> _Section:
    shown = report.groups[:ROWS]
    rows = [
        (
            *(each.group, each.topic, f"{each.lag:,}"),
            "?" if each.behind_ms is None else span(each.behind_ms),
            f"{each.worst_lag:,} in {each.worst_queue}",
        )
        for each in shown
    ]
    bars = bar_chart([(f"{each.group} {each.topic}", {"lag": each.lag}) for each in shown], "")
    table = _table(("group", "topic", "lag", "behind", "worst queue"), rows)
    return _Section("Consumer groups", _BEHIND, bars=bars, table=table)


def _measured(rows: Sequence[Measured]) -> _Table:
    cells = [
        (
            *(each.name, f"{each.messages:,}", f"{each.per_s:,}", f"{amount(each.bytes)}B"),
            *(f"{each.lag_ms[share]:,}" for share in ("p50", "p99")),
            *(each.first[:_SECONDS], each.last[:_SECONDS]),
        )
        for each in rows[:ROWS]
    ]
    heads = ("", "messages", "a second", "size", "lag p50 ms", "p99", "first", "last")
    return _table(heads, cells, len(rows) - len(cells))


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], left: int = 0) -> _Table:
    found = list(rows)
    numbers = [
        bool(found) and all(row[at][:1].isdigit() and "-" not in row[at] for row in found)
        for at in range(len(heads))
    ]
    return _Table(heads, found, numbers, left)


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
