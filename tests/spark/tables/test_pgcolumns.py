"""Spark's types in PostgreSQL, and rows as CSV."""

import datetime
import decimal

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from cometmq.spark.tables.postgres import TYPES, csv_of
from cometmq.spark.tables.staging import TypeUnknown


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        (t.ByteType(), "smallint"),
        (t.LongType(), "bigint"),
        (t.DoubleType(), "double precision"),
        (t.DecimalType(12, 3), "numeric(12,3)"),
        (t.BinaryType(), "bytea"),
        (t.TimestampType(), "timestamptz"),
        (t.TimestampNTZType(), "timestamp"),
        (t.VarcharType(7), "text"),
        (t.MapType(t.StringType(), t.StringType()), "jsonb"),
        (t.ArrayType(t.IntegerType()), "jsonb"),
        (t.StructType([t.StructField("a", t.DateType())]), "jsonb"),
    ],
)
def test_types(kind: t.DataType, found: str) -> None:
    assert TYPES.of("c", kind) == found


def test_a_type_without_counterpart() -> None:
    with pytest.raises(TypeUnknown, match=r"'c' of type interval day to second .* PostgreSQL"):
        TYPES.of("c", t.DayTimeIntervalType())


def test_csv() -> None:
    at = datetime.datetime(2026, 3, 1, 7, 8, 9, 123456, tzinfo=datetime.UTC)
    batch = pa.record_batch(
        {
            "text": pa.array(["", None, 'a,"b"\n\\N ü', "x"]),
            "number": pa.array([1, None, -(2**63), 0], pa.int64()),
            "at": pa.array([at, None, at, at], pa.timestamp("us", "UTC")),
            "share": pa.array([0.1, None, float("nan"), float("-inf")]),
            "exact": pa.array([decimal.Decimal("1.50"), None, None, None], pa.decimal128(5, 2)),
            "sure": pa.array([True, None, False, None]),
        }
    )
    moment = "2026-03-01 07:08:09.123456Z"
    assert csv_of(batch).decode() == (
        f'"",1,{moment},0.1,1.50,true\n'
        ",,,,,\n"
        f'"a,""b""\n\\N ü",-9223372036854775808,{moment},nan,,false\n'
        f'"x",0,{moment},-inf,,\n'
    )
