"""A change and its message are one transaction of PostgreSQL."""

import itertools
import json
from collections.abc import Iterator

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from cometmq.testing.postgres import running_postgres
from examples.datasync.base import BaseData
from examples.datasync.copies import in_database, in_history
from examples.demo.compare import compare
from examples.demo.script import Edit
from examples.demo.tables import Row

NUMBERS = itertools.count(1)
USER: Row = {
    "id": "U1", "name": "Óscar Şahin", "email": "u1@example.org", "country": "AD",
    "region": "AD-02", "level": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with running_postgres() as conninfo:
        yield conninfo


@pytest.fixture
def base(server: str) -> Iterator[BaseData]:
    name = f"base_{next(NUMBERS)}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    platform = BaseData(make_conninfo(server, dbname=name))
    platform.create()
    yield platform
    platform.close()


def messages(base: BaseData) -> list[dict[str, object]]:
    with psycopg.connect(base.conninfo) as connection:
        rows = connection.execute("SELECT order_key, body FROM outbox ORDER BY id").fetchall()
    changes = [json.loads(body) for _, body in rows]
    assert [key for key, _ in rows] == [change["key"] for change in changes]
    return changes


def test_each_change_has_its_message(base: BaseData) -> None:
    edits = [
        Edit("users", "insert", "U1", USER),
        Edit("users", "update", "U1", USER | {"level": 3}),
        Edit("users", "insert", "U2", USER | {"id": "U2"}),
    ]
    assert base.commit(edits, 5) == 3
    assert base.commit([Edit("users", "delete", "U2", None)], 6) == 1
    changes = messages(base)
    assert [(change["op"], change["key"], change["at_ms"]) for change in changes] == [
        ("insert", "U1", 5), ("update", "U1", 5), ("insert", "U2", 5), ("delete", "U2", 6),
    ]  # fmt: skip
    numbers = [change["change"] for change in changes]
    assert numbers == sorted(set(map(int, map(str, numbers))))
    assert in_database(base.conninfo)["users"] == [USER | {"level": 3}]


def test_a_transaction_that_fails_tells_nobody(base: BaseData) -> None:
    bad = USER | {"id": "U2", "name": None}
    with pytest.raises(psycopg.errors.NotNullViolation):
        base.commit([Edit("users", "insert", "U1", USER), Edit("users", "insert", "U2", bad)], 5)
    assert messages(base) == []
    assert in_database(base.conninfo)["users"] == []


def test_the_newest_change_of_a_row_counts() -> None:
    def change(op: str, key: str, number: int, level: int) -> Row:
        row = None if op == "delete" else json.dumps(USER | {"id": key, "level": level})
        return {
            "table": "users",
            "op": op,
            "key": key,
            "change": number,
            "row": row,
            "problem": None,
        }

    history: list[Row] = [
        change("insert", "U1", 1, 0), change("update", "U1", 4, 2), change("update", "U1", 3, 1),
        change("insert", "U2", 2, 0), change("delete", "U2", 5, 0), change("update", "U1", 4, 2),
        {"table": None, "key": None, "op": None, "change": None, "row": None, "problem": "bad"},
    ]  # fmt: skip
    expected = {"regions": [], "users": [USER | {"level": 2}]}
    assert compare("history", expected, in_history(history)).equal
