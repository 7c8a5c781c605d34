"""Charts as SVG, drawn by the server: lines over time, small lines in tables, bars.

A chart stretches to the width of its container, which would distort text, so the template writes
the labels beside it. Colours are CSS classes of the style sheet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from markupsafe import Markup

from cometmq.dashboard import shown

if TYPE_CHECKING:
    from cometmq.dashboard.history import Sample

_WIDTH: Final = 600
_HEIGHT: Final = 100
#: A line is interrupted where two samples are further apart than both _GAP_MS and _GAP_FACTOR
#: times the median distance.
_GAP_MS: Final = 90_000
_GAP_FACTOR: Final = 3
#: Leading digits at which an axis may end.
_STEPS: Final = (1, 1.5, 2, 3, 4, 5, 6, 8, 10)
#: Round durations, in seconds.
DURATIONS: Final = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1_200, 3_600, 7_200, 14_400, 43_200, 86_400)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart: its name, its samples, and its colour (1, 2 or 3)."""

    name: str
    samples: Sequence[Sample]
    colour: int = 1

    @property
    def last(self) -> float | None:
        """The newest value."""
        return self.samples[-1].value if self.samples else None


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart for a template.

    ``top`` and ``middle`` label the value axis, ``since`` is the length of the time axis,
    ``readings`` are the values that the script shows under the pointer.
    """

    svg: Markup
    lines: tuple[Line, ...]
    top: str
    middle: str
    since: str
    readings: str
    format: Callable[[float | None], str]
    is_empty: bool


def chart(
    lines: Sequence[Line],
    now_ms: int,
    *,
    span_ms: int = 12 * 60_000,
    form: Callable[[float | None], str] = shown.rate,
    steps: Sequence[float] = (),
) -> Chart:
    """Return a chart of the last ``span_ms``, or of less if the samples begin later.

    The value axis ends at the first of ``steps`` that is large enough, otherwise at a round number.
    ``form`` formats values.
    """
    begin_ms = now_ms - span_ms
    cut = [
        Line(line.name, [each for each in line.samples if each.at_ms >= begin_ms], line.colour)
        for line in lines
    ]
    first_ms = min((line.samples[0].at_ms for line in cut if line.samples), default=now_ms)
    begin_ms = max(begin_ms, min(first_ms, now_ms - 60_000))
    largest = max((each.value for line in cut for each in line.samples), default=0.0)
    most = next((step for step in steps if step >= largest), 0.0) or ceiling(largest)
    shapes = [Markup('<line class="grid" x1="0" x2="600" y1="50" y2="50"></line>')]
    for line in cut:
        for run in _runs(line.samples):
            points = [_place(each, begin_ms, now_ms, most) for each in run]
            shapes.append(_area(points, line.colour))
            shapes.append(_path(points, line.colour))
    drawn = Markup(
        '<svg class="plot" viewBox="0 0 600 100" preserveAspectRatio="none" aria-hidden="true">'
        "{}</svg>"
    ).format(Markup("").join(shapes))
    return Chart(
        drawn, tuple(cut), form(most), form(most / 2), shown.duration(now_ms - begin_ms),
        _readings(cut, begin_ms, now_ms, form), form, not any(line.samples for line in cut),
    )  # fmt: skip


def spark(samples: Sequence[Sample], colour: int = 1) -> Markup:
    """Return a small line without axes; empty for fewer than two samples."""
    if len(samples) < 2:
        return Markup("")
    begin_ms, end_ms = samples[0].at_ms, samples[-1].at_ms
    most = max(each.value for each in samples) or 1.0
    points = [_place(each, begin_ms, end_ms, most * 1.05) for each in _thinned(samples, 60)]
    return Markup(
        '<svg class="spark" viewBox="0 0 600 100" preserveAspectRatio="none" aria-hidden="true">'
        "{}{}</svg>"
    ).format(_area(points, colour), _path(points, colour))


def bar(ratio: float, *, warn: float = 0.75, bad: float = 0.85) -> Markup:
    """Return a bar that is filled to a ratio from 0 to 1, coloured from ``warn`` and ``bad`` on."""
    within = min(max(ratio, 0.0), 1.0)
    state = "bad" if within >= bad else "warn" if within >= warn else "ok"
    return Markup(
        '<svg class="bar {}" viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="rail" width="100" height="6"></rect>'
        '<rect class="fill" width="{:.1f}" height="6"></rect></svg>'
    ).format(state, within * 100)


def ceiling(value: float) -> float:
    """Return the smallest round number that is not below a value, and at least 1."""
    if value <= 1:
        return 1.0
    power = 10.0 ** (len(str(int(value))) - 1)
    return next(step * power for step in (*_STEPS, 20) if step * power >= value)


def _place(sample: Sample, begin_ms: int, end_ms: int, most: float) -> tuple[float, float]:
    x = (sample.at_ms - begin_ms) / max(1, end_ms - begin_ms) * _WIDTH
    return round(x, 1), round(_HEIGHT - min(sample.value / most, 1.0) * (_HEIGHT - 2) - 1, 1)


def _path(points: Sequence[tuple[float, float]], colour: int) -> Markup:
    text = " ".join(f"{x},{y}" for x, y in points)
    return Markup('<polyline class="line c{}" points="{}"></polyline>').format(colour, text)


def _area(points: Sequence[tuple[float, float]], colour: int) -> Markup:
    text = " ".join(f"{x},{y}" for x, y in points)
    ends = points[0][0], points[-1][0]
    return Markup('<polygon class="area c{}" points="{},100 {} {},100"></polygon>').format(
        colour, ends[0], text, ends[1]
    )


def _runs(samples: Sequence[Sample]) -> list[list[Sample]]:
    """Split samples at gaps."""
    pauses_ms = sorted(later.at_ms - each.at_ms for each, later in pairwise(samples))
    # The usual distance differs: a large or slow cluster is polled less often.
    usual_ms = pauses_ms[len(pauses_ms) // 2] if pauses_ms else 0
    gap_ms = max(_GAP_MS, _GAP_FACTOR * usual_ms)
    runs: list[list[Sample]] = []
    for each in samples:
        if runs and each.at_ms - runs[-1][-1].at_ms <= gap_ms:
            runs[-1].append(each)
        else:
            runs.append([each])
    return runs


def _thinned(samples: Sequence[Sample], most: int) -> Sequence[Sample]:
    step = -(-len(samples) // most)
    return [*samples[:-1:step], samples[-1]] if step > 1 else samples


def _readings(
    lines: Sequence[Line], begin_ms: int, end_ms: int, form: Callable[[float | None], str]
) -> str:
    """Return one row per sample of the first line, for the script: ``x|time|value|value...``.

    ``x`` is the position from 0 to 1; there is one value per line of the chart.
    """
    if not lines:
        return ""
    rows = []
    others = [{each.at_ms: each.value for each in line.samples} for line in lines[1:]]
    for sample in lines[0].samples:
        x = (sample.at_ms - begin_ms) / max(1, end_ms - begin_ms)
        values = [sample.value, *(each.get(sample.at_ms) for each in others)]
        texts = "|".join(map(form, values))
        rows.append(f"{x:.3f}|{shown.at(sample.at_ms)[11:19]}|{texts}")
    return "\n".join(rows)
