"""What a look into a store finds: one line for a person, one JSON object for a program."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

import msgspec

#: Findings of one kind in one file that are told one by one; the rest are counted.
EACH_LIMIT = 100


class Severity(Enum):
    """Whether a store is worse for it."""

    DAMAGE = "damage"
    """Something is not what it was, or contradicts something else."""
    NOTE = "note"
    """Worth knowing; the next start deals with it, or nobody has to."""


class Finding(msgspec.Struct, frozen=True):
    """One thing found. ``kind`` is a word for programs; ``offset`` is physical, -1 for none.

    ``count`` things of the kind are meant, the first at ``offset``.
    """

    severity: Severity
    kind: str
    path: str
    offset: int
    text: str
    count: int = 1

    def line(self) -> str:
        """The finding for a person."""
        where = self.path if self.offset < 0 else f"{self.path} at offset {self.offset}"
        return f"{self.severity.value}: {where}: {self.text}"


class Findings:
    """Collects findings, of each kind in each file no more than can be read."""

    __slots__ = ("_counts", "_found")

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], list[Finding]] = {}
        self._counts: dict[tuple[str, str], int] = {}

    def add(self, finding: Finding) -> None:
        """Take one, or count it when there are too many like it."""
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
        """Add several."""
        for finding in findings:
            self.add(finding)

    def all(self) -> list[Finding]:
        """Everything, in the order of files and offsets; what was only counted as one more."""
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
