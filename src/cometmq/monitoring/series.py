"""Metrics as values: what a metric is, and its series at one moment.

A :class:`Metric` describes a metric once: its row in the documentation, its text and its tests
follow from it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum


class Kind(Enum):
    """Type of a metric, as Prometheus names it."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class KnownFrom(Enum):
    """Where the name of a metric is known from."""

    EXPORTER = "rocketmq-exporter"
    BROKER_5 = "RocketMQ 5"
    OURS = "CometMQ"


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric: its name, type, labels, what it says, and who has it too.

    ``difference`` says how the value differs from upstream's. A histogram has ``bounds``, the upper
    ends of its buckets.
    """

    name: str
    kind: Kind
    meaning: str
    labels: tuple[str, ...]
    known_from: KnownFrom
    difference: str = ""
    bounds: tuple[float, ...] = ()


class Histogram:
    """Counts of values by bucket, which only grow; the last bucket has no upper end."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float, count: int = 1) -> None:
        """Count a value, ``count`` times."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.total += value * count


@dataclass(slots=True)
class Series:
    """The series of one metric at one moment: label values, and a number or a histogram.

    ``left_out`` counts the series beyond ``most``.
    """

    metric: Metric
    most: int
    rows: list[tuple[tuple[str, ...], float | Histogram]] = field(default_factory=list)
    left_out: int = 0

    def add(self, value: float | Histogram, *labels: str) -> None:
        """Add a series."""
        if len(self.rows) < self.most:
            self.rows.append((labels, value))
        else:
            self.left_out += 1
