"""Tables in SQLite: what goes in comes out, typed and ordered."""

from pathlib import Path

from cometmq.demo.tables import REGIONS, TABLES, USERS, connect, read_rows, read_table
from tests.demo.worlds import small_world


def test_rows_come_back_as_they_went_in(tmp_path: Path) -> None:
    connection = connect(tmp_path / "a.sqlite")
    rows = small_world()
    for row in reversed(rows):
        connection.execute(REGIONS.upsert_sql(), row)
    assert list(read_rows(connection, REGIONS)) == sorted(rows, key=lambda row: str(row["code"]))
    connection.close()
    assert len(read_table(tmp_path / "a.sqlite", REGIONS)) == len(rows)
    assert read_table(tmp_path / "a.sqlite", USERS) == []


def test_an_upsert_replaces_and_a_delete_removes_one_row(tmp_path: Path) -> None:
    connection = connect(tmp_path / "a.sqlite")
    first, second = small_world()[:2]
    connection.execute(REGIONS.upsert_sql(), first)
    connection.execute(REGIONS.upsert_sql(), second)
    connection.execute(REGIONS.upsert_sql(), first | {"population": 7})
    connection.execute(REGIONS.delete_sql(), (second["code"],))
    assert list(read_rows(connection, REGIONS)) == [first | {"population": 7}]
    connection.close()


def test_keys_are_the_first_columns() -> None:
    assert {name: table.key for name, table in TABLES.items()} == {"regions": "code", "users": "id"}
