"""Rows fit a table, or the error says what differs."""

import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from cometmq.spark.tables.sink import differences

INT, TEXT = IntegerType(), StringType()


def schema(*fields: tuple[str, DataType], nullable: bool = True) -> StructType:
    return StructType([StructField(name, kind, nullable) for name, kind in fields])


def test_nulls_and_order_do_not_matter() -> None:
    table = schema(("a", INT), ("b", MapType(TEXT, ArrayType(INT, True), True)))
    rows = schema(("b", MapType(TEXT, ArrayType(INT, False), False)), ("a", INT), nullable=False)
    assert differences(table, rows) == []


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (schema(("a", INT)), ["column 'b' is missing"]),
        (
            schema(("a", INT), ("b", TEXT), ("c", DateType())),
            ["column 'c' is not in the table"],
        ),
        (schema(("a", LongType()), ("b", TEXT)), ["column 'a' is long, in the table integer"]),
        (
            schema(("A", INT), ("b", TEXT)),
            ["column 'a' is missing", "column 'A' is not in the table"],
        ),
        (schema(("a", INT), ("b", TEXT), ("a", INT)), ["two columns have one name"]),
    ],
)
def test_what_differs(rows: StructType, said: list[str]) -> None:
    assert differences(schema(("a", INT), ("b", TEXT)), rows) == said
