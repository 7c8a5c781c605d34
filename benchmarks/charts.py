"""Charts as SVG without a library: bars for a table, lines for a curve; for light and dark
pages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final
from xml.sax.saxutils import escape

from benchmarks.figures import Row, columns, number_text

#: Distinguishable on light and dark pages, without red beside green; the same in all charts.
COLOURS: Final = {
    "cometmq": "#1f77b4",
    "cometmq-plain": "#7fb3dc",
    "rocketmq-4.9.7": "#e07b00",
    "rocketmq-5.5.0": "#f2b366",
    "kafka": "#7a5195",
    "nats": "#2a9d8f",
}
_OTHER: Final = "#777777"
_STYLE: Final = (
    "<style>svg{background:#fff}text{font:12px sans-serif;fill:#222}.t{font-size:15px;"
    "font-weight:bold}.m{fill:#666;font-size:11px}.g{stroke:#ddd}"
    "@media (prefers-color-scheme:dark){svg{background:#161a1d}text{fill:#e6e6e6}"
    ".m{fill:#a0a0a0}.g{stroke:#3a3f44}}</style>"
)
_WIDTH: Final = 940
_LABEL: Final = 350
_BAR: Final = 13
_PLOT: Final = (70, 60, 560, 300)


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    mark = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{mark}>{escape(text)}</text>'


def _svg(width: float, height: float, title: str, pieces: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
    head += f'role="img" aria-label="{escape(title, {chr(34): "&quot;"})}">'
    return "\n".join([head, _STYLE, _text(12, 24, title, "t"), *pieces, "</svg>\n"])


def _legend(targets: Sequence[str], x: float, y: float, step: float) -> list[str]:
    """Return one entry per target, to the right (a step in x) or, with a negative step,
    downwards."""
    pieces = []
    for number, target in enumerate(targets):
        at_x = x + max(0.0, step) * number
        at_y = y - min(0.0, step) * number
        colour = COLOURS.get(target, _OTHER)
        pieces.append(f'<rect x="{at_x:.1f}" y="{at_y - 9:.1f}" width="10" height="10" '
                      f'fill="{colour}"/>')  # fmt: skip
        pieces.append(_text(at_x + 14, at_y, target))
    return pieces


def bars(title: str, rows: Sequence[Row]) -> str:
    """Return a chart with a group of bars per row, each group with its own scale.

    The longest bar of a group is the row's largest median. A thin line spans the lowest to the
    highest round.
    """
    targets = columns(rows)
    pieces = _legend(targets, 12, 48, 125)
    y = 70.0
    for row in rows:
        found = [(target, row.spread(target)) for target in targets]
        shown = [(target, spread) for target, spread in found if spread is not None]
        if not shown:
            continue
        largest = max(spread.high for _, spread in shown) or 1.0
        scale = (_WIDTH - _LABEL - 100) / largest
        pieces.append(_text(_LABEL - 10, y + 11, row.name, anchor="end"))
        told = f"{row.unit}, {'more' if row.better == 'more' else 'less'} is better"
        pieces.append(_text(_LABEL - 10, y + 25, told, "m", "end"))
        for target, spread in shown:
            colour = COLOURS.get(target, _OTHER)
            width = max(1.0, spread.median * scale)
            middle = y + _BAR / 2 - 1
            low, high = _LABEL + spread.low * scale, _LABEL + spread.high * scale
            pieces.append(f'<rect x="{_LABEL}" y="{y:.1f}" width="{width:.1f}" '
                          f'height="{_BAR - 2}" fill="{colour}"/>')  # fmt: skip
            pieces.append(f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{middle:.1f}" '
                          f'y2="{middle:.1f}" stroke="#888"/>')  # fmt: skip
            pieces.append(_text(high + 6, y + 10, number_text(spread.median), "m"))
            y += _BAR
        y += max(16, 30 - _BAR * len(shown))
    return _svg(_WIDTH, y + 10, title, pieces)


def _marks(y_max: float) -> list[float]:
    """Return four to eight round marks of an axis from 0 to ``y_max`` or a little more."""
    power = 10.0 ** math.floor(math.log10(y_max / 4))
    step = next(each * power for each in (1, 2, 2.5, 5, 10) if y_max / (each * power) <= 6)
    return [step * number for number in range(math.ceil(y_max / step - 1e-9) + 1)]


def _plain(number: float) -> str:
    return f"{number:,.10g}".replace(",", " ")


def lines(
    title: str, x_label: str, y_label: str, series: Mapping[str, Sequence[tuple[float, float]]]
) -> str:
    """Return a chart with a line per target over a logarithmic x axis. The y axis begins at 0."""
    left, top, width, height = _PLOT
    points = [point for found in series.values() for point in found]
    if not points:
        return _svg(_WIDTH, 80, title, [_text(12, 52, "nothing was measured")])
    xs = [math.log10(max(x, 1e-9)) for x, _ in points]
    low, high = min(xs), max(xs)
    marks = _marks(max(y for _, y in points) or 1.0)

    def place(x: float, y: float) -> tuple[float, float]:
        share = (math.log10(max(x, 1e-9)) - low) / (high - low) if high > low else 0.5
        return left + share * width, top + height * (1 - y / marks[-1])

    pieces = [_text(12, 44, y_label, "m")]
    for mark in marks:
        _, y = place(1, mark)
        pieces.append(f'<line class="g" x1="{left}" x2="{left + width}" '
                      f'y1="{y:.1f}" y2="{y:.1f}"/>')  # fmt: skip
        pieces.append(_text(left - 6, y + 4, _plain(mark), "m", "end"))
    pieces += [
        _text(place(x, 0)[0], top + height + 16, _plain(x), "m", "middle")
        for x in sorted({x for x, _ in points})
    ]
    pieces.append(_text(left + width / 2, top + height + 36, x_label, "m", "middle"))
    for target, found in series.items():
        colour = COLOURS.get(target, _OTHER)
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in sorted(found)))
        pieces.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for point in found:
            x, y = place(*point)
            pieces.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>')
    pieces += _legend(list(series), left + width + 30, top + 10, -20)
    return _svg(_WIDTH, top + height + 50, title, pieces)
