"""Tables of SQL databases: executors stage rows, and one transaction merges them.

A batch is written in three steps. After a failure, the next attempt at the batch repeats all of
them:

1. The driver creates a staging table with a unique name.
2. Each task attempt copies its rows there in one transaction, marked with a new id, and reports the
   id and the number of rows. A failed task leaves no rows. If a task runs twice (a retry, or
   speculation), Spark passes on only one report; the rows of the other id do not count.
3. One transaction records the batch in ``cometmq_batches`` and merges the rows with reported ids
   into the table. If the batch is already recorded, nothing changes. If the number of rows differs
   from the reports (the server crashed and lost staged rows), the transaction is rolled back.

Readers therefore see whole batches. If the connection is lost during the transaction, the record in
``cometmq_batches`` tells whether it was committed. Staging tables of a killed attempt are dropped
by the query's next batch, or by :meth:`StagedTable.clean`.

Each database has a subclass of :class:`StagedTable` with all of its SQL: postgres.py, mysql.py.
"""

from __future__ import annotations

import json
import logging
import tempfile
import uuid
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from cometmq.core.errors import CometError
from cometmq.spark.tables.merge import Merge, MergeFailed, check_columns
from cometmq.spark.tables.sink import Mark, TableSink, quoted

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

log = logging.getLogger(__name__)

BATCHES: Final = "cometmq_batches"
STAGING: Final = "cometmq_staging"

TASK: Final = "_cometmq_task"
"""The column of a staging table with the id of the task attempt that wrote the row."""

#: Wait for the lock of a staging table to drop: a task of a driver presumed dead may still copy
#: into it.
DROP_WAIT_S: Final = 1
#: Wait for a transaction whose connection was lost, or for the transaction of another driver.
LOCK_WAIT_S: Final = 60

#: Option with the StagingSource. It may have a password, and Spark hides the value of an option
#: whose name contains "secret".
_PLAN: Final = "secret_plan"
_ANSWER: Final = "answer"
_NESTED: Final = ("array", "map", "struct")

Connection = TypeVar("Connection")


class TypeUnknown(CometError):
    """Raised if a column has a type without a counterpart in the database."""

    def __init__(self, column: str, kind: str, database: str) -> None:
        self.column = column
        super().__init__(f"column {column!r} of type {kind} cannot be written to {database}")


@dataclass(frozen=True, slots=True)
class ColumnTypes:
    """A database's counterparts of Spark's types. ``plain`` is by Spark's name; ``decimal`` is
    without precision and scale; ``text`` is for varchar and char; ``nested`` for arrays, maps and
    structs."""

    database: str
    plain: Mapping[str, str]
    decimal: str
    text: str
    nested: str

    def of(self, column: str, kind: DataType) -> str:
        """Return the type of a new table's column. Raises TypeUnknown."""
        name = kind.simpleString()
        if name in self.plain:
            return self.plain[name]
        if name.startswith("decimal("):
            return name.replace("decimal", self.decimal)
        if name.startswith(("varchar(", "char(")):
            return self.text
        if name.startswith(_NESTED):
            return self.nested
        raise TypeUnknown(column, name, self.database)

    def of_schema(self, schema: StructType) -> dict[str, str]:
        """Return the columns of a new table with their types. Raises TypeUnknown."""
        return {field.name: self.of(field.name, field.dataType) for field in schema}

    def converted(
        self, rows: DataFrame, conversions: Mapping[str, Callable[[Column], Column]]
    ) -> DataFrame:
        """Return the rows with columns converted; ``conversions`` are by the database's type."""
        found = []
        for name, kind in self.of_schema(rows.schema).items():
            column = rows[quoted(name)]
            convert = conversions.get(kind)
            found.append(column if convert is None else convert(column).alias(name))
        return rows.select(*found)


# ---------------------------------------------------------------------- what tasks do


@dataclass(frozen=True, slots=True)
class StagingSource:
    """The staging table that tasks copy into, its columns, and the column for the id of the task
    attempt."""

    conninfo: str = field(repr=False)
    schema: str
    staging: str
    columns: tuple[str, ...]
    task_column: str


Copier = Callable[[StagingSource, str, "Iterator[pa.RecordBatch]"], int]
"""Function that copies the batches of a task attempt, whose id is the second argument, in one
transaction. Returns the number of rows."""


