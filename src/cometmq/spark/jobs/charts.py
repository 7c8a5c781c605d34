"""Charts as inline SVG: lines over time, and bars side by side.

Colours come from the page's style (classes ``s0`` to ``s5``), so one drawing serves light and dark.
Every mark has its exact value as a tooltip.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final

WIDTH: Final = 860
SERIES: Final = 6
_LEFT: Final = 64
_HEIGHT: Final = 220
_BAR: Final = 22
_POINTS_MAX: Final = 240
_TICKS: Final = (1, 2, 2.5, 5, 10)
_NAME_CHARACTERS: Final = 34


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
