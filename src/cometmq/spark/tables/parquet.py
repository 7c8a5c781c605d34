"""A table of Parquet files that micro-batches are appended to, each batch whole or not there.

    ROOT/data/batch=00000012-QUERY-ATTEMPT/...parquet   written by the executors
    ROOT/_batches/QUERY/00000012.json                   which files count (see batchlog.py)
    ROOT/_schema.json                                   the columns, as Spark's JSON

Every attempt at a batch has a folder of its own, so that two drivers that both take themselves for
the living one cannot touch each other's files. What an attempt left that was not the one to count
is removed after the next batch, when nothing can make it count any more.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from cometmq.spark.tables.batchlog import BatchLog, DataFile
from cometmq.spark.tables.columns import fitted
from cometmq.spark.tables.folders import Folder, StoredFile, folder_at
from cometmq.spark.tables.sink import Mark, TableSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_DATA: Final = "data"
_SCHEMA: Final = "_schema.json"
_ATTEMPT: Final = re.compile(r"batch=(\d+)-(.+)-[0-9a-f]{8}")
#: Spark's own default, INT96, is read by few others and has no statistics.
_TIMESTAMPS: Final = ("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")


class ParquetTable(TableSink):
    """The table at ``path``, any path or URL that driver and executors share.

    ``partition_by`` names columns that become folders. ``options`` go to Spark's Parquet writer
    (``compression``, ``maxRecordsPerFile``, ...).
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
        #: Queries after whose next batch nothing that an earlier try left can be there.
        self._clean: set[str] = set()

    def __str__(self) -> str:
        return self._path

    def last(self, spark: SparkSession, query: str) -> int:
        return BatchLog(folder_at(self._path, spark)).last(query)

    def write(self, rows: DataFrame, mark: Mark) -> bool:
        """Raises ColumnsDiffer when the rows do not fit the table."""
        folder = folder_at(self._path, rows.sparkSession)
        rows = fitted(rows, _schema(folder, rows.schema), self._path)
        was_clean = mark.query in self._clean
        self._clean.discard(mark.query)
        attempt = f"{_DATA}/batch={mark.batch:08}-{mark.query}-{uuid.uuid4().hex[:8]}"
        found = write_files(rows, folder, attempt, self._partition_by, self._options)
        files = [DataFile(file.name, file.size_bytes) for file in found]
        log = BatchLog(folder)
        if not log.commit(mark, files):
            folder.remove(attempt)
            return False
        if not was_clean:
            self._remove_leftovers(folder, log, mark)
        self._clean.add(mark.query)
        return True

    def files(self, spark: SparkSession | None = None) -> list[str]:
        """The URLs of the table's files; without a session, of a table on this machine."""
        folder = folder_at(self._path, spark)
        return [folder.url(file.name) for file in BatchLog(folder).files()]

    def read(self, spark: SparkSession) -> DataFrame:
        """The table as it is now: whole batches. Raises FileNotFoundError before the first."""
        from pyspark.sql.types import StructType

        folder = folder_at(self._path, spark)
        schema = StructType.fromJson(_decoded(folder.read(_SCHEMA)))
        files = self.files(spark)
        if not files:
            return spark.createDataFrame([], schema)
        reader = spark.read.schema(schema).option("basePath", folder.url(_DATA))
        return reader.parquet(*files).select(*(f"`{name}`" for name in schema.names))

    def clean(self, spark: SparkSession | None = None) -> list[str]:
        """Remove what crashed attempts of queries left that will not come back; gives the folders'
        names. No query may be writing meanwhile."""
        folder = folder_at(self._path, spark)
        named = {_attempt_of(file.name) for file in BatchLog(folder).files()}
        left = [name for name in folder.names(_DATA) if name not in named]
        for name in left:
            folder.remove(f"{_DATA}/{name}")
        return left

    def _remove_leftovers(self, folder: Folder, log: BatchLog, mark: Mark) -> None:
        named = {
            _attempt_of(file.name) for batch in log.batches(mark.query) for file in batch.files
        }
        for name in folder.names(_DATA):
            known = _ATTEMPT.fullmatch(name)
            if known is None or name in named:
                continue
            if known[2] == mark.query and int(known[1]) <= mark.batch:
                folder.remove(f"{_DATA}/{name}")


def write_files(
    rows: DataFrame,
    folder: Folder,
    name: str,
    partition_by: Sequence[str],
    options: Mapping[str, str],
) -> list[StoredFile]:
    """Have the executors write rows as Parquet into a new folder; the files that it holds then.

    A failed attempt of a task leaves none: Spark moves what a task wrote once the task is done.
    """
    with _setting(rows.sparkSession, *_TIMESTAMPS):
        writer = rows.write.mode("errorifexists").options(**options)
        if partition_by:
            writer = writer.partitionBy(*partition_by)
        writer.parquet(folder.url(name))
    return [file for file in folder.files(name) if _is_data(file.name)]


def _is_data(name: str) -> bool:
    last = name.rpartition("/")[2]
    return not last.startswith(("_", "."))


def _attempt_of(name: str) -> str:
    return name.split("/")[1]


def _schema(folder: Folder, schema: StructType) -> StructType:
    """The table's columns; those of the first rows are noted."""
    from pyspark.sql.types import StructType

    try:
        return StructType.fromJson(_decoded(folder.read(_SCHEMA)))
    except FileNotFoundError:
        folder.publish(_SCHEMA, schema.json().encode())
        return schema


def _decoded(text: bytes) -> dict[str, object]:
    import msgspec

    return msgspec.json.decode(text, type=dict[str, object])


@contextmanager
def _setting(spark: SparkSession, key: str, value: str) -> Iterator[None]:
    before = spark.conf.get(key)
    assert before is not None
    spark.conf.set(key, value)
    try:
        yield
    finally:
        spark.conf.set(key, before)
