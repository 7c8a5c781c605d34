"""What a run of the demo came to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cometmq.demo.compare import Comparison


@dataclass(frozen=True, slots=True)
class PartyResult:
    """A copy's comparison with the base, its outcomes by name, and its lags; None where the
    party does not measure one."""

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

    ``loaded`` changes of the first load were published in ``load_seconds``, the rest at the
    script's pace. ``files`` are places by what lies there. ``problems`` are what went wrong
    besides differing rows; a good run has none.
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
        """Every copy is equal to the base, and nothing else went wrong."""
        compared = bool(self.parties) and all(party.comparison.equal for party in self.parties)
        return compared and not self.problems
