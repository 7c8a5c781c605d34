"""Figures over time, in memory: rings of samples, bounded in number and length."""

from __future__ import annotations

from collections import OrderedDict, deque
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
        self._series: OrderedDict[Hashable, deque[Sample]] = OrderedDict()
        self._counters: OrderedDict[Hashable, Sample] = OrderedDict()

    def add(self, key: Hashable, at_ms: int, value: float) -> None:
        """Add a sample to a series."""
        series = self._series.get(key)
        if series is None:
            while len(self._series) >= self._series_max:
                self._series.popitem(last=False)
            series = self._series[key] = deque(maxlen=self._samples_max)
        else:
            self._series.move_to_end(key)
        series.append(Sample(at_ms, value))

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
        return tuple(self._series.get(key, ()))

    def last(self, key: Hashable) -> float | None:
        """Return the newest figure of a series, or None."""
        series = self._series.get(key)
        return series[-1].value if series else None
