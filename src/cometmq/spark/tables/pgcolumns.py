r"""Maps Spark's types to PostgreSQL's, and rows to the CSV that its COPY reads.

Spark first converts types that CSV cannot hold to text: binary to ``\x`` and hex digits, which
bytea accepts, and arrays, maps and structs to JSON.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, Final

from cometmq.core.errors import CometError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

_PLAIN: Final = {
    "boolean": "boolean",
    "tinyint": "smallint",
    "smallint": "smallint",
    "int": "integer",
    "bigint": "bigint",
    "float": "real",
    "double": "double precision",
    "string": "text",
    "binary": "bytea",
    "date": "date",
    "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
}
_JSON: Final = ("array", "map", "struct")


class TypeUnknown(CometError):
    """Raised if a column has a type without a counterpart in PostgreSQL."""

    def __init__(self, column: str, kind: str) -> None:
        self.column = column
        super().__init__(f"column {column!r} of type {kind} cannot be written to PostgreSQL")


def postgres_type(column: str, kind: DataType) -> str:
    """Return the type of a new table's column. Raises TypeUnknown."""
    name = kind.simpleString()
    if name in _PLAIN:
        return _PLAIN[name]
    if name.startswith("decimal("):
        return name.replace("decimal", "numeric")
    if name.startswith(("varchar(", "char(")):
        return "text"
    if name.startswith(_JSON):
        return "jsonb"
    raise TypeUnknown(column, name)


def postgres_types(schema: StructType) -> dict[str, str]:
    """Return the columns of a new table with their types. Raises TypeUnknown."""
    return {field.name: postgres_type(field.name, field.dataType) for field in schema}


def as_text(rows: DataFrame) -> DataFrame:
    """Return the rows with columns that CSV can hold. Raises TypeUnknown."""
    return rows.select(*(_text(rows, name, kind) for name, kind in _kinds(rows).items()))


def csv_of(batch: pa.RecordBatch) -> bytes:
    """Return the rows of a batch as CSV. Null is an empty field, an empty text is two quotes."""
    import pyarrow.csv as csv

    target = io.BytesIO()
    csv.write_csv(batch, target, csv.WriteOptions(include_header=False))
    return target.getvalue()


def _kinds(rows: DataFrame) -> dict[str, str]:
    return postgres_types(rows.schema)


def _text(rows: DataFrame, name: str, kind: str) -> Column:
    from pyspark.sql import functions as f

    column: Any = rows[f"`{name.replace('`', '``')}`"]
    if kind == "bytea":
        return f.concat(f.lit("\\x"), f.hex(column)).alias(name)
    if kind == "jsonb":
        return f.to_json(column).alias(name)
    return column  # type: ignore[no-any-return]
