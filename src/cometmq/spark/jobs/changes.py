"""Parsing of change messages as a DataFrame. Each message is one committed change of a table row:

    {"table": "regions", "op": "insert"|"update"|"delete", "key": "AD-02", "change": 4711,
     "at_ms": 1772600767089, "row": {...} | null}

``change`` grows with every change of a row, also across its deletion and re-insertion. ``row`` is
the whole row after the change; it is null for deletions, and only for them. In the DataFrame,
``row`` stays JSON text, so that changes of all tables have the same columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f
from pyspark.sql.types import StructType
from pyspark.sql.window import Window

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

COLUMNS: Final = (
    "broker_name string, queue_id int, queue_offset bigint, body binary, "
    "born_timestamp timestamp, store_timestamp timestamp"
)
"""The columns of the source that are needed of each message, as DDL."""

_BODY: Final = "table string, op string, key string, change bigint, at_ms bigint, row string"
STATE_DDL: Final = (
    "table string, key string, op string, change bigint, at_ms bigint, row string, "
    "queue_offset bigint"
)
#: Column where from_json puts a row that does not fit its table's columns.
_CORRUPT: Final = "_as_it_was"
STATE: Final = tuple(column.split()[0] for column in STATE_DDL.split(", "))
"""The columns that a copy of the tables keeps of the newest change of each row. The first two are
the key: table and key."""


def parsed(
    messages: DataFrame, buckets: int, schemas: Mapping[str, str] | None = None
) -> DataFrame:
    """Return one row per message, with the ``bucket`` of its table and key.

    ``problem`` is null for a valid change. Otherwise it says why the body is no change, or how its
    row differs from the columns of its table in ``schemas`` (DDL by table). A message with a
    problem has its body in ``text`` and a null bucket; for others, ``text`` is null.
    """
    text = f.make_valid_utf8(f.col("body").cast("string"))
    found = messages.withColumn("text", text).withColumn("c", f.from_json("text", _BODY))
    problem = f.coalesce(_problem(), _drift(schemas or {}))
    return found.select(
        *("c.table", "c.op", "c.key", "c.change", "c.at_ms", "c.row"),
        *("broker_name", "queue_id", "queue_offset", "born_timestamp", "store_timestamp"),
        problem.alias("problem"),
        f.when(problem.isNotNull(), f.col("text")).alias("text"),
    ).withColumn("bucket", f.when(f.col("problem").isNull(), bucket_of(buckets)))


def bucket_of(buckets: int) -> Column:
    """Return the bucket, 0 to ``buckets`` - 1, of a table and key.

    Written tables depend on this function, so it must never change.
    """
    return f.pmod(f.xxhash64("table", "key"), f.lit(buckets)).cast("int")


def _problem() -> Column:
    """Return why the parsed body ``c`` is no change; null if it is one."""
    missing = f.col("c").isNull()
    for name in ("table", "key", "op", "change", "at_ms"):
        missing = missing | f.col(f"c.{name}").isNull()
    is_delete = f.col("c.op") == "delete"
    return (
        f.when(missing, "not a change: a field is missing or of another type")
        .when(~f.col("c.op").isin("insert", "update", "delete"), "op is unknown")
        .when(is_delete != f.col("c.row").isNull(), "row is null for a deletion, and only then")
    )


def _drift(schemas: Mapping[str, str]) -> Column:
    """Return how the row of the parsed body ``c`` differs from its table's columns: missing or
    extra fields, or another type.

    The result is null if the row does not differ, or if ``schemas`` lacks the table.
    """
    problem = f.lit(None).cast("string")
    for table, ddl in schemas.items():
        columns = StructType.fromDDL(ddl)
        assert isinstance(columns, StructType)
        names = f.array(*(f.lit(name) for name in columns.names))
        row = f.col("c.row")
        given = f.json_object_keys(row)
        extra, missing = f.array_except(given, names), f.array_except(names, given)
        read = f.from_json(
            row, f"{ddl}, {_CORRUPT} string", {"columnNameOfCorruptRecord": _CORRUPT}
        )
        reason = (
            f.when(given.isNull(), "row is not an object")
            .when(
                f.size(extra) > 0,
                f.concat(f.lit("row has unknown fields: "), f.concat_ws(", ", extra)),
            )
            .when(
                f.size(missing) > 0,
                f.concat(f.lit("row lacks fields: "), f.concat_ws(", ", missing)),
            )
            .when(read[_CORRUPT].isNotNull(), "a field of row is of another type")
        )
        is_of_table = (f.col("c.table") == table) & row.isNotNull()
        problem = f.when(is_of_table, reason).otherwise(problem)
    return problem


def newest(changes: DataFrame) -> DataFrame:
    """Return the newest change of every row: the one with the highest ``change``.

    If several have that ``change``, the one with the highest queue offset is returned.
    """
    last = f.max_by(f.struct(*STATE[2:]), f.struct("change", "queue_offset"))
    chosen = changes.groupBy("bucket", "table", "key").agg(last.alias("last"))
    return chosen.select("bucket", "table", "key", "last.*")


def with_group_value(changes: DataFrame, field: str) -> DataFrame:
    """Return each change once, with the value of its row's ``field`` in the column ``of``.

    A deletion has no row, so it gets the value that the row had before. A change that was published
    twice is returned once.
    """
    once = changes.dropDuplicates(["table", "key", "change"])
    own = f.get_json_object("row", f"$.{field}")
    before = Window.partitionBy("table", "key").orderBy("change")
    return once.withColumn("of", f.last(own, ignorenulls=True).over(before))
