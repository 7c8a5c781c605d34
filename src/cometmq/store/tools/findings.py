"""Findings about a store: one line of text for a person, one JSON object for a program."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

import msgspec

#: Limit of findings of one kind in one file that are listed; further ones are counted.
EACH_LIMIT = 100


class Severity(Enum):
    """The severity of a finding."""

    DAMAGE = "damage"
    """Data that was changed or lost, or that contradicts other data."""
    NOTE = "note"
    """No damage: the next start of the broker handles it, or it needs no action."""


class Finding(msgspec.Struct, frozen=True):
    """One finding. ``kind`` is a word for programs; ``offset`` is physical, -1 for none.

    ``count`` is the number of cases; the first one is at ``offset``.
    """

    severity: Severity
    kind: str
    path: str
    offset: int
    text: str
    count: int = 1

    def line(self) -> str:
        """Return the finding as a line for a person."""
        where = self.path if self.offset < 0 else f"{self.path} at offset {self.offset}"
        return f"{self.severity.value}: {where}: {self.text}"


class Findings:
    """A collection of findings with a limit for each kind in each file."""

    __slots__ = ("_counts", "_found")

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], list[Finding]] = {}
        self._counts: dict[tuple[str, str], int] = {}

    def add(self, finding: Finding) -> None:
        """Add a finding, or only count it if there are too many of its kind."""
        place = (finding.kind, finding.path)
        self._counts[place] = self._counts.get(place, 0) + finding.count
        known = self._found.setdefault(place, [])
        if len(known) < EACH_LIMIT:
            known.append(finding)

    def damage(self, kind: str, path: str, offset: int, text: str, count: int = 1) -> None:
        """Add damage."""
        self.add(Finding(Severity.DAMAGE, kind, path, offset, text, count))

    def note(self, kind: str, path: str, offset: int, text: str, count: int = 1) -> None:
        """Add a note."""
        self.add(Finding(Severity.NOTE, kind, path, offset, text, count))

    def extend(self, findings: Iterable[Finding]) -> None:
        """Add several findings."""
        for finding in findings:
            self.add(finding)

    def all(self) -> list[Finding]:
        """Return all findings: damage before notes, then by file and offset.

        Findings of one kind in one file that were only counted become one finding.
        """
        result: list[Finding] = []
        for place, known in self._found.items():
            result += known
            more = self._counts[place] - sum(finding.count for finding in known)
            if more > 0:
                last = known[-1]
                text = f"{more} more of this kind ({last.kind})"
                result.append(Finding(last.severity, last.kind, last.path, -1, text, more))
        return sorted(
            result, key=lambda each: (each.severity.value, each.path, each.offset < 0, each.offset)
        )
