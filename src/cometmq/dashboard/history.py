"""Time series in memory, bounded in number and length.

A sample takes 16 bytes, so thousands of groups can each have an hour of samples.
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

_Name = tuple[int, Hashable]


@dataclass(frozen=True, slots=True)
class Sample:
    """A value at a time (ms since the epoch)."""

    at_ms: int
    value: float


class History:
    """Series of samples by key.

    With ``shared``, the series are stored in that history and count against its ``series_max``;
    their keys stay separate.
    """

    def __init__(
        self,
        samples_max: int = SAMPLES_MAX,
        series_max: int = SERIES_MAX,
        *,
        shared: History | None = None,
    ) -> None:
        self._samples_max = samples_max
        self._series_max = series_max
        #: Alternating times and values, by id of the history and key.
        self._series: OrderedDict[_Name, array[float]] = OrderedDict()
        self._counters: OrderedDict[_Name, Sample] = OrderedDict()
        if shared is not None:
            self._series_max = shared._series_max
            self._series, self._counters = shared._series, shared._counters

    def add(self, key: Hashable, at_ms: int, value: float) -> None:
        """Append a sample to a series; the series loses its oldest one if it is full."""
        name = id(self), key
        series = self._series.get(name)
        if series is None:
            while len(self._series) >= self._series_max:
                self._series.popitem(last=False)
            series = self._series[name] = array("d")
        else:
            self._series.move_to_end(name)
        series.extend((at_ms, value))
        if len(series) > 2 * self._samples_max:
            del series[:2]

    def rate(self, key: Hashable, at_ms: int, total: float) -> float | None:
        """Return the growth of a counter per second since its last value, and keep ``total``.

        Returns None for the first value, and after a counter went back, because then its server was
        restarted.
        """
        name = id(self), key
        before = self._counters.get(name)
        if before is None:
            while len(self._counters) >= self._series_max:
                self._counters.popitem(last=False)
        elif at_ms <= before.at_ms:
            return None
        self._counters[name] = Sample(at_ms, total)
        self._counters.move_to_end(name)
        if before is None or total < before.value:
            return None
        return (total - before.value) * 1000 / (at_ms - before.at_ms)

    def series(self, key: Hashable) -> Sequence[Sample]:
        """Return the samples of a series, oldest first; empty if there are none."""
        found = self._series.get((id(self), key))
        if found is None:
            return ()
        return tuple(
            Sample(int(at_ms), value) for at_ms, value in zip(found[::2], found[1::2], strict=True)
        )

    def last(self, key: Hashable) -> float | None:
        """Return the newest value of a series; None if there is none."""
        series = self._series.get((id(self), key))
        return series[-1] if series else None

    def clear(self) -> None:
        """Drop the series of this history, which frees room in a shared one."""
        for kept in (self._series, self._counters):
            for name in [each for each in kept if each[0] == id(self)]:
                del kept[name]
