"""A platform's copy of the base tables, applied idempotently.

Beside the tables, ``applied`` holds the number of the newest change of every row, deleted rows
included. It distinguishes a late retry from a new change, and keeps a deleted row from returning.
"""

from __future__ import annotations

from enum import Enum, auto
from pathlib import Path
from typing import TYPE_CHECKING

from cometmq.demo.tables import TABLES, connect

if TYPE_CHECKING:
    from cometmq.demo.change import Change

_APPLIED = """
CREATE TABLE IF NOT EXISTS applied (
    tbl TEXT NOT NULL,
    key TEXT NOT NULL,
    change INTEGER NOT NULL,
    PRIMARY KEY (tbl, key)
) WITHOUT ROWID
"""
_PUT_APPLIED = "INSERT OR REPLACE INTO applied (tbl, key, change) VALUES (?, ?, ?)"


class Applied(Enum):
    """Outcome of a change."""

    NEW = auto()
    REPEATED = auto()  # this change was applied before
    STALE = auto()  # a newer change of the row was applied before


class Copy:
    """The copy in the database at ``path``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection = connect(path)
        self._connection.execute(_APPLIED)

    def close(self) -> None:
        """Close the database."""
        self._connection.close()

    def apply(self, change: Change) -> Applied:
        """Apply a change in one transaction, unless the row has this change or a newer one."""
        run = self._connection.execute
        table = TABLES[change.table]
        run("BEGIN IMMEDIATE")
        try:
            known = run(
                "SELECT change FROM applied WHERE tbl = ? AND key = ?", (change.table, change.key)
            ).fetchone()
            if known is not None and known[0] >= change.change:
                run("ROLLBACK")
                return Applied.REPEATED if known[0] == change.change else Applied.STALE
            if change.row is None:
                run(table.delete_sql(), (change.key,))
            else:
                run(table.upsert_sql(), change.row)
            run(_PUT_APPLIED, (change.table, change.key, change.change))
        except BaseException:
            if self._connection.in_transaction:
                run("ROLLBACK")
            raise
        run("COMMIT")
        return Applied.NEW

    def last_changes(self) -> dict[tuple[str, str], int]:
        """Return the number of the newest applied change of every row, by table and key."""
        rows = self._connection.execute("SELECT tbl, key, change FROM applied")
        return {(table, key): change for table, key, change in rows}
