"""Result of a run of the demo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cometmq.demo.compare import Comparison


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
