"""Changes of tables in the envelopes of Canal, Debezium and Maxwell."""

import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from cometmq.core.errors import SettingsError
from cometmq.spark.tables.delta import DeltaLakeTable
from cometmq.spark.tables.iceberg import IcebergTable
from cometmq.spark.tables.postgres import PostgresTable
from cometmq.spark.tables.sink import Mark, TableSink
from cometmq.spark.values.envelopes import table_changes

pytestmark = pytest.mark.spark

ORDERS = "id bigint, customer string, total decimal(10,2), paid boolean, at timestamp, day date"
AT = "2026-11-27 12:00:00"
ROW = {"id": 7, "customer": "Ann", "total": "12.50", "paid": 1, "at": AT, "day": "2026-11-27"}
VALUES = (7, "Ann", Decimal("12.50"), True, datetime(2026, 11, 27, 12), date(2026, 11, 27))


def messages(spark: SparkSession, bodies: list[Any]) -> DataFrame:
    """A frame as the source has it; what is no bytes is written as JSON."""
    rows = [
        ("b", 0, number, each if isinstance(each, bytes | None) else json.dumps(each).encode())
        for number, each in enumerate(bodies)
    ]
    ddl = "broker_name string, queue_id int, queue_offset bigint, body binary"
    return spark.createDataFrame(rows, ddl)


def read(frame: DataFrame, envelope: str, **others: Any) -> list[dict[str, Any]]:
    """The changes in order."""
    found = table_changes(frame, ORDERS, envelope=envelope, **others)
    return [row.asDict() for row in found.orderBy("queue_offset", "item").collect()]


def values(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("id", "customer", "total", "paid", "at", "day"))


def canal(kind: str, rows: list[dict[str, Any]] | None, table: str = "orders") -> dict[str, Any]:
    texts = rows and [{name: str(value) for name, value in row.items()} for row in rows]
    return {
        "data": texts, "database": "shop", "es": 1_700_000_000_000, "id": 1, "isDdl": False,
        "old": None, "pkNames": ["id"], "sql": "", "table": table, "ts": 1_700_000_000_009,
        "type": kind,
    }  # fmt: skip


def test_canal(spark: SparkSession) -> None:
    bodies = [
        canal("INSERT", [ROW, ROW | {"id": 8, "total": "x"}]),
        canal("UPDATE", [ROW | {"customer": "Bob"}]),
        canal("DELETE", [ROW]),
        canal("ALTER", None) | {"isDdl": True},
        canal("INSERT", [ROW], table="others"),
        canal("INSERT", []),
        b"none",
    ]
    found = read(messages(spark, bodies), "canal", table="shop.orders")
    assert [(row["op"], row["queue_offset"], row["item"]) for row in found] == [
        *[("insert", 0, 0), ("insert", 0, 1), ("update", 1, 0), ("delete", 2, 0), ("other", 3, 0)],
        *[(None, 5, 0), (None, 6, 0)],
    ]
    assert values(found[0]) == VALUES
    assert (found[1]["undecodable"], found[1]["id"]) == ("column total is not decimal(10,2)", None)
    assert found[2]["customer"] == "Bob"
    assert [row["deleted"] for row in found] == [False, False, False, True, False, None, None]
    assert {row["at_ms"] for row in found[:4]} == {1_700_000_000_000}
    assert [row["undecodable"] for row in found[5:]] == [
        "the change has no row",
        "not a change of canal",
    ]
    assert [row["table"] for row in read(messages(spark, bodies), "canal")][5] == "others"


def debezium(op: str, before: Any, after: Any) -> dict[str, Any]:
    source = {"version": "3.0", "db": "shop", "table": "orders", "ts_ms": 1_700_000_000_000}
    return {"before": before, "after": after, "source": source, "op": op, "ts_ms": 17}


def test_debezium_with_its_schema_and_without(spark: SparkSession) -> None:
    moment = datetime(2026, 11, 27, 12, tzinfo=UTC)
    native = ROW | {
        "paid": True, "total": 12.5, "at": int(moment.timestamp() * 1_000_000), "day": 20_784,
    }  # fmt: skip
    bodies = [
        debezium("c", None, native),
        {"schema": {"type": "struct"}, "payload": debezium("u", native, native | {"id": 9})},
        debezium("d", native, None),
        None,
        debezium("r", None, native | {"at": int(moment.timestamp() * 1_000)}),
        debezium("t", None, None),
        {"unrelated": 1},
    ]
    found = read(messages(spark, bodies), "debezium")
    ops = [row["op"] for row in found]
    assert ops == ["insert", "update", "delete", "other", "insert", "truncate", None]
    assert values(found[0]) == values(found[4]) == VALUES
    assert found[1]["id"] == 9
    assert (found[2]["id"], found[2]["deleted"]) == (7, True)
    assert (found[3]["undecodable"], found[3]["id"]) == (None, None)
    assert found[6]["undecodable"] == "not a change of debezium"


