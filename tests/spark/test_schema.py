"""The columns, and what a user may ask of them."""

import pytest
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from cometmq.spark.schema import COLUMNS, DDL, NAMES, BadSchema, arrow_schema, selected

TYPES: dict[str, t.DataType] = {
    "string": t.StringType(),
    "int": t.IntegerType(),
    "bigint": t.LongType(),
    "binary": t.BinaryType(),
    "timestamp": t.TimestampType(),
    "map<string,string>": t.MapType(t.StringType(), t.StringType()),
}
WHOLE = t.StructType([t.StructField(column.name, TYPES[column.spark]) for column in COLUMNS])


def test_arrow_types_are_those_that_spark_expects() -> None:
    assert to_arrow_schema(WHOLE, timezone="UTC").equals(arrow_schema())
    assert selected(WHOLE) == NAMES
    some = t.StructType([WHOLE["tags"], WHOLE["body"]])
    assert to_arrow_schema(some, timezone="UTC").equals(arrow_schema(("tags", "body")))
    assert selected(some) == ("tags", "body")


def test_every_column_says_what_it_is() -> None:
    assert all(column.meaning for column in COLUMNS)
    assert DDL.startswith("topic string, broker_name string, queue_id int")


@pytest.mark.parametrize(
    ("field", "problem"),
    [
        (t.StructField("boddy", t.BinaryType()), "no column 'boddy'"),
        (t.StructField("body", t.StringType()), "'body' is binary, not string"),
        (t.StructField("queue_offset", t.IntegerType()), "'queue_offset' is bigint"),
        (t.StructField("tags", t.StringType(), nullable=False), "NOT NULL"),
    ],
)
def test_a_schema_that_cannot_be_given(field: t.StructField, problem: str) -> None:
    with pytest.raises(BadSchema, match=problem):
        selected(t.StructType([field]))
