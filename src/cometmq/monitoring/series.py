"""Metrics as values: what a metric is, and its series at one moment.

A :class:`Metric` describes a metric once: its row in the documentation, its text and its tests
follow from it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cometmq.core.histogram import Histogram


class Kind(Enum):
    """Type of a metric, as Prometheus names it."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class KnownFrom(Enum):
    """Origin of the name of a metric."""

    EXPORTER = "rocketmq-exporter"
    BROKER_5 = "RocketMQ 5"
    OURS = "CometMQ"


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric: its name, type, meaning, labels, and the program that its name comes from.

    ``difference`` says how the value differs from that program's.
    """

    name: str
    kind: Kind
    meaning: str
    labels: tuple[str, ...]
    known_from: KnownFrom
    difference: str = ""

    @property
    def has_shared_labels(self) -> bool:
        """True if its series have the labels that all series of the server share.

        rocketmq-exporter has other ones, which are declared with each metric.
        """
        return self.known_from is not KnownFrom.EXPORTER


@dataclass(slots=True)
class Series:
    """The series of one metric at one moment: label values, and a number or a histogram.

    ``most`` is the limit of series; ``left_out`` counts those beyond it.
    """

    metric: Metric
    most: int
    rows: list[tuple[tuple[str, ...], float | Histogram]] = field(default_factory=list)
    left_out: int = 0

    def add(self, value: float | Histogram, *labels: str) -> None:
        """Add a series, or count it as left out."""
        if len(self.rows) < self.most:
            self.rows.append((labels, value))
        else:
            self.left_out += 1
