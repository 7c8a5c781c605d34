"""Splits the rows for a partitioned Iceberg table, so that each file has rows of one partition.

pyiceberg derives the partition of a file from the minimum and maximum of its columns. Executors
therefore split rows by partition value, with Spark's ``partitionBy`` on added columns, which Spark
leaves out of the files. Iceberg's days, hours and so on are those of UTC, whatever the session's
time zone is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.core.errors import SettingsError
from cometmq.spark.tables.sink import quoted

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame

_PREFIX: Final = "_cometmq_partition_"
_DAY_US: Final = 86_400_000_000
_HOUR_US: Final = 3_600_000_000
_KNOWN: Final = ("identity", "year", "month", "day", "hour")


def split_columns(rows: DataFrame, table: Table) -> tuple[DataFrame, list[str]]:
    """Return the rows with added columns for ``partitionBy``, and the names of these columns.

    Raises SettingsError for a partition that is not the value, year, month, day or hour of a whole
    column.
    """
    from pyspark.sql import functions as f

    split: list[str] = []
    for field in table.spec().fields:
        transform, name = str(field.transform), table.schema().find_column_name(field.source_id)
        if transform not in _KNOWN or name not in rows.columns:
            raise SettingsError(
                "table",
                f"is partitioned by {transform} of {name}; batches are appended to partitions by "
                f"{', '.join(_KNOWN)} of a whole column",
            )
        column = quoted(name)
        kind = rows.schema[name].dataType.typeName()
        split.append(f"{_PREFIX}{len(split)}")
        rows = rows.withColumn(split[-1], f.expr(_expression(transform, column, kind)))
    return rows, split


def _expression(transform: str, column: str, kind: str) -> str:
    if transform == "identity":
        return column
    micros = f"unix_micros({column})"
    if kind == "timestamp_ntz":
        # A time without a time zone counts as UTC: use the difference to the epoch.
        micros = f"timestampdiff(MICROSECOND, TIMESTAMP_NTZ '1970-01-01 00:00:00', {column})"
    if transform == "hour":
        return f"floor({micros} / {_HOUR_US}.0)"
    days = f"unix_date({column})" if kind == "date" else f"floor({micros} / {_DAY_US}.0)"
    date = f"date_from_unix_date(cast({days} AS int))"
    return {"day": days, "month": f"date_format({date}, 'y-MM')", "year": f"year({date})"}[
        transform
    ]
