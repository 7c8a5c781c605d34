"""An archive that is an Iceberg table: ``iceberg://CATALOG/NAMESPACE.TABLE``.

CATALOG is the name of a catalogue in pyiceberg's configuration. Only the driver accesses it; the
executors read and write the table's files. The table is partitioned by topic and day, and by hour
if it was created with hours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from cometmq.spark.options import BadOption, NoArchive
from cometmq.spark.tables.iceberg import IcebergTable, arrow_columns, columns_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from cometmq.spark.tables.sink import Mark


ICEBERG: Final = "iceberg://"


class IcebergArchive:
    """The archive at ``url``. Its first batch creates the table. Raises BadOption for a URL of
    another form."""

    def __init__(self, url: str, partition_by: Sequence[str], options: Mapping[str, str]) -> None:
        catalog, self._identifier = parts_of(url)
        self._partition_by = partition_by
        self._table = IcebergTable(self._identifier, catalog=catalog, options=dict(options))

    def apply(self, rows: DataFrame, mark: Mark) -> bool:
        """Append a batch unless the table has it already. Return whether it was appended."""
        self._create(rows.schema)
        return self._table.apply(rows, mark)

    def last(self, spark: SparkSession, query: str) -> int:
        """Return the highest batch of a query, NO_BATCH before its first."""
        return self._table.last(spark, query)

    def _create(self, schema: StructType) -> None:
        from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError

        catalog = self._table.catalog
        if catalog.table_exists(self._identifier):
            return
        catalog.create_namespace_if_not_exists(self._identifier.rpartition(".")[0])
        try:
            # Create table and partitions in one commit, so that no table exists without them.
            with (
                catalog.create_table_transaction(self._identifier, arrow_columns(schema)) as change,
                change.update_spec() as spec,
            ):
                for column in self._partition_by:
                    spec.add_identity(column)
        except (TableAlreadyExistsError, CommitFailedException):
            if not catalog.table_exists(self._identifier):
                raise


def is_iceberg(path: str) -> bool:
    """Return whether the path of an archive names an Iceberg table."""
    return path.startswith(ICEBERG)


def parts_of(url: str) -> tuple[str, str]:
    """Return the names of the catalogue and the table. Raises BadOption for another form."""
    catalog, _, table = url.removeprefix(ICEBERG).partition("/")
    if not catalog or "." not in table.strip(".") or "/" in table:
        raise BadOption("target", f"{url!r} is not {ICEBERG}CATALOG/NAMESPACE.TABLE")
    return catalog, table


def read_iceberg(spark: SparkSession, url: str) -> DataFrame:
    """Return the rows of the newest version of an archive. Raises NoArchive if there is none,
    BadOption if rows were deleted without rewriting their files."""
    from pyiceberg.exceptions import NoSuchTableError

    from cometmq.spark.tables.icebergcommit import open_catalog

    name, identifier = parts_of(url)
    try:
        table = open_catalog(name, {}).load_table(identifier)
    except NoSuchTableError:
        raise NoArchive("archive", f"there is no archive at {url}") from None
    files = list(table.scan().plan_files())
    if any(file.delete_files for file in files):
        raise BadOption(
            "archive", f"rows of {url} were deleted and are still in its files: rewrite these first"
        )
    schema = columns_of(table)
    if not files:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).parquet(*(file.file.file_path for file in files))
