"""Which frames can be written to topics."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from cometmq.spark import schema
from cometmq.spark.schema import BadSchema
from cometmq.spark.write.options import OWN
from cometmq.spark.write.rows import COLUMNS, check_columns
from tests.architecture.rules import ROOT

# StructType.fromDDL asks a JVM.
TYPES: dict[str, DataType] = {
    each.simpleString(): each
    for each in (
        *(ArrayType(StringType()), BinaryType(), IntegerType(), LongType(), StringType()),
        *(MapType(StringType(), StringType()), MapType(StringType(), IntegerType())),
        TimestampType(),
    )
}


def frame(ddl: str) -> StructType:
    found = StructType()
    for column in ddl.split(", "):
        name, kind = column.split(" ")
        found.add(name, TYPES[kind])
    return found


def test_a_frame_that_was_read_can_be_written_back() -> None:
    check_columns(frame(schema.DDL), "T")
    check_columns(frame(schema.DDL), None)


def test_every_column_is_taken_in_each_of_its_types() -> None:
    for column in COLUMNS:
        for kind in column.types:
            more = "" if column.name == "body" else ", body binary"
            check_columns(frame(f"{column.name} {kind}{more}"), "T")


@pytest.mark.parametrize(
    ("ddl", "topic", "says"),
    [
        ("body int", "T", "column 'body' is int, not binary or string: cast it"),
        ("body string, queue_id bigint", "T", "column 'queue_id' is bigint, not int"),
        ("body string, other string", "T", "no column 'other'; allowed are body, topic"),
        ("tags string", "T", "needs a column 'body'"),
        ("body string", None, "no topic is given"),
        ("body string, properties map<string,int>", "T", "map<string,string>"),
    ],
)
def test_others_are_refused_with_a_way_out(ddl: str, topic: str | None, says: str) -> None:
    with pytest.raises(BadSchema, match=says.replace("?", r"\?")):
        check_columns(frame(ddl), topic)


def test_the_page_tells_all_columns_and_options() -> None:
    page = (ROOT / "docs" / "spark" / "sink.md").read_text(encoding="utf-8")
    for column in COLUMNS:
        assert f"| `{column.name}` | {column.types[0].partition('<')[0]}" in page
    for option in OWN:
        assert f"`{option}`" in page
