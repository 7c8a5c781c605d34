"""Outbox in SQLite, with Python's own driver.

The application writes over its own connection; a relay opens another one. Only one relay works on a
table at a time: it locks a second SQLite file, ``<database>-relay`` (``<database>-relay-<table>``
for a table that is not called outbox). The operating system releases the lock at the latest when
the process ends.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cometmq.core.errors import NotOpen, SettingsError
from cometmq.outbox.row import Page, Row, Settled, WantedRows, fitting
from cometmq.outbox.table import Outbox, split

if TYPE_CHECKING:
    from cometmq.outbox.row import Statement, Value
    from cometmq.outbox.table import Statements

_CREATE: Final = """
CREATE TABLE IF NOT EXISTS {table} (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    topic TEXT NOT NULL,
    order_key TEXT,
    headers TEXT NOT NULL DEFAULT '{{}}',
    created_ms INTEGER NOT NULL
        DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)),
    published_ms INTEGER,
    sent_as TEXT,
    refused TEXT,
    body BLOB NOT NULL
);
"""
#: Longest time for which a statement waits for transactions of the application.
_BUSY_TIMEOUT_S: Final = 30.0


class SqliteOutbox(Outbox):
    """Outbox ``table`` of the database at ``path``.

    Raises SettingsError if ``table`` is not a plain identifier, or names a schema.
    """

    errors = (sqlite3.Error,)

    def __init__(
        self,
        path: Path | str,
        table: str = "outbox",
        *,
        max_message_bytes: int = 4 * 1024 * 1024,
    ) -> None:
        # SQLite stores text in a BLOB column as text, so the body is cast when it is read.
        super().__init__(table, "?", max_message_bytes, body="CAST(body AS BLOB)")
        if "." in table:
            raise SettingsError("table", f"{table!r}: SQLite has no schemas")
        self.path = Path(path)

    @property
    def name(self) -> str:
        return f"{self.path}:{self.table}"

    @property
    def lock_path(self) -> Path:
        """File that the working relay of the table locks."""
        # Table names are not case-sensitive.
        table = self.table.lower()
        suffix = "-relay" if table == "outbox" else f"-relay-{table}"
        return self.path.with_name(f"{self.path.name}{suffix}")

    def create(self, connection: sqlite3.Connection | None = None) -> None:
        """Create the table if it does not exist, over the application's connection or a new one.

        This commits a transaction that is open on ``connection``.
        """
        if connection is None:
            with closing(_connect(self.path)) as own:
                self.create(own)
        else:
            connection.executescript(";".join(self.schema()))

    def schema(self) -> list[str]:
        return split(_CREATE.format(table=self.table) + self.statements.indexes())

    def open(self) -> SqliteSource:
        return SqliteSource(self.path, self.lock_path, self.statements)

    def _insert(self, values: tuple[Value, ...]) -> Statement:
        return (
            f"INSERT INTO {self.table} (topic, order_key, headers, body) VALUES (?, ?, ?, ?) "
            "RETURNING id",
            values,
        )

    def _insert_over(self, connection: sqlite3.Connection, statement: Statement) -> int:
        # Python 3.12 added `autocommit`; it is a bool only if the application set it.
        commits_alone = (
            connection.isolation_level is None or getattr(connection, "autocommit", None) is True
        )
        if commits_alone and not connection.in_transaction:
            raise NotOpen("sqlite3 has no transaction: execute BEGIN first")
        cursor = connection.cursor()
        cursor.row_factory = None
        # Read the whole result, otherwise SQLite treats the insert as unfinished.
        [(row_id,)] = cursor.execute(*statement).fetchall()
        return int(row_id)

    def _query(self, statement: Statement) -> tuple[Sequence[Sequence[Any]], int]:
        with closing(_connect(self.path)) as connection:
            done = connection.execute(*statement)
            return done.fetchall(), done.rowcount


class SqliteSource:
    """Access of one relay to an outbox in SQLite; see row.Source."""

    def __init__(self, path: Path, lock_path: Path, statements: Statements) -> None:
        self._statements = statements
        with ExitStack() as opened:
            self._connection = opened.enter_context(closing(_connect(path)))
            self._lock = opened.enter_context(closing(_connect(lock_path, busy_timeout_s=0)))
            self._opened = opened.pop_all()

    def take(self, wanted: WantedRows) -> Page | None:
        if not self._lock.in_transaction and not _locks(self._lock):
            return None
        run = self._connection.execute
        ids, refused = fitting(run(*self._statements.waiting(wanted)).fetchall(), wanted)
        rows = run(*self._statements.rows(ids)) if ids else ()
        return Page([Row(*row) for row in rows], refused)

    def settle(self, settled: Settled) -> None:
        with _writing(self._connection):
            for statement, values in self._statements.settle(settled):
                self._connection.executemany(statement, values)

    def give_up(self) -> None:
        """Do nothing: a page of SQLite is read outside of transactions."""

    def sent_as(self, row_id: int) -> str | None:
        found = self._connection.execute(*self._statements.sent_as(row_id)).fetchone()
        return None if found is None else found[0] or ""

    def close(self) -> None:
        self._opened.close()


def _connect(path: Path, *, busy_timeout_s: float = _BUSY_TIMEOUT_S) -> sqlite3.Connection:
    """Open a connection without implicit transactions."""
    return sqlite3.connect(path, isolation_level=None, timeout=busy_timeout_s)


@contextmanager
def _writing(connection: sqlite3.Connection) -> Iterator[None]:
    """Run the block in a write transaction."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _locks(connection: sqlite3.Connection) -> bool:
    """Lock the relay's file; return False if another relay has locked it."""
    try:
        connection.execute("BEGIN EXCLUSIVE")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
            raise
        return False
    return True
