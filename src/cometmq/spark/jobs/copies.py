"""Typed copies of a sync's tables: in PostgreSQL the current rows, in Delta the rows after each
batch.

A batch writes the state of the copy after it, not its own changes: the rows with the batch's keys.
So a copy is correct for any order of changes, and if a kill separates two copies, the repeated
batch writes the same rows to the second one. Each copy records the batch in the same step as its
rows. The columns ``_key``, ``_change`` and, in Delta, ``_op`` come before the row's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from cometmq.spark.jobs.changes import STATE_DDL
from cometmq.spark.tables.sink import Mark, TableSink

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame

    from cometmq.spark.tables.snapshots import SnapshotTable

_QUERY_ID: Final = "sql.streaming.queryId"


class Copies:
    """Applies each micro-batch to the copy, then to the typed ones: ``foreachBatch(copies)``.

    ``schemas`` are the columns of each table as DDL; a table without one is left out.
    """

    def __init__(
        self,
        copy: TableSink,
        table: SnapshotTable,
        changes: Path,
        schemas: Mapping[str, str],
        *,
        postgres: str = "",
        delta: str = "",
    ) -> None:
        self._copy = copy
        self._table = table
        self._changes = changes
        self._schemas = dict(schemas)
        self._postgres = {name: _postgres(postgres, name) for name in schemas if postgres}
        self._delta = {name: _delta(delta, name) for name in schemas if delta}

    def __call__(self, rows: DataFrame, batch: int) -> None:
        self._copy(rows, batch)
        if not self._postgres and not self._delta:
            return
        query = rows.sparkSession.sparkContext.getLocalProperty(_QUERY_ID) or ""
        after = self.after(rows, batch)
        for name, ddl in self._schemas.items():
            of_table = typed(after.where(f.col("table") == name), ddl)
            if name in self._postgres:
                deleted = (f.col("_op") == "delete").alias("_deleted")
                kept = [column for column in of_table.columns if column != "_op"]
                self._postgres[name].apply(of_table.select(*kept, deleted), Mark(query, batch))
            if name in self._delta:
                self._delta[name].apply(of_table, Mark(query, batch))

    def after(self, rows: DataFrame, batch: int) -> DataFrame:
        """Return the rows that a batch touched, in their state after it, including deleted ones."""
        spark = rows.sparkSession
        folder = str(self._changes / f"batch={batch:08}")
        found = spark.read.parquet(folder).where("problem is null")
        keys = found.select("table", "key", "bucket").distinct()
        touched = sorted(row.bucket for row in keys.select("bucket").distinct().collect())
        paths = self._table.paths(self._table.current(), touched)
        if not paths:
            return spark.createDataFrame([], STATE_DDL)
        state = spark.read.schema(STATE_DDL).parquet(*paths)
        return state.join(keys.drop("bucket"), ["table", "key"], "left_semi")


def typed(rows: DataFrame, ddl: str) -> DataFrame:
    """Return the rows of one table with the columns of ``ddl``, all null for a deleted one."""
    found = rows.select(
        f.col("key").alias("_key"),
        f.col("change").alias("_change"),
        f.col("op").alias("_op"),
        f.from_json("row", ddl).alias("r"),
    )
    return found.select("_key", "_change", "_op", "r.*")


def _postgres(conninfo: str, table: str) -> TableSink:
    from cometmq.spark.tables.postgres import PostgresTable

    return PostgresTable(
        conninfo, table, keys=("_key",), newest_by=("_change",), deleted="_deleted"
    )


def _delta(root: str, table: str) -> TableSink:
    from cometmq.spark.tables.delta import DeltaLakeTable

    return DeltaLakeTable(f"{root.rstrip('/')}/{table}")
