"""A Delta table to which micro-batches are appended, or into which they are merged. It uses the
library `deltalake`, and no jar.

    ROOT/data/batch=00000012-QUERY-ATTEMPT/...parquet   written by the executors (datafiles.py)
    ROOT/_delta_log/                                    Delta's log; one commit per batch

A commit has the batch's files and Delta's transaction identifier (query id, batch), the same that
Spark's Delta sink writes. Delta rejects a repeated identifier, so the batch is in the table once,
even if others write to the table, compact it or delete from it at the same time. A merge is one
commit with the same identifier; deltalake writes its files in the driver's process.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import msgspec

from cometmq.core.errors import SettingsError
from cometmq.spark.tables.datafiles import (
    DATA,
    Attempts,
    Folder,
    LocalFolder,
    StoredFile,
    folder_at,
    write_files,
)
from cometmq.spark.tables.deltamerge import merge_into
from cometmq.spark.tables.merge import check_columns, newest_of_keys, ordered
from cometmq.spark.tables.sink import NO_BATCH, Mark, TableSink, fitted, new_columns

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction, CommitProperties, RemoveAction
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

log = logging.getLogger(__name__)

_Change = Callable[["DeltaTable", "CommitProperties"], None]
"""Function that makes one commit with these properties. Raises CommitFailedError."""

#: Maximum length of a text as a bound in Delta's statistics.
_TEXT_MAX: Final = 64
#: Bytes read at the end of a file: enough for the footer with some tens of columns.
_FOOTER_BYTES: Final = 16 << 10
_MS: Final = datetime.timedelta(milliseconds=1)
_COMMIT_TRIES: Final = 10

#: Types of partition columns. Delta writes their values as text; that of other types would depend
#: on a time zone or a format.
_PARTITION_TYPES: Final = ("string", "byte", "short", "integer", "long", "boolean", "date")
_NULL_FOLDER: Final = "__HIVE_DEFAULT_PARTITION__"


def statistics_of(folder: Folder, name: str) -> str:
    """Return Delta's statistics of a Parquet file as JSON. Only the footer is read.

    Raises OSError, pyarrow.ArrowInvalid, and the errors of Spark's file systems.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    end = folder.read_end(name, _FOOTER_BYTES)
    footer_bytes = int.from_bytes(end[-8:-4], "little") + 8
    if footer_bytes > len(end):
        end = folder.read_end(name, footer_bytes)
    return _of_footer(pq.read_metadata(pa.BufferReader(end)))


def _of_footer(footer: pq.FileMetaData) -> str:
    """Return the statistics of all columns that are not nested."""
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    whole = set(footer.schema.to_arrow_schema().names)
    for index in range(footer.num_columns):
        name = footer.schema.column(index).path
        if name not in whole:
            continue
        groups = range(footer.num_row_groups)
        parts = [footer.row_group(group).column(index).statistics for group in groups]
        if all(part is not None and part.has_null_count for part in parts):
            nulls[name] = sum(part.null_count for part in parts)
        filled = [part for part in parts if part is None or part.num_values]
        if filled and all(part is not None and part.has_min_max for part in filled):
            low = _bound(min(part.min for part in filled), up=False)
            high = _bound(max(part.max for part in filled), up=True)
            if low is not None and high is not None:
                least[name], greatest[name] = low, high
    found = {"numRecords": footer.num_rows, "minValues": least, "maxValues": greatest}
    return msgspec.json.encode({**found, "nullCount": nulls}).decode()


def _bound(value: Any, *, up: bool) -> Any:
    """Return a minimum, or with ``up`` a maximum, in the form of Delta's JSON; None for a type or
    length that gets no bound."""
    if isinstance(value, datetime.datetime):
        # Delta's timestamps have milliseconds, so the upper bound is rounded up.
        below = value.replace(microsecond=value.microsecond // 1000 * 1000)
        shown = below + _MS if up and below != value else below
        text = shown.replace(tzinfo=None).isoformat(timespec="milliseconds")
        return f"{text}Z" if value.tzinfo else text
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, str):
        return value if len(value) <= _TEXT_MAX else None
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return None


