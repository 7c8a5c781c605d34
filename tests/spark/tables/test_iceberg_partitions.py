"""Partitioned Iceberg tables: rows are in the partitions that Iceberg's transforms give."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    YearTransform,
)
from pyiceberg.types import (
    DateType,
    IcebergType,
    StringType,
    TimestampType,
    TimestamptzType,
)
from pyiceberg.utils.datetime import date_to_days, datetime_to_micros, days_to_date
from pyspark.sql import SparkSession

from cometmq.core.errors import SettingsError
from cometmq.spark.tables.iceberg import IcebergTable
from cometmq.spark.tables.sink import Mark

pytestmark = pytest.mark.spark

COLUMNS = pa.schema(
    [
        ("id", pa.int64()),
        ("part", pa.string()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("wall", pa.timestamp("us")),
        ("place", pa.struct([("country", pa.string())])),
    ]
)
KINDS: dict[str, IcebergType] = {
    "part": StringType(),
    "day": DateType(),
    "at": TimestamptzType(),
    "wall": TimestampType(),
}
DDL = (
    "id bigint, part string, day date, at timestamp, wall timestamp_ntz, "
    "place struct<country:string>"
)
MOMENTS = [
    datetime(1969, 12, 31, 23, 59, 59, 999_999),
    datetime(1970, 1, 1),
    datetime(2026, 11, 27, 23, 30),
    datetime(2026, 11, 28, 0, 30),
    datetime(2027, 1, 1),
]
ROWS: list[tuple[Any, ...]] = [
    *(
        (at, f"p{at % 2} =/", moment.date(), moment.replace(tzinfo=UTC), moment, {"country": "AD"})
        for at, moment in enumerate(MOMENTS)
    ),
    (9, None, None, None, None, None),
]


def created(settings: dict[str, str], name: str, **by: Transform[Any, Any]) -> Table:
    """A table that is partitioned by transforms of columns."""
    catalog = load_catalog("default", **settings)
    catalog.create_namespace_if_not_exists("shop")
    table = catalog.create_table(f"shop.{name}", COLUMNS)
    with table.update_spec() as spec:
        for at, (column, transform) in enumerate(by.items()):
            spec.add_field(column.replace("__", "."), transform, f"field{at}")
    return table


def partitions(table: Table) -> list[tuple[str, int]]:
    found = table.refresh().inspect.partitions().to_pylist()
    return sorted((str(each["partition"]), each["record_count"]) for each in found)


def expected(by: dict[str, Transform[Any, Any]]) -> list[tuple[str, int]]:
    """The partitions of ROWS, by the functions of pyiceberg's transforms."""
    found: Counter[str] = Counter()
    for row in ROWS:
        values = {}
        for at, (name, transform) in enumerate(by.items()):
            value = row[COLUMNS.names.index(name)]
            if isinstance(value, datetime):
                value = datetime_to_micros(value.replace(tzinfo=None))
            elif isinstance(value, date):
                value = date_to_days(value)
            partition = transform.transform(KINDS[name])(value)
            if isinstance(transform, DayTransform) and partition is not None:
                partition = days_to_date(partition)
            values[f"field{at}"] = partition
        found[str(values)] += 1
    return sorted(found.items())


BY: list[dict[str, Transform[Any, Any]]] = [
    {"part": IdentityTransform(), "day": DayTransform()},
    {"at": DayTransform(), "wall": HourTransform()},
    {"at": HourTransform(), "day": YearTransform()},
    {"at": MonthTransform(), "wall": YearTransform()},
    {"wall": MonthTransform()},
    {"day": MonthTransform(), "at": YearTransform()},
]


@pytest.mark.parametrize(
    "by", BY, ids=lambda by: "-".join(f"{name}-{transform}" for name, transform in by.items())
)
def test_rows_are_where_iceberg_has_them(
    spark: SparkSession, settings: dict[str, str], by: dict[str, Transform[Any, Any]]
) -> None:
    table = created(settings, "orders", **by)
    rows = spark.createDataFrame(ROWS, DDL)
    zone = spark.conf.get("spark.sql.session.timeZone")
    assert zone is not None
    # Iceberg's days are those of UTC.
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        assert IcebergTable("shop.orders", properties=settings).apply(rows, Mark("q", 0))
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    assert partitions(table) == expected(by)
    found = sorted(table.refresh().scan().to_arrow().to_pylist(), key=lambda row: row["id"])
    assert [tuple(row.values()) for row in found] == ROWS
    assert table.scan(row_filter="id = 3").to_arrow().num_rows == 1


@pytest.mark.parametrize(
    ("by", "said"),
    [
        ({"id": BucketTransform(4)}, r"partitioned by bucket\[4\] of id"),
        ({"place__country": IdentityTransform()}, r"partitioned by identity of place\.country"),
    ],
)
def test_partitions_that_files_cannot_be_split_by(
    spark: SparkSession, settings: dict[str, str], by: dict[str, Transform[Any, Any]], said: str
) -> None:
    created(settings, "orders", **by)
    rows = spark.createDataFrame(ROWS, DDL)
    with pytest.raises(SettingsError, match=said):
        IcebergTable("shop.orders", properties=settings).apply(rows, Mark("q", 0))


def test_a_merge_moves_a_row_to_another_partition(
    spark: SparkSession, settings: dict[str, str]
) -> None:
    table = created(settings, "orders", part=IdentityTransform())
    merging = IcebergTable("shop.orders", properties=settings, keys=["id"], newest_by=["day"])
    assert merging.apply(spark.createDataFrame(ROWS, DDL), Mark("q", 0))
    newer = (3, "new", date(2030, 1, 1), None, None, None)
    assert merging.apply(spark.createDataFrame([newer], DDL), Mark("q", 1))
    assert table.refresh().scan().to_arrow().num_rows == len(ROWS)
    assert table.scan(row_filter="id = 3").to_arrow().column("part").to_pylist() == ["new"]
    assert ("{'field0': 'new'}", 1) in partitions(table)
