"""Figures over time, in memory: series of samples, bounded in number and length.

A sample takes 16 bytes, so that thousands of groups can have an hour of them.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final

#: Samples that a series keeps.
SAMPLES_MAX: Final = 360
#: Series that are kept; those that got no sample for the longest time are dropped first.
SERIES_MAX: Final = 8_192


@dataclass(frozen=True, slots=True)
class Sample:
    """One figure at a time (ms since the epoch)."""

    at_ms: int
    value: float


class History:
    """Series of samples by key."""

    def __init__(self, samples_max: int = SAMPLES_MAX, series_max: int = SERIES_MAX) -> None:
        self._samples_max = samples_max
        self._series_max = series_max
        #: Times and values by turns.
        self._series: OrderedDict[Hashable, array[float]] = OrderedDict()
        self._counters: OrderedDict[Hashable, Sample] = OrderedDict()

    def add(self, key: Hashable, at_ms: int, value: float) -> None:
        """Add a sample to a series."""
        series = self._series.get(key)
        if series is None:
            while len(self._series) >= self._series_max:
                self._series.popitem(last=False)
            series = self._series[key] = array("d")
        else:
            self._series.move_to_end(key)
        series.extend((at_ms, value))
        if len(series) > 2 * self._samples_max:
            del series[:2]

    def rate(self, key: Hashable, at_ms: int, total: float) -> float | None:
        """Return the growth of a counter a second since its last value; None for its first one.

        A counter that went back belongs to a server that was started again.
        """
        before = self._counters.get(key)
        if before is None:
            while len(self._counters) >= self._series_max:
                self._counters.popitem(last=False)
        elif at_ms <= before.at_ms:
            return None
        self._counters[key] = Sample(at_ms, total)
        self._counters.move_to_end(key)
        if before is None or total < before.value:
            return None
        return (total - before.value) * 1000 / (at_ms - before.at_ms)

    def series(self, key: Hashable) -> Sequence[Sample]:
        """Return the samples of a series, oldest first; empty if there are none."""
        found = self._series.get(key)
        if found is None:
            return ()
        return tuple(
            Sample(int(at_ms), value) for at_ms, value in zip(found[::2], found[1::2], strict=True)
        )

    def last(self, key: Hashable) -> float | None:
        """Return the newest figure of a series, or None."""
        series = self._series.get(key)
        return series[-1] if series else None
