"""Numbers of a run: its progress, written by the parts and read by the screen, and its result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from examples.demo.compare import Comparison


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


@dataclass(frozen=True, slots=True)
class PartyResult:
    """A copy's comparison with the base, the counts of its outcomes, and its lags; None for
    values that this party does not measure."""

    comparison: Comparison
    applied: int | None = None
    repeated: int | None = None
    stale: int | None = None
    retried: int | None = None
    lag_p50_ms: int | None = None
    lag_p99_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """The Spark pipeline's own findings; ``busiest`` are (country, hour, changes)."""

    changes: int
    countries: int
    busiest: Sequence[tuple[str, str, int]]
    lag_ms: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Result:
    """The whole run.

    ``loaded`` changes of the first load were published in ``load_seconds``, the others at the
    script's rate. ``files`` are paths by the name of their content. ``problems`` are failures other
    than differing rows; a good run has none.
    """

    seconds: float
    published: int
    published_again: int
    loaded: int
    load_seconds: float
    base_rows: Mapping[str, int]
    base_digest: str
    parties: Sequence[PartyResult]
    report: Report | None
    files: Mapping[str, Path]
    events: Sequence[str]
    problems: Sequence[str]

    @property
    def ok(self) -> bool:
        """True if every copy is equal to the base, and there were no problems."""
        compared = bool(self.parties) and all(party.comparison.equal for party in self.parties)
        return compared and not self.problems