def maxwell(kind: str, data: Any) -> dict[str, Any]:
    return {
        "database": "shop", "table": "orders", "type": kind, "ts": 1_700_000_000, "xid": 1,
        "commit": True, "data": data,
    }  # fmt: skip


def test_maxwell(spark: SparkSession) -> None:
    bodies = [
        maxwell("insert", ROW),
        maxwell("bootstrap-insert", ROW),
        maxwell("delete", ROW),
        maxwell("bootstrap-complete", {}),
        b"",
    ]
    found = read(messages(spark, bodies), "maxwell")
    assert [row["op"] for row in found] == ["insert", "insert", "delete", "other", None]
    assert values(found[0]) == VALUES
    assert found[0]["at_ms"] == 1_700_000_000_000
    assert found[4]["undecodable"] == "the body is empty"


BY_KEY: dict[str, Any] = {
    "keys": ["id"],
    "newest_by": ["queue_offset", "item"],
    "deleted": "deleted",
}
Customers = list[tuple[int, str]]


def in_postgres(conninfo: str, _: Path) -> tuple[TableSink, Callable[[], Customers]]:
    import psycopg

    def found() -> Customers:
        with psycopg.connect(conninfo) as database:
            return database.execute("select id, customer from canal_orders").fetchall()

    return PostgresTable(conninfo, "canal_orders", **BY_KEY), found


def in_delta(_: str, folder: Path) -> tuple[TableSink, Callable[[], Customers]]:
    from deltalake import DeltaTable

    def found() -> Customers:
        return customers(DeltaTable(folder).to_pyarrow_table())

    return DeltaLakeTable(str(folder), **BY_KEY), found


def in_iceberg(_: str, folder: Path) -> tuple[TableSink, Callable[[], Customers]]:
    from pyiceberg.catalog import load_catalog

    catalogue = {"type": "sql", "uri": f"sqlite:///{folder}/c.db", "warehouse": f"file://{folder}"}

    def found() -> Customers:
        table = load_catalog("default", **catalogue).load_table("shop.orders")
        return customers(table.scan().to_arrow())

    return IcebergTable("shop.orders", properties=catalogue, **BY_KEY), found


def customers(table: Any) -> Customers:
    return [(row["id"], row["customer"]) for row in table.to_pylist()]


@pytest.mark.parametrize("place", [in_postgres, in_delta, in_iceberg])
def test_changes_become_upserts_and_deletes(
    place: Callable[[str, Path], tuple[TableSink, Callable[[], Customers]]],
    spark: SparkSession,
    postgres: str,
    tmp_path: Path,
) -> None:
    bodies = [
        *(canal("INSERT", [ROW | {"id": number}]) for number in range(10)),
        canal("UPDATE", [ROW | {"id": number, "customer": "Bob"} for number in (1, 2)]),
        canal("DELETE", [ROW | {"id": 3}]),
        canal("INSERT", [ROW | {"id": 3, "customer": "again"}]),
        canal("DELETE", [ROW | {"id": 4}]),
    ]
    changes = table_changes(messages(spark, bodies), ORDERS, envelope="canal").where(
        "undecodable is null and op in ('insert', 'update', 'delete')"
    )
    columns = ["id", "customer", "total", "queue_offset", "item", "deleted"]
    table, found = place(postgres, tmp_path)
    # Two batches: the first ends after the updates.
    for batch, part in enumerate(("queue_offset <= 10", "queue_offset > 10")):
        assert table.apply(changes.where(part).select(*columns), Mark("query", batch))
    assert sorted(found()) == [
        *[(0, "Ann"), (1, "Bob"), (2, "Bob"), (3, "again")],
        *((number, "Ann") for number in range(5, 10)),
    ]


def test_arguments_are_checked(spark: SparkSession) -> None:
    frame = messages(spark, [b"{}"])
    with pytest.raises(SettingsError, match="none of canal, debezium, maxwell"):
        table_changes(frame, ORDERS, envelope="kafka")
    with pytest.raises(SettingsError, match="the column 'table' is one of the result"):
        table_changes(frame, "table string", envelope="canal")
    with pytest.raises(SettingsError, match="need the column body"):
        table_changes(frame.drop("body"), ORDERS, envelope="canal")
