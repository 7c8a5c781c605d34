"""The charts of the report of the job stats: computes the positions of lines, bars and labels.
``templates/charts.html`` draws them as SVG.

Colours come from the page's style (classes ``s0`` to ``s5``), so that the same SVG works in light
and dark mode. Lines and bars have tooltips with their values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

#: Width of a chart. All sizes and positions are in SVG units.
WIDTH: Final = 860
SERIES: Final = 6
_LEFT: Final = 64
_RIGHT: Final = WIDTH - 12
_HEIGHT: Final = 220
_BAR: Final = 22
_BARS_LEFT: Final = 236
_POINTS_MAX: Final = 240
_TICKS: Final = (1, 2, 2.5, 5, 10)
_NAME_CHARACTERS: Final = 34

Anchor = Literal["start", "middle", "end"]


@dataclass(frozen=True, slots=True)
class Label:
    """A text of a chart. ``title`` is its tooltip, if the text was shortened."""

    x: float
    y: float
    text: str
    anchor: Anchor
    title: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """A line through points, or a dot if there is only one."""

    title: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class LineChart:
    """Lines over time. ``grid`` has the y positions of horizontal lines."""

    lines: tuple[Line, ...] = ()
    labels: tuple[Label, ...] = ()
    grid: tuple[float, ...] = ()
    legend: tuple[str, ...] = ()
    width: int = WIDTH
    height: int = _HEIGHT
    left: int = _LEFT
    right: int = _RIGHT


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar from the left edge. ``colour`` is the number of a colour, ``y`` the upper edge."""

    title: str
    colour: int
    y: int
    width: float


@dataclass(frozen=True, slots=True)
class BarChart:
    """Horizontal bars, one row per name."""

    bars: tuple[Bar, ...] = ()
    labels: tuple[Label, ...] = ()
    legend: tuple[str, ...] = ()
    is_log: bool = False
    height: int = 0
    width: int = WIDTH
    left: int = _BARS_LEFT
    bar_height: int = _BAR - 6


def line_chart(series: Mapping[str, Mapping[int, int]], step_ms: int) -> LineChart:
    """Return a chart of rates per second, one line per name.

    ``series`` has for each name the counts by the start of an interval of ``step_ms`` (ms since the
    epoch); a missing interval counts as 0. There are at most SERIES lines; the smallest series are
    added up as ``others``.
    """
    chosen = _largest(series)
    moments = [at for points in chosen.values() for at in points]
    if not moments:
        return LineChart()
    start, stop = min(moments), max(moments) + step_ms
    width_ms = step_ms * max(math.ceil((stop - start) / step_ms / _POINTS_MAX), 1)
    rates = {name: _rates(points, start, stop, width_ms) for name, points in chosen.items()}
    top = nice(max(max(values) for values in rates.values()))
    count = len(next(iter(rates.values())))

    def x(at: int) -> float:
        return _LEFT + (_RIGHT - _LEFT) * (at + 0.5) / count

    def y(value: float) -> float:
        return 12 + (_HEIGHT - 36) * (1 - value / top)

    heights = [top * share for share in (0, 0.25, 0.5, 0.75, 1)]
    labels = [Label(_LEFT - 8, y(value) + 4, amount(value), "end") for value in heights]
    for at in sorted({0, count // 2, count - 1}):
        anchor: Anchor = "start" if at == 0 else "end" if at == count - 1 else "middle"
        label = _clock(start + at * width_ms)
        labels.append(Label(x(at), _HEIGHT - 4, label, anchor if count > 1 else "middle"))
    return LineChart(
        lines=tuple(
            Line(
                f"{name}: at most {max(values):,.1f} a second",
                tuple((x(at), y(value)) for at, value in enumerate(values)),
            )
            for name, values in rates.items()
        ),
        labels=tuple(labels),
        grid=tuple(y(value) for value in heights),
        legend=tuple(map(short, rates)),
    )


def bar_chart(rows: Sequence[tuple[str, Mapping[str, float]]], unit: str) -> BarChart:
    """Return a chart with one row of bars per name.

    The bars of a row are drawn over one another, with the smallest in front, which suits
    percentiles. The scale is logarithmic if the largest value is more than 1 000 times the
    smallest.
    """
    values = [value for _, found in rows for value in found.values()]
    if not values:
        return BarChart()
    top, least = max([*values, 1]), min((value for value in values if value > 0), default=1)
    is_log = top / least > 1_000
    names = list(rows[0][1])
    room = WIDTH - (320 if len(names) == 1 else 440)

    def length(value: float) -> float:
        share = math.log1p(value / least) / math.log1p(top / least) if is_log else value / top
        return float(room * share)

    bars: list[Bar] = []
    labels: list[Label] = []
    for at, (name, found) in enumerate(rows):
        up = at * _BAR + 4
        labels.append(Label(_BARS_LEFT - 8, up + 13, short(name), "end", title=name))
        for number, (share, value) in sorted(
            enumerate(found.items()), key=lambda each: -each[1][1]
        ):
            title = f"{name} {share}: {value:,.4g} {unit}"
            bars.append(Bar(title, number % SERIES, up, max(length(value), 1)))
        amounts = " / ".join(map(amount, found.values()))
        right = _BARS_LEFT + 6 + length(max(found.values()))
        labels.append(Label(right, up + 13, f"{amounts} {unit}", "start"))
    legend = tuple(map(short, names)) if len(names) > 1 else ()
    return BarChart(tuple(bars), tuple(labels), legend, is_log, len(rows) * _BAR + 8)


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


def _clock(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")
