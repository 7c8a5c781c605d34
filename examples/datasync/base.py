"""The base-data platform: two tables in PostgreSQL, and the outbox for messages about changes."""

from collections.abc import Sequence
from typing import Any

import psycopg

import cometmq
from examples.demo.script import Edit
from examples.demo.tables import TABLES, Change

TOPIC = "base-data-changes"
OUTBOX = "outbox"
_NUMBERS = "SELECT nextval('changes') FROM generate_series(1, %s)"


class BaseData:
    """The platform's database. The changes come from the script of ``make demo``."""

    def __init__(self, conninfo: str) -> None:
        self.conninfo = conninfo
        self.outbox = cometmq.PostgresOutbox(conninfo, OUTBOX)
        self._connection = psycopg.connect(conninfo, autocommit=True)

    def create(self) -> None:
        """Create the tables, the outbox, and the sequence of change numbers."""
        with self._connection.transaction():
            for table in TABLES.values():
                columns = ", ".join(f"{name} {kind}" for name, kind in table.columns)
                self._run(f"CREATE TABLE {table.name} ({columns}, PRIMARY KEY ({table.key}))")
            self._run("CREATE SEQUENCE changes")
            self.outbox.create(self._connection)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    # --8<-- [start:commit]
    def commit(self, edits: Sequence[Edit], at_ms: int) -> int:
        """Commit edits and their messages in one transaction. Return the number of changes."""
        with self._connection.transaction():
            with self._connection.pipeline():
                for edit in edits:
                    self._apply(edit)
            # The rows are locked now, so a later change of a row gets a higher number.
            numbers = self._run(_NUMBERS, len(edits)).fetchall()
            with self._connection.pipeline():
                for edit, (number,) in zip(edits, numbers, strict=True):
                    self._tell(Change(edit.table, edit.op, edit.key, number, at_ms, edit.row))
        return len(edits)

    def _apply(self, edit: Edit) -> None:
        table = TABLES[edit.table]
        if edit.row is None:
            self._run(f"DELETE FROM {table.name} WHERE {table.key} = %s", edit.key)
            return
        marks = ", ".join(["%s"] * len(table.names))
        sets = ", ".join(f"{name} = excluded.{name}" for name in table.names)
        self._run(
            f"INSERT INTO {table.name} VALUES ({marks}) "
            f"ON CONFLICT ({table.key}) DO UPDATE SET {sets}",
            *edit.row.values(),
        )

    def _tell(self, change: Change) -> None:
        message = cometmq.Message(TOPIC, change.encode(), change.op, (change.key,))
        statement, values = self.outbox.statement(message, order_key=change.key)
        self._run(statement, *values)

    # --8<-- [end:commit]
    def _run(self, statement: str, *values: object) -> psycopg.Cursor[tuple[Any, ...]]:
        return self._connection.execute(statement.encode(), values)
