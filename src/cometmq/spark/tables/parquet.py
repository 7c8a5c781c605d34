"""A table of Parquet files that micro-batches are appended to, each batch atomically.

ROOT/data/batch=00000012-QUERY-ATTEMPT/...parquet   written by the executors (attempts.py)
ROOT/_batches/QUERY/00000012.json                   the files of the table (batchlog.py)
ROOT/_schema.json                                   the columns, as Spark's JSON
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from cometmq.spark.tables.attempts import DATA, Attempts, attempt_of, write_files
from cometmq.spark.tables.batchlog import BatchLog, DataFile
from cometmq.spark.tables.columns import fitted
from cometmq.spark.tables.folders import Folder, folder_at
from cometmq.spark.tables.sink import Mark, TableSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_SCHEMA: Final = "_schema.json"


class ParquetTable(TableSink):
    """The table at ``path``, any path or URL that driver and executors share.

    ``partition_by`` names columns that become folders. ``options`` are passed to Spark's Parquet
    writer (``compression``, ``maxRecordsPerFile``, ...).
    """

    def __init__(
        self,
        path: str,
        *,
        partition_by: Sequence[str] = (),
        options: Mapping[str, str] | None = None,
    ) -> None:
        self._path = path
        self._partition_by = tuple(partition_by)
        self._options = dict(options or {})
        self._attempts = Attempts()

    def __str__(self) -> str:
        return self._path

    def last(self, spark: SparkSession, query: str) -> int:
        return BatchLog(folder_at(self._path, spark)).last(query)

    def write(self, rows: DataFrame, mark: Mark) -> bool:
        """Append a batch. Return False if the table has it. Raises ColumnsDiffer if the rows do not
        fit."""
        folder = folder_at(self._path, rows.sparkSession)
        rows = fitted(rows, _schema(folder, rows.schema), self._path)
        attempt = self._attempts.begin(mark)
        found = write_files(rows, folder, attempt, self._partition_by, self._options)
        log = BatchLog(folder)
        if not log.commit(mark, [DataFile(file.name, file.size_bytes) for file in found]):
            folder.remove(f"{DATA}/{attempt}")
            return False

        def is_dead(name: str, batch: int) -> bool:
            return batch <= mark.batch and name not in named

        named = _Named(log, mark.query)
        self._attempts.settle(folder, mark, is_dead)
        return True

    def files(self, spark: SparkSession | None = None) -> list[str]:
        """Return the URLs of the table's files. Without a session, the table is on this machine."""
        folder = folder_at(self._path, spark)
        return [folder.url(file.name) for file in BatchLog(folder).files()]

    def read(self, spark: SparkSession) -> DataFrame:
        """Return the current rows of the table: whole batches. Raises FileNotFoundError before the
        first."""
        folder = folder_at(self._path, spark)
        schema = schema_at(folder)
        files = self.files(spark)
        if not files:
            return spark.createDataFrame([], schema)
        reader = spark.read.schema(schema).option("basePath", folder.url(DATA))
        return reader.parquet(*files).select(*(f"`{name}`" for name in schema.names))

    def clean(self, spark: SparkSession | None = None) -> list[str]:
        """Remove the files of crashed attempts of queries that will not run again.

        Return the names of the removed folders. No query may be writing to the table at the same
        time.
        """
        folder = folder_at(self._path, spark)
        named = {attempt_of(file.name) for file in BatchLog(folder).files()}
        left = [name for name in folder.names(DATA) if name not in named]
        for name in left:
            folder.remove(f"{DATA}/{name}")
        return left


class _Named:
    """The attempts named in a query's log, read on first use."""

    def __init__(self, log: BatchLog, query: str) -> None:
        self._log = log
        self._query = query
        self._names: set[str] | None = None

    def __contains__(self, name: str) -> bool:
        if self._names is None:
            batches = self._log.batches(self._query)
            self._names = {attempt_of(file.name) for batch in batches for file in batch.files}
        return name in self._names


def _schema(folder: Folder, schema: StructType) -> StructType:
    """Return the table's columns. For a new table, store those of the first rows."""
    try:
        return schema_at(folder)
    except FileNotFoundError:
        folder.publish(_SCHEMA, schema.json().encode())
        return schema


def schema_at(folder: Folder) -> StructType:
    """Return the columns of the table in a folder. Raises FileNotFoundError before its first
    batch."""
    from pyspark.sql.types import StructType

    return StructType.fromJson(msgspec.json.decode(folder.read(_SCHEMA), type=dict[str, Any]))
