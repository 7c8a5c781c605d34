"""Tables in SQLite return what was stored; the message body has its documented JSON."""

import json
from pathlib import Path

import pytest

from examples.demo.tables import (
    REGIONS,
    TABLES,
    USERS,
    BadChange,
    Change,
    connect,
    decode,
    read_rows,
    read_table,
)
from tests.examples.demo.worlds import small_world


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


ROW = small_world()[2]


def test_the_body_is_the_documented_json() -> None:
    body = Change("regions", "update", "AD-02", 4711, 1_700_000_000_000, ROW).encode()
    assert json.loads(body) == {
        "table": "regions",
        "op": "update",
        "key": "AD-02",
        "change": 4711,
        "at_ms": 1_700_000_000_000,
        "row": ROW,
    }
    assert list(json.loads(body)) == ["table", "op", "key", "change", "at_ms", "row"]


def test_a_deletion_carries_a_null_row() -> None:
    body = Change("regions", "delete", "AD-02", 5, 6, None).encode()
    assert json.loads(body)["row"] is None
    assert decode(body).row is None


def test_a_body_comes_back_as_it_was() -> None:
    change = Change("regions", "insert", "AD-02", 1, 2, ROW)
    assert decode(change.encode()) == change


@pytest.mark.parametrize(
    "damage",
    [
        {"table": "planets"},
        {"op": "delete"},
        {"op": "rename"},
        {"row": None},
        {"row": {"code": "AD-02"}},
        {"row": ROW | {"code": "FR"}},
        {"change": "7"},
        {"at_ms": None},
    ],
)
def test_a_body_that_contradicts_itself_is_refused(damage: dict[str, object]) -> None:
    body = json.loads(Change("regions", "update", "AD-02", 1, 2, ROW).encode()) | damage
    with pytest.raises(BadChange):
        decode(json.dumps(body).encode())


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff\xfe", b"null"])
def test_what_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(BadChange):
        decode(body)
