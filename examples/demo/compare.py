"""Row-by-row comparison of a copy with the base tables.

Both sides are read whole and matched by key. A row that only one side has is a difference, and so
is a row whose columns are not all equal in value and type.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from examples.demo.tables import TABLES, Row, Table

DIFFERENCES_KEPT = 20


@dataclass(frozen=True, slots=True)
class Difference:
    """A row that differs between the two sides; None for a side without that row."""

    table: str
    key: str
    base: Row | None
    copy: Row | None

    def __str__(self) -> str:
        if self.copy is None:
            return f"{self.table} {self.key}: missing in the copy"
        if self.base is None:
            return f"{self.table} {self.key}: only in the copy"
        names = [n for n in TABLES[self.table].names if not _same(self.base[n], self.copy.get(n))]
        parts = [f"{n} {self.base[n]!r} became {self.copy.get(n)!r}" for n in names]
        return f"{self.table} {self.key}: {', '.join(parts) or 'other columns'}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Result of comparing the copy ``name``: its rows by table, the number of differences (with
    the first of them in ``differences``), and a digest of all its rows."""

    name: str
    rows: Mapping[str, int]
    different: int
    differences: tuple[Difference, ...]
    digest: str

    @property
    def equal(self) -> bool:
        """True if every row of every table is the same."""
        return self.different == 0


def compare(
    name: str, base: Mapping[str, Iterable[Row]], copy: Mapping[str, Iterable[Row]]
) -> Comparison:
    """Compare the tables of ``copy`` with those of ``base``; both by table name."""
    differences: list[Difference] = []
    rows: dict[str, int] = {}
    copied_rows: dict[str, list[Row]] = {}
    for table in TABLES.values():
        copied = copied_rows[table.name] = list(copy[table.name])
        rows[table.name] = len(copied)
        differences += _differences(table, base[table.name], copied)
    kept = tuple(differences[:DIFFERENCES_KEPT])
    return Comparison(name, rows, len(differences), kept, digest(copied_rows))


def digest(tables: Mapping[str, Iterable[Row]]) -> str:
    """Return a short fingerprint of all rows, which does not depend on their order."""
    hasher = hashlib.sha256()
    for table in TABLES.values():
        for row in sorted(tables[table.name], key=lambda row: str(row[table.key])):
            hasher.update(msgspec.json.encode([table.name, *(row.get(n) for n in table.names)]))
    return hasher.hexdigest()[:16]


def _differences(table: Table, base: Iterable[Row], copy: Iterable[Row]) -> list[Difference]:
    theirs: dict[str, Row] = {}
    doubled: list[Difference] = []
    for row in copy:
        key = str(row[table.key])
        if key in theirs:
            doubled.append(Difference(table.name, key, None, row))
        theirs[key] = row
    found: list[Difference] = []
    for row in base:
        key = str(row[table.key])
        copied = theirs.pop(key, None)
        if copied is None or not _equal(row, copied):
            found.append(Difference(table.name, key, row, copied))
    found += [Difference(table.name, key, None, row) for key, row in sorted(theirs.items())]
    return found + doubled


def _equal(base: Row, copy: Row) -> bool:
    return base.keys() == copy.keys() and all(_same(base[name], copy[name]) for name in base)


def _same(left: object, right: object) -> bool:
    return type(left) is type(right) and left == right
