"""The base-data platform: its tables, and an outbox for the messages of its changes.

A change and its message are one SQLite transaction:

    edit -> BEGIN; change the row; take the next change number; add to the outbox; COMMIT
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from cometmq.demo.change import Change
from cometmq.demo.tables import TABLES, connect
from cometmq.message.model import Message
from cometmq.outbox import SqliteOutbox

if TYPE_CHECKING:
    from cometmq.demo.script import Edit

_CHANGES = """
CREATE TABLE IF NOT EXISTS changes (
    tbl TEXT NOT NULL,
    key TEXT NOT NULL,
    change INTEGER NOT NULL,
    PRIMARY KEY (tbl, key)
) WITHOUT ROWID
"""
_PUT_CHANGE = "INSERT OR REPLACE INTO changes (tbl, key, change) VALUES (?, ?, ?)"


class BaseData:
    """The platform's database at ``path``; its messages go to ``topic``."""

    def __init__(self, path: Path, topic: str) -> None:
        self.path = path
        self.outbox = SqliteOutbox(path)
        self._topic = topic
        self._connection = connect(path)
        self._connection.execute(_CHANGES)
        self.outbox.create(self._connection)
        highest = self._connection.execute("SELECT coalesce(max(change), 0) FROM changes")
        self._last_change: int = highest.fetchone()[0]

    def close(self) -> None:
        """Close the database."""
        self._connection.close()

    def apply(self, edits: Iterable[Edit], at_ms: int) -> int:
        """Apply the edits and add their messages in one transaction; return the number of
        changes."""
        run = self._connection.execute
        last = self._last_change
        run("BEGIN IMMEDIATE")
        try:
            for edit in edits:
                last += 1
                self._apply(Change(edit.table, edit.op, edit.key, last, at_ms, edit.row))
        except BaseException:
            run("ROLLBACK")
            raise
        run("COMMIT")
        done, self._last_change = last - self._last_change, last
        return done

    def _apply(self, change: Change) -> None:
        run = self._connection.execute
        table = TABLES[change.table]
        if change.row is None:
            run(table.delete_sql(), (change.key,))
        else:
            run(table.upsert_sql(), change.row)
        run(_PUT_CHANGE, (change.table, change.key, change.change))
        message = Message(self._topic, change.encode(), change.op, (change.key,))
        self.outbox.add(self._connection, message, order_key=change.key)

    def last_changes(self) -> dict[tuple[str, str], int]:
        """Return the number of the last change of every row, deleted ones included, by table and
        key."""
        rows = self._connection.execute("SELECT tbl, key, change FROM changes")
        return {(table, key): change for table, key, change in rows}
