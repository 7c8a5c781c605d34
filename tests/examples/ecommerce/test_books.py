"""The books of the shop find each thing that must not be."""

import sqlite3
from pathlib import Path

import pytest

from examples.ecommerce import orders, payments, stock
from examples.ecommerce.books import Books

SCHEMAS = {"orders": orders.SCHEMA, "payments": payments.SCHEMA, "stock": stock.SCHEMA}
# Two orders: one shipped, one paid back for want of stock.
ROWS = {
    "orders": "INSERT INTO orders VALUES ('A1', 2, 100, 61000, 'shipped'),"
    " ('A2', 9, 500, 62000, 'refunded')",
    "payments": "INSERT INTO payments VALUES ('A1', 100, 62000), ('A2', 500, 130000);"
    "INSERT INTO refunds VALUES ('A2', 500, 140000)",
    "stock": "INSERT INTO items VALUES ('tea', 3);"
    "INSERT INTO ended VALUES ('A1', 'shipped', 2, 100, 63000), ('A2', 'sold-out', 9, 500, 135000)",
}
CHARGES = {"A1": 1, "A2": 1}
PIECES = 5


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, schema in SCHEMAS.items():
        change(tmp_path, name, schema + ROWS[name])
    return tmp_path


def change(folder: Path, name: str, script: str) -> None:
    database = sqlite3.connect(folder / f"{name}.sqlite")
    database.executescript(script)
    database.commit()
    database.close()


def wrong(folder: Path, charges: dict[str, int] = CHARGES) -> list[str]:
    books = Books(folder)
    try:
        return books.wrong(charges, PIECES)
    finally:
        books.close()


def test_right_books(folder: Path) -> None:
    assert wrong(folder) == []


@pytest.mark.parametrize(
    ("name", "script", "found"),
    [
        ("orders", "UPDATE orders SET state = 'open' WHERE number = 'A2'", "came to an end"),
        ("orders", "UPDATE orders SET cents = 99", "money that was kept"),
        ("orders", "UPDATE orders SET state = 'shipped'", "what the shop calls shipped"),
        ("payments", "DELETE FROM refunds", "money that was kept"),
        ("payments", "INSERT INTO payments VALUES ('A3', 0, 0)", "the bank and the payments agree"),
        ("stock", "UPDATE items SET pieces = 4", "every piece"),
        ("stock", "DELETE FROM ended WHERE number = 'A1'", "what the shop calls shipped"),
    ],
)
def test_what_is_wrong_is_named(folder: Path, name: str, script: str, found: str) -> None:
    change(folder, name, script)
    assert any(found in problem for problem in wrong(folder))


def test_a_second_charge_is_found(folder: Path) -> None:
    assert wrong(folder, {"A1": 2, "A2": 1}) == ["no order is paid twice"]


def test_the_database_itself_refuses_a_negative_stock(folder: Path) -> None:
    with pytest.raises(sqlite3.IntegrityError):
        change(folder, "stock", "UPDATE items SET pieces = -1")


def test_minutes(folder: Path) -> None:
    books = Books(folder)
    assert books.minutes() == {
        (60_000, "placed"): (2, 600),
        (60_000, "paid"): (1, 100),
        (60_000, "shipped"): (1, 100),
        (120_000, "paid"): (1, 500),
        (120_000, "sold-out"): (1, 500),
        (120_000, "refunded"): (1, 500),
    }
    books.close()
