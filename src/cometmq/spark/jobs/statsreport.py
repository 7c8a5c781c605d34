"""The report of the job stats: its figures, and an HTML page of them with charts as inline SVG.

Lines over time and bars side by side are drawn. Colours come from the page's style (classes ``s0``
to ``s5``), so one drawing serves light and dark. Every mark has its exact value as a tooltip. The
page needs no network.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import Final

from cometmq.admin.views import moment

ROWS: Final = 20
WIDTH: Final = 860
SERIES: Final = 6
_LEFT: Final = 64
_HEIGHT: Final = 220
_BAR: Final = 22
_POINTS_MAX: Final = 240
_TICKS: Final = (1, 2, 2.5, 5, 10)
_NAME_CHARACTERS: Final = 34

#: The length of a moment's text up to its seconds; all are in UTC.
_SECONDS: Final = 19
_NONE: Final = "There are no messages"

_LATE: Final = (
    "From birth (producer's clock) to storage (broker's clock); 0 if the producer's clock is ahead."
)
_SKEW: Final = "Messages of each queue. Skew is the largest queue divided by the mean of its topic."
_BEHIND: Final = "Messages not consumed yet, and the age of the oldest of them."

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


def lines(series: Mapping[str, Mapping[int, int]], step_ms: int) -> str:
    """Return a chart of rates per second, one line per name, from counts by moment (ms since the
    epoch).

    There are at most SERIES lines; the smallest are added up as ``others``. A moment without a
    count is 0.
    """
    chosen = _largest(series)
    moments = [at for points in chosen.values() for at in points]
    if not moments:
        return "<p>Nothing in this time.</p>"
    start, stop = min(moments), max(moments) + step_ms
    width_ms = step_ms * max(math.ceil((stop - start) / step_ms / _POINTS_MAX), 1)
    rates = {name: _rates(points, start, stop, width_ms) for name, points in chosen.items()}
    top = nice(max(max(values) for values in rates.values()))
    count = len(next(iter(rates.values())))

    def x(at: int) -> float:
        return _LEFT + (WIDTH - _LEFT - 12) * (at + 0.5) / count

    def y(value: float) -> float:
        return 12 + (_HEIGHT - 36) * (1 - value / top)

    parts = [_grid(top, y)]
    for number, (name, values) in enumerate(rates.items()):
        points = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in enumerate(values))
        title = f"<title>{escape(name)}: at most {max(values):,.1f} a second</title>"
        mark = f'<polyline class="line s{number}" points="{points}">{title}</polyline>'
        if count == 1:
            dot = f'<circle class="dot s{number}" cx="{x(0):.1f}" cy="{y(values[0]):.1f}" r="4">'
            mark = f"{dot}{title}</circle>"
        parts.append(mark)
    for at in sorted({0, count // 2, count - 1}):
        anchor = "start" if at == 0 else "end" if at == count - 1 else "middle"
        label = _clock(start + at * width_ms)
        parts.append(_label(x(at), _HEIGHT - 4, label, anchor if count > 1 else "middle"))
    return _svg(_HEIGHT, parts) + _legend(list(rates))


def bars(rows: Sequence[tuple[str, Mapping[str, float]]], unit: str) -> str:
    """Return a chart of named groups of bars. A row's values are drawn over one another, with the
    smallest in front, as suits percentiles. The scale is logarithmic if the largest value is more
    than 1 000 times the smallest."""
    values = [value for _, found in rows for value in found.values()]
    if not values:
        return "<p>Nothing to show.</p>"
    top, least = max([*values, 1]), min((value for value in values if value > 0), default=1)
    is_log = top / least > 1_000
    names = list(rows[0][1])
    room = WIDTH - (320 if len(names) == 1 else 440)

    def length(value: float) -> float:
        share = math.log1p(value / least) / math.log1p(top / least) if is_log else value / top
        return float(room * share)

    parts: list[str] = []
    for at, (name, found) in enumerate(rows):
        up = at * _BAR + 4
        parts.append(_label(228, up + 13, short(name), "end", title=name))
        for number, (share, value) in sorted(
            enumerate(found.items()), key=lambda each: -each[1][1]
        ):
            title = f"<title>{escape(name)} {escape(share)}: {value:,.4g} {escape(unit)}</title>"
            parts.append(
                f'<rect class="bar s{number % SERIES}" x="236" y="{up}" height="{_BAR - 6}" '
                f'width="{max(length(value), 1):.1f}">{title}</rect>'
            )
        amounts = " / ".join(amount(value) for value in found.values())
        parts.append(
            _label(242 + length(max(found.values())), up + 13, f"{amounts} {unit}", "start")
        )
    legend = _legend(names) if len(names) > 1 else ""
    scale = "<p class=note>Logarithmic scale.</p>" if is_log else ""
    return _svg(len(rows) * _BAR + 8, parts) + legend + scale


def amount(value: float) -> str:
    """Return a number short enough for a label: 950, 12.3k, 4.5M."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= limit:
            return f"{value / (limit if unit != 'k' else 1e3):.1f}{unit}"
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def nice(value: float) -> float:
    """Return the smallest round number that is at least ``value``."""
    if value <= 0:
        return 1
    power: float = 10.0 ** math.floor(math.log10(value))
    return next(tick * power for tick in _TICKS if tick * power >= value * 0.999999)


def short(name: str) -> str:
    """Return a name, shortened in its middle if it is long."""
    if len(name) <= _NAME_CHARACTERS:
        return name
    half = _NAME_CHARACTERS // 2 - 1
    return f"{name[:half]}…{name[-half:]}"


def _largest(series: Mapping[str, Mapping[int, int]]) -> dict[str, Mapping[int, int]]:
    ordered = sorted(series, key=lambda name: (-sum(series[name].values()), name))
    if len(ordered) <= SERIES:
        return {name: series[name] for name in ordered}
    others: dict[int, int] = {}
    for name in ordered[SERIES - 1 :]:
        for at, count in series[name].items():
            others[at] = others.get(at, 0) + count
    found: dict[str, Mapping[int, int]] = {name: series[name] for name in ordered[: SERIES - 1]}
    return found | {f"{len(ordered) - SERIES + 1} others": others}


def _rates(points: Mapping[int, int], start: int, stop: int, width_ms: int) -> list[float]:
    found = [0] * math.ceil((stop - start) / width_ms)
    for at, count in points.items():
        found[(at - start) // width_ms] += count
    return [count * 1000 / width_ms for count in found]


def _grid(top: float, y: Callable[[float], float]) -> str:
    parts = []
    for share in (0, 0.25, 0.5, 0.75, 1):
        at = y(top * share)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - 12}" y1="{at}" y2="{at}"/>')
        parts.append(_label(_LEFT - 8, at + 4, amount(top * share), "end"))
    return "".join(parts)


def _label(x: float, y: float, text: str, anchor: str, title: str = "") -> str:
    tooltip = f"<title>{escape(title)}</title>" if title and title != text else ""
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f"<text {place}>{escape(text)}{tooltip}</text>"


def _clock(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")


def _legend(names: Sequence[str]) -> str:
    found = (
        f'<li><i class="s{number}"></i>{escape(short(name))}</li>'
        for number, name in enumerate(names)
    )
    return f'<ul class="legend">{"".join(found)}</ul>'


def _svg(height: int, parts: Sequence[str]) -> str:
    box = f'viewBox="0 0 {WIDTH} {height}" role="img"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {box}>{"".join(parts)}</svg>'
