"""The report of the job stats as one HTML file: numbers, charts, tables; no script, no network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Final

from cometmq.admin.views import moment
from cometmq.spark.jobs.charts import amount, bars, lines

if TYPE_CHECKING:
    from cometmq.spark.jobs.stats import Measured, Report

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


def page(report: Report, made_ms: int) -> str:
    """Return the whole HTML file."""
    parts = [_head(report, made_ms), _section("Messages a second, as stored", "", _rates(report))]
    topics = report.topics[:ROWS]
    parts.append(_section("How late messages are stored", _LATE, _lags(topics)))
    sizes = [(each.name, each.size_bytes) for each in topics]
    parts.append(_section("Size of records", "Head, properties and body.", bars(sizes, "B")))
    parts.append(_section("Queues", _SKEW, _queues(report)))
    if any(not tag.name.endswith(" (no tag)") for tag in report.tags):
        parts.append(_section("Tags", "", _measured(report.tags)))
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
_LATE: Final = "From the producer's clock to the broker's; a producer whose clock is ahead shows 0."
_SKEW: Final = "Messages of each queue. Skew is the fullest queue over the mean of its topic."
_BEHIND: Final = "Messages not consumed yet, and the age of the oldest of them."


def _head(report: Report, made_ms: int) -> str:
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
    told = "".join(f"<div><b>{value}</b><span>{name}</span></div>" for value, name in numbers)
    times = f"{first[:_SECONDS]} to {last[:_SECONDS]} (UTC)"
    made = f"<p>{times if messages else _NONE}; made {moment(made_ms)[:_SECONDS]}</p>"
    return f'<h1>Message statistics</h1>{made}<div class="numbers">{told}</div>'


def _section(title: str, note: str, body: str) -> str:
    told = f"<p>{escape(note)}</p>" if note else ""
    return f"<section><h2>{escape(title)}</h2>{told}{body}</section>"


def _rates(report: Report) -> str:
    return lines(report.rates, report.bucket_ms) + _measured(report.topics)


def _lags(topics: Sequence[Measured]) -> str:
    return bars([(each.name, each.lag_ms) for each in topics], "ms")


def _queues(report: Report) -> str:
    chart = bars([(each.name, {"messages": each.messages}) for each in report.queues[:ROWS]], "")
    skew = [(s.topic, s.queues, s.fullest, f"{s.over_mean:.2f}") for s in report.skew[:ROWS]]
    return chart + _table(("topic", "queues", "fullest", "skew"), skew)


def _keys(report: Report) -> str:
    rows = [(f"{each.topic} {each.key}", {"messages": each.messages}) for each in report.hot_keys]
    return bars(rows, "")


def _groups(report: Report) -> str:
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


def _measured(rows: Sequence[Measured]) -> str:
    told = [
        (
            *(each.name, f"{each.messages:,}", f"{each.per_s:,}", f"{amount(each.bytes)}B"),
            *(f"{each.lag_ms[share]:,}" for share in ("p50", "p99")),
            *(each.first[:_SECONDS], each.last[:_SECONDS]),
        )
        for each in rows[:ROWS]
    ]
    left = len(rows) - len(told)
    note = f"<p class=note>and {left} more, in report.json</p>" if left else ""
    heads = ("", "messages", "a second", "size", "lag p50 ms", "p99", "first", "last")
    return _table(heads, told) + note


def _table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    found = [[str(cell) for cell in row] for row in rows]
    is_number = [
        bool(found) and all(row[at][:1].isdigit() and "-" not in row[at] for row in found)
        for at in range(len(heads))
    ]

    def row(cells: Sequence[str], kind: str) -> str:
        told = (
            f"<{kind}{' class=n' if right else ''}>{escape(cell)}</{kind}>"
            for cell, right in zip(cells, is_number, strict=True)
        )
        return f"<tr>{''.join(told)}</tr>"

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
