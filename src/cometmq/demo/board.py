"""What the demo has done so far, as numbers: written by its parts, read by whoever draws."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Party:
    """A platform: how its messages fared, and how late they were when applied."""

    name: str
    running: bool = False
    outcomes: Counter[str] = field(default_factory=Counter)
    lags_ms: list[int] = field(default_factory=list)

    @property
    def taken(self) -> int:
        """Messages that were applied or found to be old."""
        return self.outcomes["new"] + self.outcomes["repeated"] + self.outcomes["stale"]

    def lag_ms(self, percent: int) -> int:
        """The lag that ``percent`` of the applied changes stayed under; 0 before the first."""
        return percentile(self.lags_ms, percent)


@dataclass(slots=True)
class Board:
    """The numbers of a run. ``expected`` is how many changes the script is going to make."""

    expected: int
    parties: dict[str, Party]
    phase: str = "starting"
    committed: int = 0
    published: int = 0
    published_again: int = 0
    spark_state: str = ""
    events: list[str] = field(default_factory=list)

    def say(self, event: str) -> None:
        """Note something worth a line of its own."""
        self.events.append(event)


def percentile(values: list[int], percent: int) -> int:
    """The smallest value that at least ``percent`` of the values are at or under."""
    if not values:
        return 0
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]
