"""Changes of database tables, in the envelopes of Canal, Debezium and Maxwell.

| | Canal (flat messages) | Debezium (JSON) | Maxwell |
|---|---|---|---|
| kind | `type`: INSERT, UPDATE, DELETE; `isDdl` | `op`: c, r, u, d, t | `type`: insert, ... |
| rows | `data`, a list; all values are texts | `after`, of a deletion `before` | `data`, one row |
| table | `database`, `table` | `source.db`, `source.table` | `database`, `table` |
| time | `es`, ms | `source.ts_ms` | `ts`, s |

Debezium's envelope may be nested in the field `payload`, next to `schema`. Its tombstones have no
body. Spark's own functions read the envelopes, so no row passes through Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f
from pyspark.sql import types as t

from cometmq.core.errors import SettingsError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_MAP: Final = "map<string,string>"
_DEBEZIUM: Final = (
    f"op string, before {_MAP}, after {_MAP}, ts_ms bigint, "
    "source struct<db:string, schema:string, table:string, ts_ms:bigint>"
)
_ENVELOPES: Final = {
    "canal": (
        f"database string, table string, type string, isDdl boolean, es bigint, ts bigint, "
        f"data array<{_MAP}>"
    ),
    "debezium": f"{_DEBEZIUM}, payload struct<{_DEBEZIUM}>",
    "maxwell": f"database string, table string, type string, ts bigint, data {_MAP}",
}
_OPS: Final = {
    **dict.fromkeys(("insert", "bootstrap-insert", "c", "r"), "insert"),
    **dict.fromkeys(("update", "u"), "update"),
    **dict.fromkeys(("delete", "d"), "delete"),
    **dict.fromkeys(("truncate", "t"), "truncate"),
}
#: Kinds that change no row: the beginning and the end of a bootstrap, transactions, definitions.
_OTHER: Final = "other"
_PLACE: Final = ("broker_name", "queue_id", "queue_offset")
CHANGES_DDL: Final = (
    "database string, table string, op string, deleted boolean, at_ms bigint, item int, "
    "undecodable string"
)
"""Columns that :func:`table_changes` adds to those of the table and the place of the message."""


@dataclass(frozen=True, slots=True)
class _Parts:
    """Expressions for the parts of a parsed envelope. ``rows`` is an array of maps."""

    database: Column
    table: Column
    kind: Column
    at_ms: Column
    rows: Column


def table_changes(
    messages: DataFrame, schema: str | t.StructType, *, envelope: str, table: str = ""
) -> DataFrame:
    """Return one row for each changed row of a table, with the table's columns.

    ``messages`` need the column ``body``, and should have broker_name, queue_id and queue_offset.
    ``schema`` has the columns of the table. ``envelope`` is "canal", "debezium" or "maxwell". With
    ``table``, written ``database.table``, changes of other tables are left out.

    The result has the columns of ``schema``, those of ``CHANGES_DDL`` and the place of the message.
    For a deletion, the columns have the values that the envelope has of the deleted row.

    ``op`` is insert, update, delete or truncate, or other for a message that changes no row; only
    the first three have values in the table's columns. ``item`` numbers the rows of a message. A
    change that cannot be read has the reason in ``undecodable`` and null columns; it is returned
    for any ``table``.

    To merge the changes into a table, select
    ``where("undecodable is null and op in ('insert', 'update', 'delete')")`` and merge with
    ``newest_by=["queue_offset", "item"]`` and ``deleted="deleted"``. This requires that all changes
    of a row are in one queue.

    Raises SettingsError for an unknown envelope, a column name that the result uses itself, and a
    missing column ``body``.
    """
    if envelope not in _ENVELOPES:
        known = ", ".join(sorted(_ENVELOPES))
        raise SettingsError("envelope", f"{envelope!r} is none of {known}")
    if "body" not in messages.columns:
        raise SettingsError("messages", "need the column body: name it in the schema of the read")
    columns = t.StructType.fromDDL(schema) if isinstance(schema, str) else schema
    assert isinstance(columns, t.StructType)
    _check_names(columns.names)
    place = [name for name in _PLACE if name in messages.columns]
    text = f.col("body").cast("string")
    read = messages.withColumn("_envelope", f.from_json(text, _ENVELOPES[envelope]))
    parts = {"canal": _canal, "debezium": _debezium, "maxwell": _maxwell}[envelope]()
    op = f.lit(_OTHER)
    for word, meaning in _OPS.items():
        op = f.when(f.lower(parts.kind) == word, meaning).otherwise(op)
    is_row = op.isin("insert", "update", "delete")
    is_tombstone = f.col("body").isNull() | (f.octet_length("body") == 0)
    problem = (
        f.when(is_tombstone & f.lit(envelope == "debezium"), f.lit(None).cast("string"))
        .when(is_tombstone, "the body is empty")
        .when(~f.is_valid_utf8(text), "not UTF-8")
        .when(f.col("_envelope").isNull() | parts.kind.isNull(), f"not a change of {envelope}")
        .when(is_row & (f.coalesce(f.size(parts.rows), f.lit(0)) <= 0), "the change has no row")
    )
    flat = read.select(
        *place,
        parts.database.alias("database"), parts.table.alias("table"),
        f.when(problem.isNull(), op).alias("op"),
        parts.at_ms.alias("at_ms"),
        problem.alias("_problem"),
        f.posexplode_outer(f.when(is_row & problem.isNull(), parts.rows)).alias("item", "_row"),
    )  # fmt: skip
    if table:
        name = f.concat_ws(".", "database", "table")
        flat = flat.where((name == table) | f.col("_problem").isNotNull())
    return _typed(flat, columns, place)


def _check_names(names: Sequence[str]) -> None:
    own = {*_PLACE, *(each.split()[0] for each in CHANGES_DDL.split(", "))}
    taken = sorted(own & set(names))
    if taken:
        raise SettingsError("schema", f"the column {taken[0]!r} is one of the result: rename it")


def _typed(flat: DataFrame, columns: t.StructType, place: Sequence[str]) -> DataFrame:
    """Convert the text values of rows to columns. A value that does not fit makes the row
    undecodable."""
    values = {each.name: _value(f.col("_row")[each.name], each.dataType) for each in columns}
    wrong = f.concat_ws(
        "; ",
        *(
            f.when(
                f.col("_row")[name].isNotNull() & value.isNull(),
                f"column {name} is not {columns[name].dataType.simpleString()}",
            )
            for name, value in values.items()
        ),
    )
    problem = f.coalesce(f.col("_problem"), f.when(wrong != "", wrong))
    named = flat.withColumn("undecodable", problem)
    is_read = f.col("undecodable").isNull()
    return named.select(
        *(f.when(is_read, value).alias(name) for name, value in values.items()),
        *("database", "table", "op"),
        (f.col("op") == "delete").alias("deleted"),
        "at_ms",
        f.coalesce("item", f.lit(0)).alias("item"),
        "undecodable",
        *place,
    )


def _value(text: Column, kind: t.DataType) -> Column:
    """Return a text of an envelope converted to ``kind``; null if that is impossible.

    A number is a date in days, or a time in seconds, milliseconds or microseconds: its size decides
    which.
    """
    name = kind.simpleString()
    if isinstance(kind, t.StructType | t.ArrayType | t.MapType):
        return f.from_json(text, kind)
    is_number = text.rlike(r"^-?\d{1,18}$")
    if isinstance(kind, t.DateType):
        days = text.try_cast("int")
        return f.when(is_number, f.date_add(f.lit("1970-01-01").cast("date"), days)).otherwise(
            text.try_cast(name)
        )
    if isinstance(kind, t.TimestampType):
        number = text.try_cast("bigint")
        moment = (
            f.when(f.abs(number) >= 10**14, f.timestamp_micros(number))
            .when(f.abs(number) >= 10**11, f.timestamp_millis(number))
            .otherwise(f.timestamp_seconds(number))
        )
        return f.when(is_number, moment).otherwise(text.try_cast(name))
    if isinstance(kind, t.BooleanType):
        return f.when(text == "1", True).when(text == "0", False).otherwise(text.try_cast(name))
    if isinstance(kind, t.BinaryType):
        return f.try_to_binary(text, f.lit("base64"))
    return text.try_cast(name)


def _canal() -> _Parts:
    given = f.col("_envelope")
    kind = f.when(given["isDdl"], _OTHER).otherwise(given["type"])
    at_ms = f.coalesce(given["es"], given["ts"])
    return _Parts(given["database"], given["table"], kind, at_ms, given["data"])


def _debezium() -> _Parts:
    outer = f.col("_envelope")
    inner = outer["payload"]

    def of(name: str) -> Column:
        return f.coalesce(inner[name], outer[name])

    source = of("source")
    row = f.when(of("op") == "d", of("before")).otherwise(of("after"))
    rows = f.when(row.isNotNull(), f.array(row))
    at_ms = f.coalesce(source["ts_ms"], of("ts_ms"))
    # A message with a source and without an op, such as a table definition, changes no row.
    kind = f.coalesce(of("op"), f.when(outer.isNotNull() & source.isNotNull(), _OTHER))
    return _Parts(source["db"], source["table"], kind, at_ms, rows)


def _maxwell() -> _Parts:
    given = f.col("_envelope")
    rows = f.when(given["data"].isNotNull(), f.array(given["data"]))
    at_ms = given["ts"] * 1000
    return _Parts(given["database"], given["table"], given["type"], at_ms, rows)
