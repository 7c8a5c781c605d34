"""The copies: their locations, their rows, and their comparison with the base."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import dict_row

from examples.demo.compare import Comparison, compare
from examples.demo.tables import TABLES, Row

#: The platforms that have their own database.
PLATFORMS = ("social", "orders")

Tables = Mapping[str, list[Row]]


@dataclass(frozen=True, slots=True)
class Places:
    """The server of all databases, and the folder for all other files."""

    server: str
    folder: Path

    def database(self, name: str) -> str:
        """Return the conninfo of a database."""
        return make_conninfo(self.server, dbname=name)

    def url(self, name: str) -> str:
        """Return the URL of a database."""
        host = conninfo_to_dict(self.server)["host"]
        return f"postgresql:///{name}?host={host}&user=postgres"

    @property
    def history(self) -> Path:
        """The Delta table with every change that was received, including repeated ones."""
        return self.folder / "history"

    @property
    def checkpoint(self) -> Path:
        """The folder of Spark's checkpoint."""
        return self.folder / "checkpoint"

    def make_databases(self) -> None:
        """Create a database for each platform, and one for the base."""
        with psycopg.connect(self.server, autocommit=True) as connection:
            for name in ("base", *PLATFORMS):
                connection.execute(f"CREATE DATABASE {name}".encode())


def in_database(conninfo: str) -> Tables:
    """Return all rows of a database's tables."""
    with psycopg.connect(conninfo, row_factory=dict_row) as connection:
        return {
            table.name: connection.execute(
                f"SELECT {', '.join(table.names)} FROM {table.name}".encode()
            ).fetchall()
            for table in TABLES.values()
        }


def in_history(changes: Iterable[Row]) -> Tables:
    """Return the rows that result from the newest change of each."""
    newest: dict[tuple[str, str], Row] = {}
    for change in changes:
        if change["problem"] is not None:
            continue  # the message is no change
        place = str(change["table"]), str(change["key"])
        if place not in newest or int(change["change"] or 0) > int(newest[place]["change"] or 0):
            newest[place] = change
    tables: dict[str, list[Row]] = {name: [] for name in TABLES}
    for (name, _), change in newest.items():
        if change["op"] != "delete":
            tables[name].append(msgspec.json.decode(str(change["row"]), type=Row))
    return tables


def compared(places: Places, history: Iterable[Row]) -> list[Comparison]:
    """Compare every copy with the base, row by row."""
    base = in_database(places.database("base"))
    found = [compare(name, base, in_database(places.database(name))) for name in PLATFORMS]
    return [*found, compare("history", base, in_history(history))]