@dataclass
class Copied(WriterCommitMessage):
    """The id of a task attempt and the number of rows that it copied."""

    task: str
    rows: int


class StagingFormat(DataSource):
    """A private data source, through which Spark's tasks copy rows. Each database has a subclass,
    with a name and a copier."""

    @abstractmethod
    def copier(self) -> Copier:
        """Return a function that executors can import."""

    def writer(self, schema: StructType, overwrite: bool) -> StagingWriter:
        plan = json.loads(self.options[_PLAN])
        plan["columns"] = tuple(plan["columns"])
        answer = Path(self.options[_ANSWER])
        return StagingWriter(self.copier(), StagingSource(**plan), answer)


class StagingWriter(DataSourceArrowWriter):
    """Copies rows on the executors. On the driver, writes the tasks' reports to the file
    ``answer``."""

    def __init__(self, copier: Copier, source: StagingSource, answer: Path) -> None:
        self._copier = copier
        self._source = source
        self._answer = answer

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Copied:
        """Copy the rows of one attempt of a task. If it raises, nothing is copied."""
        task = str(uuid.uuid4())
        return Copied(task, self._copier(self._source, task, iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Write the ids and row counts to a file. Spark calls this in a process on the driver's
        machine."""
        row_counts = {each.task: each.rows for each in messages if isinstance(each, Copied)}
        self._answer.write_text(json.dumps(row_counts), encoding="utf-8")

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: rows of failed attempts are dropped with the staging table."""


def staged(rows: DataFrame, source: StagingSource, format: type[StagingFormat]) -> dict[str, int]:
    """Copy rows to the staging table, on the executors. Return the number of rows of each task
    attempt that counts, by its id."""
    spark = rows.sparkSession
    spark.dataSource.register(format)
    with tempfile.TemporaryDirectory(prefix="cometmq-copied-") as folder:
        answer = Path(folder) / "tasks.json"
        writer = rows.write.format(format.name()).mode("append")
        writer.option(_PLAN, json.dumps(asdict(source))).option(_ANSWER, str(answer)).save()
        found: dict[str, int] = json.loads(answer.read_bytes())
    return found


# ---------------------------------------------------------------------- the table


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """A batch whose rows are in the table ``staging``.

    ``counts`` has the number of rows of each task attempt that counts, by its id.
    """

    mark: Mark
    staging: str
    columns: Sequence[str]
    counts: dict[str, int]


class StagedTable(TableSink, Generic[Connection]):
    """The table ``table`` (also ``schema.table``) of a database.

    ``conninfo`` is the database's address, which must work on every executor. A subclass has the
    SQL. Its connections commit each statement, except in transactions that it begins.
    """

    def __init__(self, conninfo: str, table: str, merge: Merge) -> None:
        self._conninfo = conninfo
        self._schema, _, self._name = table.rpartition(".")
        self._merge = merge

    def __str__(self) -> str:
        return self._full

    @property
    def _full(self) -> str:
        return f"{self._schema}.{self._name}" if self._schema else self._name

    def last(self, spark: SparkSession, query: str) -> int:
        with self._connect() as connection:
            self._make_batches(connection)
            return self._noted(connection, query, waits=False)

    def write(self, rows: DataFrame, mark: Mark) -> bool:
        """Merge a batch. Return False if the table has it.

        Raises SettingsError if rows lack a column of the merge, TypeUnknown, MergeFailed, errors of
        the database's driver, and Spark's of tasks.
        """
        check_columns(rows, self._merge)
        columns = rows.columns
        staging = self._staging_name(mark)
        with self._connect() as connection:
            self._make_batches(connection)
            self._make_table(connection, rows)
            self._drop_staging(connection, mark.query)
            self._make_staging(connection, staging, rows)
        try:
            source = self._staging_source(staging, columns)
            counts = staged(self._converted(rows), source, self._format())
            return self._settled(StagedBatch(mark, staging, columns, counts))
        finally:
            with suppress(Exception), self._connect() as connection:
                self._drop(connection, staging)

    def clean(self) -> list[str]:
        """Drop the staging tables of this table's queries and return their names.

        No query may be writing to the table at the same time.
        """
        with self._connect() as connection:
            return self._drop_staging(connection, None)

    def _settled(self, batch: StagedBatch) -> bool:
        """Merge the staged rows. If the connection is lost, look up whether they were merged."""
        try:
            with self._connect() as connection:
                return self._apply(connection, batch)
        except self._lost():
            with self._connect() as connection:
                if self._noted(connection, batch.mark.query, waits=True) < batch.mark.batch:
                    raise
            log.warning("batch_was_committed table=%s query=%s batch=%d", self, *batch.mark)
            return True

    def _apply(self, connection: Connection, batch: StagedBatch) -> bool:
        """Record a batch and merge its rows in one transaction. Return False if it was recorded
        before."""
        with self._transaction(connection):
            return self._merged(connection, batch)

    def _check_count(self, batch: StagedBatch, found: int) -> None:
        wanted, number = sum(batch.counts.values()), batch.mark.batch
        if found != wanted:
            raise MergeFailed(
                f"{self._full}: {wanted} rows were copied for batch {number}, {found} are there"
            )

    def _null_key(self) -> MergeFailed:
        keys = ", ".join(self._merge.keys)
        return MergeFailed(f"{self._full}: a key column ({keys}) has nulls: leave these rows out")

    def _repeated_key(self, mark: Mark) -> MergeFailed:
        return MergeFailed(
            f"{self._full}: two rows of batch {mark.batch} have the same key, and there is no "
            "newest_by to choose between them"
        )

    def _drop_staging(self, connection: Connection, query: str | None) -> list[str]:
        """Drop the staging tables of a query's earlier attempts, or those of all queries."""
        found = self._staging_tables(connection, self._prefix(query))
        return [name for name in found if self._drop(connection, name)]

    # ------------------------------------------------------------------ names

    def _prefix(self, query: str | None) -> str:
        """Return the prefix of the names of this table's staging tables, of one query or (None) of
        all."""
        words = f"{STAGING}_{_digest(self._full)}_"
        return words if query is None else f"{words}{_digest(query)}_"

    def _staging_name(self, mark: Mark) -> str:
        return f"{self._prefix(mark.query)}{mark.batch}_{uuid.uuid4().hex[:8]}"

    def _staging_source(self, staging: str, columns: Sequence[str]) -> StagingSource:
        return StagingSource(self._conninfo, self._schema, staging, tuple(columns), TASK)

    # ------------------------------------------------------------------ each database's own

    @abstractmethod
    def _format(self) -> type[StagingFormat]:
        """Return the data source whose tasks copy into this database."""

    @abstractmethod
    def _converted(self, rows: DataFrame) -> DataFrame:
        """Return the rows with columns converted to types that the tasks can copy. Raises
        TypeUnknown."""

    @abstractmethod
    def _connect(self) -> AbstractContextManager[Connection]:
        """Return a connection as a context manager, which closes it."""

    @abstractmethod
    def _lost(self) -> tuple[type[Exception], ...]:
        """Return the types of errors after which a transaction may or may not be committed."""

    @abstractmethod
    def _make_batches(self, connection: Connection) -> None:
        """Create the table of batches if it is missing."""

    @abstractmethod
    def _noted(self, connection: Connection, query: str, *, waits: bool) -> int:
        """Return the last recorded batch of a query. With ``waits``, wait for a transaction that is
        recording one."""

    @abstractmethod
    def _make_table(self, connection: Connection, rows: DataFrame) -> None:
        """Create the table if it is missing."""

    @abstractmethod
    def _make_staging(self, connection: Connection, staging: str, rows: DataFrame) -> None:
        """Create a staging table. Its columns have the types of the target's and are nullable."""

    @abstractmethod
    def _transaction(self, connection: Connection) -> AbstractContextManager[object]:
        """Return a transaction as a context manager, which commits, or rolls back after an
        error."""

    @abstractmethod
    def _merged(self, connection: Connection, batch: StagedBatch) -> bool:
        """Record a batch and merge its rows, within a transaction. Return False if it was recorded
        before."""

    @abstractmethod
    def _staging_tables(self, connection: Connection, prefix: str) -> list[str]:
        """Return the names of staging tables with a prefix."""

    @abstractmethod
    def _drop(self, connection: Connection, staging: str) -> bool:
        """Drop a staging table. Return False if it is in use and therefore kept."""


def as_json(column: Column) -> Column:
    """Return a nested column as JSON."""
    from pyspark.sql import functions as f

    return f.to_json(column)


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:8]
