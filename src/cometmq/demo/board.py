"""Progress of the demo as numbers: written by its parts, read by the screen."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Party:
    """A platform: outcomes of its messages, and the lags with which changes were applied."""

    name: str
    running: bool = False
    outcomes: Counter[str] = field(default_factory=Counter)
    lags_ms: list[int] = field(default_factory=list)

    @property
    def taken(self) -> int:
        """Number of messages that were applied, or found to be repeated or stale."""
        return self.outcomes["new"] + self.outcomes["repeated"] + self.outcomes["stale"]

    def lag_ms(self, percent: int) -> int:
        """Return the lag in ms that ``percent`` of the applied changes did not exceed; 0 before
        the first."""
        return percentile(self.lags_ms, percent)


@dataclass(slots=True)
class Board:
    """The numbers of a run. ``expected`` is the number of changes that the script will make."""

    expected: int
    parties: dict[str, Party]
    phase: str = "starting"
    committed: int = 0
    published: int = 0
    published_again: int = 0
    spark_state: str = ""
    events: list[str] = field(default_factory=list)

    def say(self, event: str) -> None:
        """Add an event that deserves a line of its own."""
        self.events.append(event)


def percentile(values: list[int], percent: int) -> int:
    """Return the smallest value that at least ``percent`` of the values do not exceed; 0 for
    none."""
    if not values:
        return 0
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]
