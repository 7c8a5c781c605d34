"""Histogram for metrics: counts of values by range, which only grow."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """Counts of values by bucket.

    ``bounds`` are the inclusive upper ends of the buckets; one more bucket counts larger values.
    ``total`` is the sum of all values.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float, count: int = 1) -> None:
        """Count a value, ``count`` times."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.total += value * count
