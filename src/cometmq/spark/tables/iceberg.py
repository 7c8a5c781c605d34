"""An Iceberg table to which micro-batches are appended, or into which they are merged. It uses the
library `pyiceberg`, and no jar.

    LOCATION/data/batch=00000012-QUERY-ATTEMPT/...parquet   written by the executors (datafiles.py)
    LOCATION/metadata/                                      Iceberg's; one commit per batch

A commit adds the batch's files and sets the table property ``cometmq.batch.QUERY`` to the number of
the batch. Iceberg's catalogue accepts a commit only on the version for which it was prepared, so
the batch is in the table once, even if others write to the table at the same time. pyiceberg's own
retries are switched off, because they would move a commit to a later version, which may have the
batch already. The property stays when snapshots expire. If the response to a commit is an error or
is lost, the table shows whether the commit was made (icebergcommit.py).

A merge looks up the table's rows with the batch's keys, and replaces those that are not newer
(icebergmerge.py). New columns are added in the commit of the batch that has them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, cast

from pyspark.sql.types import StructType

from cometmq.core.errors import SettingsError
from cometmq.spark.tables.datafiles import DATA, Attempts, folder_at, write_files
from cometmq.spark.tables.icebergmerge import merge_into
from cometmq.spark.tables.icebergpartitions import split_columns
from cometmq.spark.tables.merge import check_columns, newest_of_keys, ordered
from cometmq.spark.tables.sink import NO_BATCH, Mark, TableSink, fitted, new_columns

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table, Transaction
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

_COMMIT_TRIES: Final = 10
_MARK: Final = "cometmq.batch."


class IcebergTable(TableSink):
    """The Iceberg table ``identifier``, as ``namespace.table``, created if it is missing.

    ``catalog`` is the name of a pyiceberg catalogue and ``properties`` are its own, such as
    ``{"type": "sql", "uri": ..., "warehouse": ...}`` or ``{"type": "rest", "uri": ...}``; other
    properties come from pyiceberg's configuration file. Only the driver accesses the catalogue;
    executors access the table's location. ``options`` are passed to Spark's Parquet writer. Batches
    are appended to an existing table that is partitioned by values, years, months, days or hours;
    merges write to tables with any partition. With ``add_columns``, a batch with new columns adds
    them to the table, and columns that a batch lacks are null.

    ``keys``, ``newest_by`` and ``deleted`` are those of
    :class:`~cometmq.spark.tables.merge.Merge`; ``keys`` need ``newest_by``. Raises SettingsError
    for an identifier without a namespace and for an invalid combination.
    """

    def __init__(
        self,
        identifier: str,
        *,
        catalog: str = "default",
        properties: Mapping[str, str] | None = None,
        options: Mapping[str, str] | None = None,
        add_columns: bool = False,
        keys: Sequence[str] = (),
        newest_by: Sequence[str] = (),
        deleted: str = "",
    ) -> None:
        namespace, _, name = identifier.rpartition(".")
        if not namespace or not name:
            raise SettingsError("identifier", f"{identifier!r} is not namespace.table")
        self._identifier = identifier
        self._catalog_name = catalog
        self._properties = dict(properties or {})
        self._options = dict(options or {})
        self._add_columns = add_columns
        self._merge = ordered(keys, newest_by, deleted)
        self._attempts = Attempts()
        self._catalog: Catalog | None = None

    def __str__(self) -> str:
        return self._identifier

    def last(self, spark: SparkSession, query: str) -> int:
        table = self._loaded()
        return NO_BATCH if table is None else _last(table, query)

    def write(self, rows: DataFrame, mark: Mark) -> bool:
        """Append or merge a batch. Return False if the table has it already.

        Raises ColumnsDiffer, MergeFailed, and pyiceberg's errors. Raises SettingsError for a
        partition transform that :func:`split_columns` does not know, and for rows that lack a
        column of the merge.
        """
        spark, merge = rows.sparkSession, self._merge
        check_columns(rows, merge)
        kept = rows.drop(merge.deleted) if merge.deleted else rows
        table = self._loaded() or self._make(kept.schema)
        schema = columns_of(table)
        new = new_columns(schema, kept.schema) if self._add_columns else []
        wide = StructType([*schema.fields, *new])
        fitting = fitted(
            rows, wide, self._identifier, may_lack=self._add_columns, extra=merge.extra
        )
        columns = arrow_columns(wide) if new else None
        if merge.keys:
            source = newest_of_keys(fitting, merge, self._identifier)

            def replace(table: Table, change: Transaction) -> None:
                merge_into(table, change, source, merge)

            return self._commit(mark, columns, replace)
        folder = folder_at(table.location(), spark)
        attempt = self._attempts.begin(mark)
        split, by = split_columns(fitting, table)
        files = write_files(split, folder, attempt, by, self._options)
        paths = [folder.url(file.name) for file in files if file.size_bytes]

        is_tried = False

        def append(_: Table, change: Transaction) -> None:
            nonlocal is_tried
            is_tried = True
            if paths:
                # The names are new, so pyiceberg need not search the table for duplicates.
                change.add_files(paths, check_duplicate_files=False)

        if not self._commit(mark, columns, append):
            # After a try, the batch in the table may be that of this attempt: keep its files.
            if not is_tried:
                folder.remove(f"{DATA}/{attempt}")
            return False
        self._attempts.settle(
            folder, mark, lambda name, batch: batch == mark.batch and name != attempt
        )
        return True

    def _commit(
        self,
        mark: Mark,
        columns: pa.Schema | None,
        write: Callable[[Table, Transaction], None],
    ) -> bool:
        """Commit the changes of ``write`` with the mark, and with the ``columns`` if some are new.

        Return False if the table has the batch already.
        """
        from pyiceberg.exceptions import CommitFailedException
        from pyiceberg.table import TableProperties

        from cometmq.spark.tables.icebergcommit import ConfirmingCatalog, ConflictUnexplained

        for tries_left in reversed(range(_COMMIT_TRIES)):
            table = self._loaded()
            assert table is not None
            if mark.batch <= _last(table, mark.query):
                return False
            # This changes only the copy in this process, not the catalogue's metadata.
            table.metadata.properties[TableProperties.COMMIT_NUM_RETRIES] = "0"
            try:
                with table.transaction() as change:
                    if columns is not None:
                        with change.update_schema() as update:
                            update.union_by_name(columns)
                    change.set_properties({_MARK + mark.query: str(mark.batch)})
                    write(table, change)
                    # Set last: only the commit, at the end of the block, goes through it.
                    table.catalog = cast("Catalog", ConfirmingCatalog(table.catalog))
            except (CommitFailedException, ConflictUnexplained) as error:
                if not tries_left:
                    raise
                log.info("commit_retried table=%s batch=%d error=%s", self, mark.batch, error)
            else:
                return True
        raise AssertionError

    @property
    def catalog(self) -> Catalog:
        """The table's catalogue, opened at the first use."""
        from cometmq.spark.tables.icebergcommit import open_catalog

        if self._catalog is None:
            self._catalog = open_catalog(self._catalog_name, self._properties)
        return self._catalog

    def _loaded(self) -> Table | None:
        """Return the table in its latest version; None if it does not exist."""
        from pyiceberg.exceptions import NoSuchTableError

        try:
            return self.catalog.load_table(self._identifier)
        except NoSuchTableError:
            return None

    def _make(self, schema: StructType) -> Table:
        self.catalog.create_namespace_if_not_exists(self._identifier.rpartition(".")[0])
        return self.catalog.create_table_if_not_exists(self._identifier, arrow_columns(schema))


def arrow_columns(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that creates or widens an Iceberg table, with nullable columns."""
    from pyspark.sql.pandas.types import to_arrow_schema

    columns = to_arrow_schema(schema, timezone="UTC")
    # All are nullable, because other writers may have nulls.
    for index, column in enumerate(columns):
        columns = columns.set(index, column.with_nullable(True))
    return columns


def _last(table: Table, query: str) -> int:
    return int(table.properties.get(_MARK + query, NO_BATCH))


def columns_of(table: Table) -> StructType:
    """Return the columns of a table as Spark has them."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(table.schema().as_arrow())
