"""The base-data platform: its tables, and an outbox that no crash empties too early.

A change and its message are one SQLite transaction:

    edit -> BEGIN; change the row; INSERT INTO outbox (the message body); COMMIT

and the publisher sends what stands in the outbox, then marks it as sent. A crash between the two
sends a change again, which its number makes harmless; no crash loses one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cometmq.demo.change import Change
from cometmq.demo.tables import TABLES, connect

if TYPE_CHECKING:
    from cometmq.demo.script import Edit

_OUTBOX = """
CREATE TABLE IF NOT EXISTS outbox (
    change INTEGER PRIMARY KEY AUTOINCREMENT,
    tbl TEXT NOT NULL,
    op TEXT NOT NULL,
    key TEXT NOT NULL,
    body BLOB NOT NULL,
    sent INTEGER NOT NULL DEFAULT 0
)
"""
_OUTBOX_INDEX = "CREATE INDEX IF NOT EXISTS unsent ON outbox (change) WHERE sent = 0"


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message that waits in the outbox."""

    change: int
    table: str
    op: str
    key: str
    body: bytes


class BaseData:
    """The platform's database at ``path``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection = connect(path)
        self._connection.execute(_OUTBOX)
        self._connection.execute(_OUTBOX_INDEX)

    def close(self) -> None:
        """Close the database."""
        self._connection.close()

    def apply(self, edits: Iterable[Edit], at_ms: int) -> int:
        """Make the edits and their messages in one transaction; gives the number of changes.

        The number of a change is its place in the outbox, which SQLite never gives twice.
        """
        run = self._connection.execute
        done = 0
        run("BEGIN IMMEDIATE")
        try:
            for edit in edits:
                table = TABLES[edit.table]
                if edit.row is None:
                    run(table.delete_sql(), (edit.key,))
                else:
                    run(table.upsert_sql(), edit.row)
                cursor = run(
                    "INSERT INTO outbox (tbl, op, key, body) VALUES (?, ?, ?, '')",
                    (edit.table, edit.op, edit.key),
                )
                number = cursor.lastrowid
                assert number is not None
                change = Change(edit.table, edit.op, edit.key, number, at_ms, edit.row)
                run("UPDATE outbox SET body = ? WHERE change = ?", (change.encode(), number))
                done += 1
        except BaseException:
            run("ROLLBACK")
            raise
        run("COMMIT")
        return done

    def unsent(self, limit: int) -> list[Outgoing]:
        """The oldest messages that are not marked as sent, in the order of their changes."""
        rows = self._connection.execute(
            "SELECT change, tbl, op, key, body FROM outbox WHERE sent = 0 ORDER BY change LIMIT ?",
            (limit,),
        )
        return [Outgoing(*row) for row in rows]

    def mark_sent(self, changes: Sequence[int]) -> None:
        """Note that the messages of these changes were acknowledged by the broker."""
        run = self._connection.execute
        run("BEGIN IMMEDIATE")
        try:
            self._connection.executemany(
                "UPDATE outbox SET sent = 1 WHERE change = ?", [(change,) for change in changes]
            )
        except sqlite3.Error:
            run("ROLLBACK")
            raise
        run("COMMIT")

    def last_changes(self) -> dict[tuple[str, str], int]:
        """The number of the last change of every row that ever was, by table and key."""
        rows = self._connection.execute(
            "SELECT tbl, key, max(change) FROM outbox GROUP BY tbl, key"
        )
        return {(table, key): change for table, key, change in rows}
