"""What an application and an operator do with an outbox, in both databases."""

from __future__ import annotations

import sqlite3

import psycopg
import pytest

from cometmq.core.errors import MessageIllegal, SettingsError
from cometmq.message.model import Message
from cometmq.outbox.row import Page, Settled, Status, WantedRows
from cometmq.outbox.sqlite import SqliteOutbox
from tests.outbox.boxes import Shop, body

WANTED = WantedRows(rows=100, page_bytes=1 << 20, largest_bytes=1 << 20)


def test_a_message_waits_if_its_transaction_commits(shop: Shop) -> None:
    [first] = shop.write("t", [("a", 1)])
    with pytest.raises(ZeroDivisionError):
        shop.write("t", (("a", 2 // number) for number in (1, 0)))
    with shop.transaction() as connection:
        message = Message("t", body("b", 3), "tag", ("k",), properties={"x": "y"})
        second = shop.outbox.add(connection, message)
    source = shop.outbox.open()
    page = source.take(WANTED)
    assert page is not None
    assert [(row.id, row.topic, row.order_key, row.body) for row in page.rows] == [
        (first, "t", "a", b"a:1"),
        (second, "t", None, b"b:3"),
    ]
    found = page.rows[1].message()
    assert (found.tag, found.keys, found.properties) == ("tag", ("k",), {"x": "y"})
    assert page.rows[0].created_ms <= page.rows[1].created_ms
    assert page.rows[0].created_ms > 1_700_000_000_000
    source.give_up()
    source.close()


def test_connections_may_give_rows_in_any_shape(shop: Shop) -> None:
    with shop.transaction() as connection:
        connection.row_factory = (
            sqlite3.Row if isinstance(connection, sqlite3.Connection) else psycopg.rows.dict_row
        )
        first = shop.outbox.add(connection, Message("t", b"x"), order_key="a")
        if isinstance(connection, sqlite3.Connection):
            connection.row_factory = lambda cursor, row: {"id": row[0]}
        assert shop.outbox.add(connection, Message("t", b"x")) == first + 1


def test_what_no_broker_takes_is_refused_at_once(shop: Shop) -> None:
    with pytest.raises(MessageIllegal, match="may only contain"):
        shop.outbox.statement(Message("bad topic", b""))
    with pytest.raises(MessageIllegal, match="the body has"):
        shop.outbox.statement(Message("t", bytes(5 << 20)))


def test_table_names_are_plain() -> None:
    with pytest.raises(SettingsError, match="not a plain name"):
        SqliteOutbox("x.sqlite", "out box; DROP")
    with pytest.raises(SettingsError, match="no schemas"):
        SqliteOutbox("x.sqlite", "shop.outbox")


def test_tables_can_be_made_twice_and_over_the_applications_connection(shop: Shop) -> None:
    shop.write("t", [("a", 1)])
    with shop.transaction() as connection:
        shop.outbox.create(connection)  # type: ignore[attr-defined]
    assert shop.outbox.status().waiting == 1


def test_an_operator_sees_what_waits_and_decides_about_what_is_refused(shop: Shop) -> None:
    assert shop.outbox.status() == Status(0, None, 0)
    ids = shop.write("t", [("a", 1), ("b", 1), ("a", 2)])
    source = shop.outbox.open()
    page = source.take(WANTED)
    assert page is not None
    source.settle(Settled({ids[1]: ""}, {ids[0]: "too odd"}, now_ms=1))
    status = shop.outbox.status()
    assert (status.waiting, status.refused) == (1, 1)
    assert status.oldest_ms == page.rows[2].created_ms
    [refusal] = shop.outbox.refused()
    assert (refusal.id, refusal.topic, refusal.order_key) == (ids[0], "t", "a")
    assert refusal.reason == "too odd"
    # What stands behind it waits, unless one wants it otherwise.
    assert _taken(source.take(WANTED)) == []
    source.give_up()
    assert _taken(source.take(WantedRows(100, 1 << 20, 1 << 20, hold_keys=False))) == [ids[2]]
    source.give_up()
    assert not shop.outbox.retry(ids[2])
    assert shop.outbox.retry(ids[0])
    assert _taken(source.take(WANTED)) == [ids[0], ids[2]]
    source.settle(Settled({}, {ids[0]: "still odd"}, now_ms=1))
    assert not shop.outbox.discard(ids[2])
    assert shop.outbox.discard(ids[0])
    assert _taken(source.take(WANTED)) == [ids[2]]
    source.give_up()
    source.close()


def test_a_page_has_bounds(shop: Shop) -> None:
    ids = shop.write("t", [(None, number) for number in range(10)])
    shop.write("u", [(None, 10)])
    source = shop.outbox.open()
    for wanted, expected in (
        (WantedRows(3, 1 << 20, 1 << 20), ids[:3]),
        (WantedRows(100, 5, 1 << 20), ids[:3]),  # of two bytes each: the third fills it
        (WantedRows(100, 1 << 20, 1), []),
        (WantedRows(100, 1 << 20, 1 << 20, resting=["u"]), ids),
        (WantedRows(100, 1 << 20, 1 << 20, resting=["t", "u"]), []),
    ):
        page = source.take(wanted)
        assert _taken(page) == expected
        assert page is not None
        assert bool(page.refused) == (wanted.largest_bytes == 1)
        source.give_up()
    source.close()


def test_published_rows_stay_as_long_as_they_should(shop: Shop) -> None:
    first, second, third = shop.write("t", [("a", 1), ("a", 2), ("a", 3)])
    source = shop.outbox.open()
    assert source.take(WANTED) is not None
    source.settle(Settled({first: "x1"}, {}, now_ms=1_000, keep_ms=100))
    assert source.sent_as(first) == "x1"
    assert source.sent_as(second) is None
    assert _taken(source.take(WANTED)) == [second, third]
    source.settle(Settled({second: ""}, {}, now_ms=1_101, keep_ms=100))
    assert source.sent_as(first) is None
    assert source.sent_as(second) == ""
    assert _taken(source.take(WANTED)) == [third]
    source.settle(Settled({third: ""}, {}, now_ms=9_000))
    assert source.sent_as(third) is None
    assert shop.outbox.status() == Status(0, None, 0)
    source.close()


def test_one_relay_at_a_time(shop: Shop) -> None:
    [row] = shop.write("t", [("a", 1)])
    first, second = shop.outbox.open(), shop.outbox.open()
    assert _taken(first.take(WANTED)) == [row]
    assert second.take(WANTED) is None
    first.give_up()
    first.close()
    assert _taken(second.take(WANTED)) == [row]
    second.settle(Settled({row: ""}, {}, now_ms=1))
    second.close()


def _taken(page: Page | None) -> list[int]:
    assert page is not None
    return [row.id for row in page.rows]
