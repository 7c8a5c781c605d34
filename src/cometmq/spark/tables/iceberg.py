"""An Iceberg table that micro-batches are appended to, through `pyiceberg`, without a jar.

    LOCATION/data/batch=00000012-QUERY-ATTEMPT/...parquet   written by the executors (datafiles.py)
    LOCATION/metadata/                                      Iceberg's; one commit a batch

A commit adds the batch's files and sets the table property ``cometmq.batch.QUERY`` to the number of
the batch. Iceberg's catalogue accepts a commit only on the version that it was made for, so the
batch is in the table once, even if others write to the table at the same time. A property stays
when snapshots expire.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from cometmq.core.errors import SettingsError
from cometmq.spark.tables.datafiles import DATA, Attempts, folder_at, write_files
from cometmq.spark.tables.sink import NO_BATCH, Mark, TableSink, fitted

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

log = logging.getLogger(__name__)

_COMMIT_TRIES: Final = 10
_MARK: Final = "cometmq.batch."


class IcebergTable(TableSink):
    """The Iceberg table ``identifier``, as ``namespace.table``, created if it is missing.

    ``catalog`` is the name of a pyiceberg catalogue and ``properties`` are its own, such as
    ``{"type": "sql", "uri": ..., "warehouse": ...}`` or ``{"type": "rest", "uri": ...}``; what they
    leave out comes from pyiceberg's configuration file. The driver needs it, the executors only the
    table's location. ``options`` are passed to Spark's Parquet writer. Partitioned tables are
    refused. Raises SettingsError for an identifier without a namespace.
    """

    def __init__(
        self,
        identifier: str,
        *,
        catalog: str = "default",
        properties: Mapping[str, str] | None = None,
        options: Mapping[str, str] | None = None,
    ) -> None:
        namespace, _, name = identifier.rpartition(".")
        if not namespace or not name:
            raise SettingsError("identifier", f"{identifier!r} is not namespace.table")
        self._identifier = identifier
        self._catalog_name = catalog
        self._properties = dict(properties or {})
        self._options = dict(options or {})
        self._attempts = Attempts()
        self._catalog: Catalog | None = None

    def __str__(self) -> str:
        return self._identifier

    def last(self, spark: SparkSession, query: str) -> int:
        table = self._loaded()
        return NO_BATCH if table is None else _last(table, query)

    def write(self, rows: DataFrame, mark: Mark) -> bool:
        """Append a batch. Return False if the table has it.

        Raises ColumnsDiffer, SettingsError for a partitioned table, and pyiceberg's errors.
        """
        spark = rows.sparkSession
        table = self._loaded() or self._make(rows.schema)
        if not table.spec().is_unpartitioned():
            raise SettingsError("table", f"{self._identifier} is partitioned")
        fitting = fitted(rows, _schema_of(table), self._identifier)
        folder = folder_at(table.location(), spark)
        attempt = self._attempts.begin(mark)
        files = write_files(fitting, folder, attempt, (), self._options)
        paths = [folder.url(file.name) for file in files if file.size_bytes]
        if not self._commit(mark, paths):
            folder.remove(f"{DATA}/{attempt}")
            return False
        self._attempts.settle(
            folder, mark, lambda name, batch: batch == mark.batch and name != attempt
        )
        return True

    def _commit(self, mark: Mark, paths: list[str]) -> bool:
        from pyiceberg.exceptions import CommitFailedException

        for tries_left in reversed(range(_COMMIT_TRIES)):
            table = self._loaded()
            assert table is not None
            if mark.batch <= _last(table, mark.query):
                return False
            try:
                with table.transaction() as change:
                    change.set_properties({_MARK + mark.query: str(mark.batch)})
                    if paths:
                        # Their names are new, so a search for them in the table finds nothing.
                        change.add_files(paths, check_duplicate_files=False)
            except CommitFailedException as error:
                if not tries_left:
                    raise
                log.info("commit_retried table=%s batch=%d error=%s", self, mark.batch, error)
            else:
                return True
        raise AssertionError

    def _loaded(self) -> Table | None:
        """Return the table in its latest version; None if it does not exist."""
        from pyiceberg.catalog import load_catalog
        from pyiceberg.exceptions import NoSuchTableError

        if self._catalog is None:
            self._catalog = load_catalog(self._catalog_name, **self._properties)
        try:
            return self._catalog.load_table(self._identifier)
        except NoSuchTableError:
            return None

    def _make(self, schema: StructType) -> Table:
        from pyspark.sql.pandas.types import to_arrow_schema

        assert self._catalog is not None
        self._catalog.create_namespace_if_not_exists(self._identifier.rpartition(".")[0])
        columns = to_arrow_schema(schema, timezone="UTC")
        # Other writers may have nulls, and Spark's own frames seldom say that they have none.
        for index, column in enumerate(columns):
            columns = columns.set(index, column.with_nullable(True))
        return self._catalog.create_table_if_not_exists(self._identifier, columns)


def _last(table: Table, query: str) -> int:
    return int(table.properties.get(_MARK + query, NO_BATCH))


def _schema_of(table: Table) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(table.schema().as_arrow())
