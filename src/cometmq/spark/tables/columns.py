"""Compares rows with a table: the same columns with the same types.

Nullability is not compared: Spark declares almost every column nullable.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from cometmq.core.errors import CometError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType


class ColumnsDiffer(CometError):
    """Raised if rows have other columns than the table. ``differences`` has a sentence for each
    difference."""

    def __init__(self, table: str, differences: list[str]) -> None:
        self.table = table
        self.differences = differences
        super().__init__(f"rows do not fit {table}: {'; '.join(differences)}")


def fitted(rows: DataFrame, schema: StructType, table: str) -> DataFrame:
    """Return the rows with the table's columns in the table's order. Raises ColumnsDiffer."""
    found = differences(schema, rows.schema)
    if found:
        raise ColumnsDiffer(table, found)
    if rows.columns == schema.names:
        return rows
    return rows.select(*(rows[_quoted(name)] for name in schema.names))


def differences(table: StructType, rows: StructType) -> list[str]:
    """Return the differences between a table's columns and those of rows, as sentences."""
    wanted = {field.name: _comparable(field.dataType) for field in table}
    given = {field.name: _comparable(field.dataType) for field in rows}
    found = [f"column {name!r} is missing" for name in wanted if name not in given]
    found += [f"column {name!r} is not in the table" for name in given if name not in wanted]
    found += [
        f"column {name!r} is {_short(given[name])}, in the table {_short(kind)}"
        for name, kind in wanted.items()
        if name in given and given[name] != kind
    ]
    if len(given) < len(rows.names):
        found.append("two columns have one name")
    return found


def _comparable(kind: DataType) -> str:
    return json.dumps(_without_nulls(json.loads(kind.json())), sort_keys=True)


def _without_nulls(value: object) -> object:
    """Return a type's JSON without nullability and comments."""
    left_out = {"nullable", "containsNull", "valueContainsNull", "metadata"}
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if key not in left_out}
    if isinstance(value, list):
        return [_without_nulls(each) for each in value]
    return value


def _short(kind: str) -> str:
    return kind.strip('"')


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
