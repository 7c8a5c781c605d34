"""The columns of the source, in order, with the type of each in Spark and in Arrow.

A user's schema may name any of them in any order; only those are decoded. Timestamps are UTC
microseconds, as in Spark's TIMESTAMP, although RocketMQ counts milliseconds.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class BadSchema(ValueError):
    """Raised if a user's schema names a column that the source does not have, or gives it another
    type."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column. ``spark`` is its DDL type; ``meaning`` is its description in the
    documentation."""

    name: str
    spark: str
    arrow: pa.DataType
    meaning: str


_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_MAP: Final = pa.map_(pa.string(), pa.string())

COLUMNS: Final = (
    Column("topic", "string", pa.string(), "topic as the record has it"),
    Column("broker_name", "string", pa.string(), "broker name of the queue"),
    Column("queue_id", "int", pa.int32(), "queue of the topic on that broker"),
    Column("queue_offset", "bigint", pa.int64(), "index in the queue, dense from 0"),
    Column("physical_offset", "bigint", pa.int64(), "byte position in the broker's commit log"),
    Column("msg_id", "string", pa.string(), "the producer's unique key, else the offset id"),
    Column(
        "keys", "string", pa.string(), "index keys, separated by blanks; null if there are none"
    ),
    Column("tags", "string", pa.string(), "the tag; null if there is none"),
    Column("body", "binary", pa.binary(), "the body, unpacked where it was compressed"),
    Column("properties", "map<string,string>", _MAP, "all properties, reserved names included"),
    Column("born_timestamp", "timestamp", _TIMESTAMP, "when the producer made it"),
    Column("born_host", "string", pa.string(), "the producer's address"),
    Column("store_timestamp", "timestamp", _TIMESTAMP, "when the broker stored it"),
    Column("store_host", "string", pa.string(), "the broker's address"),
    Column("sys_flag", "int", pa.int32(), "bits: compression, transaction, address kinds"),
    Column("flag", "int", pa.int32(), "the user's own flag"),
    Column("reconsume_times", "int", pa.int32(), "how often a group sent it back"),
    Column("body_crc", "int", pa.int32(), "CRC-32 of the stored body, 31 bits"),
    Column("prepared_offset", "bigint", pa.int64(), "commit-log offset of a half message"),
    Column("size_bytes", "int", pa.int32(), "size of the whole record in the commit log"),
)
CORRUPT: Final = Column(
    "_corrupt", "string", pa.string(), "reason why the message could not be read, otherwise null"
)
"""Part of the default schema only if mode=PERMISSIVE; otherwise present if a user's schema names
it."""

BODY: Final = "body"
VALUE: Final = "value"
UNDECODABLE: Final = "undecodable"
"""Part of the schema only if the option valueFormat decodes bodies: the value, and the reason if
there is none."""

NAMES: Final = tuple(column.name for column in COLUMNS)
BY_NAME: Final = {column.name: column for column in (*COLUMNS, CORRUPT)}
DDL: Final = ", ".join(f"{column.name} {column.spark}" for column in COLUMNS)


def arrow_schema(names: tuple[str, ...] = NAMES) -> pa.Schema:
    """Return the Arrow schema that Spark expects of every batch with these columns."""
    return pa.schema([pa.field(name, BY_NAME[name].arrow) for name in names])


def selected(schema: StructType, *, without: Collection[str] = ()) -> tuple[str, ...]:
    """Return the column names of a user's schema, in its order, except those in ``without``.

    Raises BadSchema for an unknown column, a type that differs from the source's, or a NOT NULL
    column.
    """
    fields = [field for field in schema.fields if field.name not in without]
    for field in fields:
        column = BY_NAME.get(field.name)
        if column is None:
            of_value = ", and with option valueFormat value and undecodable"
            raise BadSchema(
                f"no column {field.name!r}; the source has {', '.join(BY_NAME)}{of_value}"
            )
        asked = field.dataType.simpleString()
        if asked != column.spark:
            raise BadSchema(f"column {field.name!r} is {column.spark}, not {asked}: cast it later")
        if not field.nullable:
            raise BadSchema(f"column {field.name!r} cannot be declared NOT NULL")
    return tuple(field.name for field in fields)