class DeltaLakeTable(TableSink):
    """The Delta table at ``path``, created if it is missing.

    Spark writes to ``path``. On an object store, deltalake accesses the same path with
    ``storage_options`` (``s3a://`` becomes ``s3://``). ``partition_by`` names the columns that
    partition a new table; an existing table must have the same. ``options`` are passed to Spark's
    Parquet writer. With ``add_columns``, a batch with new columns adds them to the table, and
    columns that a batch lacks are null.

    ``keys``, ``newest_by`` and ``deleted`` are those of
    :class:`~cometmq.spark.tables.merge.Merge`; ``keys`` need ``newest_by``. Raises SettingsError
    for an invalid combination.
    """

    def __init__(
        self,
        path: str,
        *,
        partition_by: Sequence[str] = (),
        storage_options: Mapping[str, str] | None = None,
        options: Mapping[str, str] | None = None,
        add_columns: bool = False,
        keys: Sequence[str] = (),
        newest_by: Sequence[str] = (),
        deleted: str = "",
    ) -> None:
        self._path = path
        self._partition_by = list(partition_by)
        self._storage_options = dict(storage_options or {})
        self._options = dict(options or {})
        self._add_columns = add_columns
        self._merge = ordered(keys, newest_by, deleted)
        self._attempts = Attempts()
        self._table: DeltaTable | None = None

    def __str__(self) -> str:
        return self._path

    def last(self, spark: SparkSession, query: str) -> int:
        table = self._current(spark)
        return NO_BATCH if table is None else _last(table, query)

    def write(self, rows: DataFrame, mark: Mark) -> bool:
        """Append or merge a batch. Return False if the table has it already.

        Raises ColumnsDiffer, MergeFailed, and deltalake's errors. Raises SettingsError if the
        table's partition columns differ, or rows lack a column of the merge.
        """
        spark = rows.sparkSession
        merge = self._merge
        check_columns(rows, merge)
        schema = rows.schema
        if merge.deleted:
            schema = rows.drop(merge.deleted).schema
        table = self._current(spark) or self._make(spark, schema)
        partition_by = self._checked_partitions(table)
        schema = self._widened(spark, rows) if self._add_columns else _schema_of(table)
        fitting = fitted(rows, schema, self._path, may_lack=self._add_columns, extra=merge.extra)
        if merge.keys:
            source = newest_of_keys(fitting, merge, self._path)
            return self._commit(spark, mark, schema, self._merging(source, schema, partition_by))
        folder = folder_at(self._path, spark)
        attempt = self._attempts.begin(mark)
        files = write_files(fitting, folder, attempt, partition_by, self._options)
        added = [_added(folder, file, partition_by) for file in files]
        if not self._commit(spark, mark, schema, _appending(added, schema, partition_by)):
            folder.remove(f"{DATA}/{attempt}")
            return False
        self._attempts.settle(
            folder, mark, lambda name, batch: batch == mark.batch and name != attempt
        )
        return True

    def exchange(
        self, spark: SparkSession, gone: Sequence[str], made: Sequence[StoredFile]
    ) -> bool:
        """Replace the files ``gone`` of the table by the files ``made`` in one commit.

        Names are relative to the table's folder. Return False if another writer has removed one of
        ``gone`` since the table was last read. Raises deltalake's errors.
        """
        from deltalake.exceptions import CommitFailedError
        from deltalake.transaction import CommitProperties, RemoveAction

        table = self._table or self._current(spark)
        assert table is not None
        folder = folder_at(self._path, spark)
        partition_by = self._checked_partitions(table)
        if not set(self.names(spark)) >= set(gone):
            return False
        moment_ms = max((file.modified_ms for file in made), default=0)
        actions: list[AddAction | RemoveAction] = [
            _added(folder, file, partition_by) for file in made
        ]
        actions += [RemoveAction(name, True, moment_ms) for name in gone]
        try:
            _appending(actions, _schema_of(table), partition_by)(table, CommitProperties())
        except CommitFailedError as error:
            log.info("exchange_refused table=%s error=%s", self, error)
            return False
        return True

    def names(self, spark: SparkSession) -> list[str]:
        """Return the names of the files of the table as it was last read."""
        table = self._table or self._current(spark)
        if table is None:
            return []
        return [unquote(name) for name in table.get_add_actions().column("path").to_pylist()]

    def schema(self, spark: SparkSession) -> StructType:
        """Return the columns of the table as it was last read. Raises FileNotFoundError."""
        table = self._table or self._current(spark)
        if table is None:
            raise FileNotFoundError(self._path)
        return _schema_of(table)

    def clean(self, spark: SparkSession, retention_hours: int = 168) -> list[str]:
        """Run Delta's vacuum and return the names of the removed files.

        Vacuum removes files to which no version younger than ``retention_hours`` refers, including
        files of crashed attempts.
        """
        table = self._current(spark)
        if table is None:
            return []
        return table.vacuum(
            retention_hours, dry_run=False, enforce_retention_duration=False, full=True
        )

    # ------------------------------------------------------------------ Delta

    def _commit(self, spark: SparkSession, mark: Mark, schema: StructType, change: _Change) -> bool:
        """Make a commit with the mark. Return False if the table has the batch already."""
        from deltalake.exceptions import CommitFailedError
        from deltalake.transaction import CommitProperties, Transaction

        properties = CommitProperties(app_transactions=[Transaction(*mark)])
        for tries_left in reversed(range(_COMMIT_TRIES)):
            table = self._current(spark)
            assert table is not None
            if mark.batch <= _last(table, mark.query):
                return False
            try:
                change(table, properties)
            except CommitFailedError as error:
                # Another writer was faster. Retry only if the table still has the same columns.
                if not tries_left or _schema_of(self._fresh(spark)) != schema:
                    raise
                log.info("commit_retried table=%s batch=%d error=%s", self, mark.batch, error)
            else:
                return True
        raise AssertionError

    def _merging(self, rows: pa.Table, schema: StructType, partition_by: list[str]) -> _Change:
        mark_only = _appending([], schema, partition_by)

        def change(table: DeltaTable, properties: CommitProperties) -> None:
            version = table.version()
            if rows.num_rows:
                merge_into(table, rows, self._merge, schema.names, properties)
            if table.version() == version:
                # A merge that changes nothing commits nothing.
                mark_only(table, properties)

        return change

    def _widened(self, spark: SparkSession, rows: DataFrame) -> StructType:
        """Add the columns of ``rows`` that the table lacks. Return the table's columns.

        Raises ColumnsDiffer before anything is added.
        """
        from deltalake import Schema
        from deltalake.exceptions import DeltaError
        from pyspark.sql.types import StructType

        for tries_left in reversed(range(_COMMIT_TRIES)):
            table = self._current(spark)
            assert table is not None
            schema = _schema_of(table)
            new = new_columns(schema, rows.schema, self._merge.extra)
            wide = StructType([*schema.fields, *new])
            fitted(rows, wide, self._path, may_lack=True, extra=self._merge.extra)
            if not new:
                return schema
            try:
                table.alter.add_columns(Schema.from_json(StructType(new).json()).fields)
            except DeltaError as error:
                # Another writer may have added them.
                if not tries_left or _schema_of(self._fresh(spark)) == schema:
                    raise
                log.info("add_columns_retried table=%s error=%s", self, error)
            else:
                log.info("columns_added table=%s names=%s", self, ",".join(f.name for f in new))
        raise AssertionError

    def _current(self, spark: SparkSession) -> DeltaTable | None:
        """Return the table in its latest version, or None if it does not exist."""
        from deltalake import DeltaTable

        if self._table is None:
            uri = self._uri(spark)
            if not DeltaTable.is_deltatable(uri, storage_options=self._storage_options):
                return None
            return self._fresh(spark)
        self._table.update_incremental()
        return self._table

    def _fresh(self, spark: SparkSession) -> DeltaTable:
        from deltalake import DeltaTable

        self._table = DeltaTable(self._uri(spark), storage_options=self._storage_options)
        return self._table

    def _make(self, spark: SparkSession, schema: StructType) -> DeltaTable:
        from deltalake import DeltaTable, Schema

        for name in self._partition_by:
            _checked_partition(schema, name)
        uri = self._uri(spark)
        if isinstance(folder_at(self._path, spark), LocalFolder):
            Path(uri).mkdir(parents=True, exist_ok=True)
        DeltaTable.create(
            uri,
            Schema.from_json(schema.json()),
            mode="ignore",
            partition_by=self._partition_by,
            storage_options=self._storage_options,
        )
        return self._fresh(spark)

    def _checked_partitions(self, table: DeltaTable) -> list[str]:
        found = list(table.metadata().partition_columns)
        if self._partition_by and self._partition_by != found:
            raise SettingsError("partition_by", f"{self._path} is partitioned by {found}")
        return found

    def _uri(self, spark: SparkSession) -> str:
        """Return the URI of the table for deltalake."""
        folder = folder_at(self._path, spark)
        url = folder.url("").rstrip("/")
        if isinstance(folder, LocalFolder):
            return url.removeprefix("file://")
        return url.replace("s3a://", "s3://", 1)


