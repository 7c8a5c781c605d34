"""The two tables that every party of the demo keeps: their form in SQLite, and their changes as
messages.

    regions   countries and their subdivisions (ISO 3166-1 and 3166-2), key ``code``
    users     persons who live in a region, key ``id``

The body of a message is one change of one row:

    {"table": "regions", "op": "update", "key": "AD-02", "change": 4711,
     "at_ms": 1772600767089, "row": {"code": "AD-02", ...}}

``change`` grows with every change of a row, even across its deletion and return. So a copy that
stores the highest number of each row can distinguish a late message from a new one. ``row`` is the
whole row after the change, null for a deletion. The message has the operation as its tag and the
key as its key.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

Value = str | int | None
Row = dict[str, Value]


@dataclass(frozen=True, slots=True)
class Table:
    """A table's name, and its columns with their SQLite types; the first column is the key."""

    name: str
    columns: tuple[tuple[str, str], ...]

    @property
    def key(self) -> str:
        """Name of the key column."""
        return self.columns[0][0]

    @property
    def names(self) -> tuple[str, ...]:
        """Column names in order."""
        return tuple(name for name, _ in self.columns)

    def create_sql(self) -> str:
        """Return the statement that creates the table."""
        types = [f"{name} {kind}" for name, kind in self.columns]
        types[0] += " PRIMARY KEY"
        return f"CREATE TABLE IF NOT EXISTS {self.name} ({', '.join(types)}) WITHOUT ROWID"

    def upsert_sql(self) -> str:
        """Return the statement that inserts or replaces a row, given by named parameters."""
        marks = ", ".join(f":{name}" for name in self.names)
        return f"INSERT OR REPLACE INTO {self.name} ({', '.join(self.names)}) VALUES ({marks})"

    def delete_sql(self) -> str:
        """Return the statement that deletes the row of one key."""
        return f"DELETE FROM {self.name} WHERE {self.key} = ?"


REGIONS = Table(
    "regions",
    (
        ("code", "TEXT NOT NULL"),
        ("country", "TEXT NOT NULL"),
        ("name", "TEXT NOT NULL"),
        ("kind", "TEXT NOT NULL"),
        ("parent", "TEXT"),
        ("population", "INTEGER NOT NULL"),
    ),
)
USERS = Table(
    "users",
    (
        ("id", "TEXT NOT NULL"),
        ("name", "TEXT NOT NULL"),
        ("email", "TEXT NOT NULL"),
        ("country", "TEXT NOT NULL"),
        ("region", "TEXT NOT NULL"),
        ("level", "INTEGER NOT NULL"),
    ),
)
TABLES = {table.name: table for table in (REGIONS, USERS)}


def connect(path: Path) -> sqlite3.Connection:
    """Open a database, and create it if needed; threads that share the connection must take turns.

    The write-ahead log is synced at checkpoints only: a killed process loses nothing, a power cut
    may lose the last transactions.
    """
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    for table in TABLES.values():
        connection.execute(table.create_sql())
    return connection


def read_rows(connection: sqlite3.Connection, table: Table) -> Iterator[Row]:
    """Yield every row of a table, in the order of its keys."""
    names = table.names
    cursor = connection.execute(f"SELECT {', '.join(names)} FROM {table.name} ORDER BY {table.key}")
    for values in cursor:
        yield dict(zip(names, values, strict=True))


def read_table(path: Path, table: Table) -> list[Row]:
    """Return every row of a table in the database at ``path``, in the order of its keys."""
    connection = connect(path)
    try:
        return list(read_rows(connection, table))
    finally:
        connection.close()


Operation = Literal["insert", "update", "delete"]


class BadChange(ValueError):
    """A message body is not a change of a known table."""


class Change(msgspec.Struct, frozen=True):
    """One committed change; ``at_ms`` is the wall time of its commit."""

    table: str
    op: Operation
    key: str
    change: int
    at_ms: int
    row: Row | None

    def encode(self) -> bytes:
        """Return the message body."""
        return msgspec.json.encode(self)


_decoder = msgspec.json.Decoder(Change)


def decode(body: bytes) -> Change:
    """Parse a message body. Raise BadChange if it is malformed or contradicts itself."""
    try:
        change = _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadChange(f"not a change: {error}") from None
    table = TABLES.get(change.table)
    if table is None:
        raise BadChange(f"no table {change.table!r}")
    if (change.row is None) != (change.op == "delete"):
        raise BadChange(f"{change.op} of {change.key} with row {change.row!r}")
    if change.row is not None and tuple(change.row) != table.names:
        raise BadChange(f"{change.table} has columns {table.names}, not {tuple(change.row)}")
    if change.row is not None and change.row[table.key] != change.key:
        raise BadChange(f"key {change.key!r} over a row of {change.row[table.key]!r}")
    return change
