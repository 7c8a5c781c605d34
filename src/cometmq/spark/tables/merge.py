"""The rules for merging rows into a table by key, shared by all kinds of tables: which row of a key
counts, and which rows delete.

SQL databases run the merge themselves (postgres.py, mysql.py). For Delta and Iceberg tables, the
driver's process merges; it gets the newest row of each key of a micro-batch as Arrow
(:func:`newest_of_keys`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cometmq.core.errors import CometError, SettingsError
from cometmq.spark.tables.sink import quoted

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_RANK: Final = "_cometmq_rank"


@dataclass(frozen=True, slots=True)
class Merge:
    """The columns of a merge. Without ``keys``, rows are appended.

    Among rows of a batch with the same key, the one with the highest ``newest_by`` counts. It
    replaces an existing row only if that row's ``newest_by`` is not higher. If the boolean column
    ``deleted`` of that row is true, the existing row is deleted instead; ``deleted`` is not a
    column of the table.

    Raises SettingsError for an invalid combination.
    """

    keys: tuple[str, ...] = ()
    newest_by: tuple[str, ...] = ()
    deleted: str = ""

    def __post_init__(self) -> None:
        if self.newest_by and not self.keys:
            raise SettingsError("newest_by", "needs keys")
        if self.deleted and not self.newest_by:
            raise SettingsError(
                "deleted", "needs keys, and newest_by to find the newest row of a key"
            )

    @property
    def extra(self) -> tuple[str, ...]:
        """Columns of rows that are not in the table."""
        return (self.deleted,) if self.deleted else ()


class MergeFailed(CometError):
    """Raised if the rows of a batch cannot be merged into the table. Nothing was changed."""


def ordered(keys: Sequence[str], newest_by: Sequence[str], deleted: str) -> Merge:
    """Return a merge. Raises SettingsError for an invalid combination, or keys without
    ``newest_by``."""
    merge = Merge(tuple(keys), tuple(newest_by), deleted)
    if merge.keys and not merge.newest_by:
        raise SettingsError(
            "keys", "needs newest_by, such as queue_offset: it finds the newest row of a key"
        )
    return merge


def check_columns(rows: DataFrame, merge: Merge) -> None:
    """Raise SettingsError if rows lack a column of the merge, or ``deleted`` is no boolean."""
    for option, names in (("keys", merge.keys), ("newest_by", merge.newest_by)):
        for name in names:
            if name not in rows.columns:
                raise SettingsError(option, f"rows have no column {name!r}")
    if merge.deleted and merge.deleted not in rows.columns:
        raise SettingsError("deleted", f"rows have no column {merge.deleted!r}")
    if merge.deleted and rows.schema[merge.deleted].dataType.simpleString() != "boolean":
        raise SettingsError("deleted", f"column {merge.deleted!r} is not boolean")


def newest_of_keys(rows: DataFrame, merge: Merge, table: str) -> pa.Table:
    """Return the newest row of each key as Arrow, with timestamps in UTC.

    Raises MergeFailed for a null key. Null equals no key in the table, so each repetition would add
    the row again.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f
    from pyspark.sql.pandas.types import to_arrow_schema

    order = [f.col(quoted(name)).desc_nulls_last() for name in merge.newest_by]
    window = Window.partitionBy(*(f.col(quoted(name)) for name in merge.keys)).orderBy(*order)
    ranked = rows.withColumn(_RANK, f.row_number().over(window))
    newest = ranked.where(f.col(_RANK) == 1).drop(_RANK)
    found = newest.toArrow().cast(to_arrow_schema(newest.schema, timezone="UTC"))
    for name in merge.keys:
        if found.column(name).null_count:
            raise MergeFailed(f"{table}: the key column {name!r} has nulls: leave these rows out")
    return found