def _appending(
    added: Sequence[AddAction | RemoveAction], schema: StructType, partition_by: list[str]
) -> _Change:
    from deltalake import Schema

    columns = Schema.from_json(schema.json())

    def change(table: DeltaTable, properties: CommitProperties) -> None:
        table.create_write_transaction(
            list(added), "append", columns, partition_by, commit_properties=properties
        )

    return change


def _last(table: DeltaTable, query: str) -> int:
    found = table.transaction_version(query)
    return NO_BATCH if found is None else found


def _schema_of(table: DeltaTable) -> StructType:
    import json

    from pyspark.sql.types import StructType

    found: dict[str, Any] = json.loads(table.schema().to_json())
    return StructType.fromJson(found)


def _checked_partition(schema: StructType, name: str) -> None:
    if name not in schema.names:
        raise SettingsError("partition_by", f"there is no column {name!r}")
    kind = schema[name].dataType.typeName()
    if kind not in _PARTITION_TYPES:
        raise SettingsError(
            "partition_by", f"column {name!r} is {kind}, not one of {_PARTITION_TYPES}"
        )


def _added(folder: Folder, file: StoredFile, partition_by: Sequence[str]) -> AddAction:
    from deltalake.transaction import AddAction

    statistics = statistics_of(folder, file.name)
    values = partition_values(file.name, len(partition_by))
    return AddAction(
        file.name, file.size_bytes, values, file.modified_ms, data_change=True, stats=statistics
    )


def partition_values(name: str, count: int) -> dict[str, str | None]:
    """Return the partition values from the last ``count`` folders in a file's name, as Spark wrote
    them."""
    folders = name.split("/")[:-1][-count:] if count else []
    found: dict[str, str | None] = {}
    for folder in folders:
        key, _, value = folder.partition("=")
        found[unquote(key)] = None if value == _NULL_FOLDER else unquote(value)
    return found
