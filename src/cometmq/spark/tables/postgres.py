"""A PostgreSQL table that micro-batches are appended to, or merged into by key.

A batch is written in three steps. After a failure, the batch's next attempt starts again:

1. The driver creates an unlogged staging table with a unique name.
2. Each task copies its rows there in one transaction, marked with the attempt's id, and reports the
   id and the count. Failed tasks leave no rows. Tasks that run twice, by a retry or by speculation,
   leave rows of an id that is not reported.
3. One transaction records the batch in ``cometmq_batches``, merges the rows with reported ids into
   the table and drops the staging table. If the batch is already recorded, nothing changes. If the
   count differs from that of the tasks (the server crashed and emptied the unlogged table), the
   transaction is rolled back.

So readers see whole batches, and the driver receives one line per task. Staging tables of a killed
attempt are dropped by the query's next batch, or by :meth:`PostgresTable.clean`.

Spark's types are mapped to PostgreSQL's, and rows to the CSV that COPY reads. Spark first converts
types that CSV cannot hold to text: binary to a backslash, ``x`` and hex digits, which bytea
accepts, and arrays, maps and structs to JSON.
"""

from __future__ import annotations

import io
import json
import logging
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from cometmq.core.errors import CometError
from cometmq.spark.tables.merge import Merge, MergeFailed
from cometmq.spark.tables.sink import NO_BATCH, Mark, TableSink

if TYPE_CHECKING:
    import psycopg
    import pyarrow as pa
    from psycopg import sql
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

log = logging.getLogger(__name__)

BATCHES: Final = "cometmq_batches"
STAGING: Final = "cometmq_staging"

TASK: Final = "_cometmq_task"
"""The column of a staging table with the id of the task attempt that wrote the row."""

#: A task of a driver that was presumed dead may still be copying into a table that is to be
#: dropped.
_DROP_WAIT_MS: Final = 1_000

#: Spark hides the value of an option whose name contains this word. The conninfo may have a
#: password.
_PLAN: Final = "secret_plan"
_ANSWER: Final = "answer"
_FORMAT: Final = "cometmq_postgres_staging"

_PLAIN: Final = {
    "boolean": "boolean",
    "tinyint": "smallint",
    "smallint": "smallint",
    "int": "integer",
    "bigint": "bigint",
    "float": "real",
    "double": "double precision",
    "string": "text",
    "binary": "bytea",
    "date": "date",
    "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
}
_JSON: Final = ("array", "map", "struct")


class TypeUnknown(CometError):
    """Raised if a column has a type without a counterpart in PostgreSQL."""

    def __init__(self, column: str, kind: str) -> None:
        self.column = column
        super().__init__(f"column {column!r} of type {kind} cannot be written to PostgreSQL")


def postgres_type(column: str, kind: DataType) -> str:
    """Return the type of a new table's column. Raises TypeUnknown."""
    name = kind.simpleString()
    if name in _PLAIN:
        return _PLAIN[name]
    if name.startswith("decimal("):
        return name.replace("decimal", "numeric")
    if name.startswith(("varchar(", "char(")):
        return "text"
    if name.startswith(_JSON):
        return "jsonb"
    raise TypeUnknown(column, name)


def postgres_types(schema: StructType) -> dict[str, str]:
    """Return the columns of a new table with their types. Raises TypeUnknown."""
    return {field.name: postgres_type(field.name, field.dataType) for field in schema}


def as_text(rows: DataFrame) -> DataFrame:
    """Return the rows with columns that CSV can hold. Raises TypeUnknown."""
    return rows.select(*(_text(rows, name, kind) for name, kind in _kinds(rows).items()))


def csv_of(batch: pa.RecordBatch) -> bytes:
    """Return the rows of a batch as CSV. Null is an empty field, an empty text is two quotes."""
    import pyarrow.csv as csv

    target = io.BytesIO()
    csv.write_csv(batch, target, csv.WriteOptions(include_header=False))
    return target.getvalue()


def _kinds(rows: DataFrame) -> dict[str, str]:
    return postgres_types(rows.schema)


def _text(rows: DataFrame, name: str, kind: str) -> Column:
    from pyspark.sql import functions as f

    column: Any = rows[f"`{name.replace('`', '``')}`"]
    if kind == "bytea":
        return f.concat(f.lit("\\x"), f.hex(column)).alias(name)
    if kind == "jsonb":
        return f.to_json(column).alias(name)
    return column  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class StagingSource:
    """Target of the tasks' copies: the staging table, its columns, and the column for the attempt's
    id."""

    conninfo: str
    schema: str
    staging: str
    columns: tuple[str, ...]
    task_column: str


@dataclass
class Copied(WriterCommitMessage):
    """An attempt's id and the number of rows it copied."""

    task: str
    rows: int


class StagingFormat(DataSource):
    """A private data source for this module."""

    @classmethod
    def name(cls) -> str:
        return _FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> StagingWriter:
        plan = json.loads(self.options[_PLAN])
        plan["columns"] = tuple(plan["columns"])
        return StagingWriter(StagingSource(**plan), Path(self.options[_ANSWER]))


class StagingWriter(DataSourceArrowWriter):
    """Copies on the executors; on the driver, passes on the tasks' results."""

    def __init__(self, source: StagingSource, answer: Path) -> None:
        self._source = source
        self._answer = answer

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Copied:
        """Copy the rows of one attempt of a task. If it raises psycopg.Error, nothing is copied."""
        task = str(uuid.uuid4())
        return Copied(task, copy(self._source, task, iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Write the ids and row counts to a file. Spark calls this in a process on the driver's
        machine."""
        row_counts = {each.task: each.rows for each in messages if isinstance(each, Copied)}
        self._answer.write_text(json.dumps(row_counts), encoding="utf-8")

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: rows of failed attempts are dropped with the staging table."""


def copy(source: StagingSource, task: str, batches: Iterator[pa.RecordBatch]) -> int:
    """Copy batches in one transaction and return the number of rows."""
    import psycopg
    from psycopg import sql

    table = sql.Identifier(*filter(None, (source.schema, source.staging)))
    names = [sql.Identifier(name) for name in (*source.columns, source.task_column)]
    command = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(
        table, sql.SQL(", ").join(names)
    )
    rows = 0
    with (
        psycopg.connect(source.conninfo) as connection,
        connection.cursor() as cursor,
        cursor.copy(command) as target,
    ):
        for batch in batches:
            if batch.num_rows:
                target.write(csv_of(_with_task(batch, source.task_column, task)))
                rows += batch.num_rows
    return rows


def staged(rows: DataFrame, source: StagingSource) -> dict[str, int]:
    """Have the executors copy rows. Return the number of rows per attempt that counts, by its
    id."""
    spark = rows.sparkSession
    spark.dataSource.register(StagingFormat)
    with tempfile.TemporaryDirectory(prefix="cometmq-copied-") as folder:
        answer = Path(folder) / "tasks.json"
        writer = rows.write.format(_FORMAT).mode("append")
        writer.option(_PLAN, json.dumps(asdict(source))).option(_ANSWER, str(answer)).save()
        found: dict[str, int] = json.loads(answer.read_bytes())
    return found


def _with_task(batch: pa.RecordBatch, column: str, task: str) -> Any:
    import pyarrow as pa

    return batch.append_column(column, pa.array([task] * batch.num_rows, pa.string()))


def statements(
    merge: Merge, target: sql.Composable, staging: sql.Composable, columns: Sequence[str]
) -> list[sql.Composed]:
    """Return the statements that merge the staged rows into the table.

    Each takes one parameter: the list of the task attempts that count.
    """
    from psycopg import sql

    kept = [name for name in columns if name != merge.deleted]
    other = [name for name in kept if name not in merge.keys]
    parts: dict[str, sql.Composable] = {
        "target": target,
        "columns": names(kept),
        "keys": names(merge.keys),
        "newest": _newest(merge, staging, columns),
        "deleted": sql.Identifier(merge.deleted or "-"),
        "same_key": _equal(" AND ", merge.keys, "t", "s"),
        "set": _equal(", ", other, "", "excluded"),
        "not_newer": _not_newer(merge.newest_by, "t", "s"),
        "still": _not_newer(merge.newest_by, "t", "excluded"),
    }
    if not merge.keys:
        append = "INSERT INTO {target} ({columns}) SELECT {columns} FROM {newest} s"
        return [sql.SQL(append).format(**parts)]
    found: list[sql.Composed] = []
    rest = ""
    if merge.deleted:
        delete = "DELETE FROM {target} t USING {newest} s WHERE {same_key} AND {not_newer} "
        found.append(sql.SQL(delete + "AND s.{deleted}").format(**parts))
        rest = "WHERE s.{deleted} IS NOT TRUE "
    upsert = sql.SQL(
        "INSERT INTO {target} AS t ({columns}) SELECT {columns} FROM {newest} s "
        + rest
        + "ON CONFLICT ({keys}) DO "
        + ("UPDATE SET {set} WHERE {still}" if other else "NOTHING")
    )
    return [*found, upsert.format(**parts)]


def names(columns: Sequence[str]) -> sql.Composed:
    """Return the column names quoted and separated by commas."""
    from psycopg import sql

    return sql.SQL(", ").join(sql.Identifier(name) for name in columns)


def _newest(merge: Merge, staging: sql.Composable, columns: Sequence[str]) -> sql.Composed:
    """Return the subquery for the rows of the tasks, with one row per key if an order is given."""
    from psycopg import sql

    rows = sql.SQL("(SELECT {columns} FROM {staging} WHERE {task} = ANY(%s))")
    if merge.newest_by:
        rows = sql.SQL(
            "(SELECT DISTINCT ON ({keys}) {columns} FROM {staging} WHERE {task} = ANY(%s) "
            "ORDER BY {keys}, {order})"
        )
    last_first = sql.SQL("{} DESC NULLS LAST")
    return rows.format(
        columns=names(columns),
        staging=staging,
        task=sql.Identifier(TASK),
        keys=names(merge.keys),
        order=sql.SQL(", ").join(last_first.format(sql.Identifier(x)) for x in merge.newest_by),
    )


def _equal(between: str, columns: Sequence[str], left: str, right: str) -> sql.Composed:
    """Return ``left.name = right.name`` for each column; without a left, the name alone."""
    from psycopg import sql

    words = (
        sql.SQL("{} = {}").format(
            sql.Identifier(*filter(None, (left, name))), sql.Identifier(right, name)
        )
        for name in columns
    )
    return sql.SQL(between).join(words)


def _not_newer(columns: Sequence[str], left: str, right: str) -> sql.Composable:
    """Return the condition that the row of the table is not newer than the incoming one."""
    from psycopg import sql

    if not columns:
        return sql.SQL("TRUE")
    own, other = (
        sql.SQL(", ").join(sql.Identifier(side, name) for name in columns) for side in (left, right)
    )
    return sql.SQL("(ROW({}) > ROW({})) IS NOT TRUE").format(own, other)


class PostgresTable(TableSink):
    """The table ``table`` (also ``schema.table``) of the database that ``conninfo`` names.

    ``conninfo`` is a libpq connection string, and must work on every executor. The password may
    instead come from ``PGPASSWORD`` or a password file there. The table is created if it is
    missing, with ``keys`` as its primary key. An existing table must have a unique index on them.

    ``keys``, ``newest_by`` and ``deleted`` are those of
    :class:`~cometmq.spark.tables.merge.Merge`. Raises SettingsError for an invalid combination.
    """

    def __init__(
        self,
        conninfo: str,
        table: str,
        *,
        keys: Sequence[str] = (),
        newest_by: Sequence[str] = (),
        deleted: str = "",
    ) -> None:
        self._conninfo = conninfo
        self._schema, _, self._name = table.rpartition(".")
        self._merge = Merge(tuple(keys), tuple(newest_by), deleted)

    def __str__(self) -> str:
        return self._full

    @property
    def _full(self) -> str:
        return f"{self._schema}.{self._name}" if self._schema else self._name

    def last(self, spark: SparkSession, query: str) -> int:
        from psycopg import sql

        select = sql.SQL("SELECT batch FROM {} WHERE target = %s AND query = %s")
        with self._connect() as connection:
            self._make_batches(connection)
            values = (self._full, query)
            row = connection.execute(select.format(self._identifier(BATCHES)), values).fetchone()
        return NO_BATCH if row is None else int(row[0])

    def write(self, rows: DataFrame, mark: Mark) -> bool:
        """Merge a batch. Return False if the table has it.

        Raises TypeUnknown, MergeFailed, psycopg.Error, and Spark's errors of tasks.
        """
        columns = rows.columns
        staging = self._staging_name(mark)
        with self._connect() as connection:
            self._make_batches(connection)
            self._make_table(connection, rows)
            self._drop_staging(connection, mark.query)
            self._make_staging(connection, staging, rows)
        try:
            counts = staged(as_text(rows), self._staging_source(staging, columns))
            with self._connect() as connection, connection.transaction():
                return self._apply(connection, mark, staging, columns, counts)
        finally:
            with suppress(Exception), self._connect() as connection:
                self._drop(connection, staging)

    def clean(self) -> list[str]:
        """Drop the staging tables of this table's queries and return their names.

        No query may be writing to the table at the same time.
        """
        with self._connect() as connection:
            return self._drop_staging(connection, None)

    # ------------------------------------------------------------------ the merge

    def _apply(
        self,
        connection: psycopg.Connection[Any],
        mark: Mark,
        staging: str,
        columns: Sequence[str],
        counts: dict[str, int],
    ) -> bool:
        from psycopg import errors, sql

        note = sql.SQL(
            "INSERT INTO {batches} AS b (target, query, batch) VALUES (%s, %s, %s) "
            "ON CONFLICT (target, query) DO UPDATE SET batch = excluded.batch, applied_at = now() "
            "WHERE b.batch < excluded.batch"
        ).format(batches=self._identifier(BATCHES))
        if connection.execute(note, (self._full, mark.query, mark.batch)).rowcount == 0:
            return False
        place = self._identifier(staging)
        count = sql.SQL("SELECT count(*) FROM {} WHERE {} = ANY(%s)")
        named = sorted(counts)
        found = connection.execute(count.format(place, sql.Identifier(TASK)), (named,)).fetchone()
        if found is None or found[0] != sum(counts.values()):
            raise MergeFailed(
                f"{self._full}: {sum(counts.values())} rows were copied for batch {mark.batch}, "
                f"{found and found[0]} are there"
            )
        for statement in statements(self._merge, self._identifier(self._name), place, columns):
            try:
                connection.execute(statement, (named,))
            except errors.CardinalityViolation:
                raise MergeFailed(
                    f"{self._full}: two rows of batch {mark.batch} have the same key, and there "
                    "is no newest_by to choose between them"
                ) from None
        connection.execute(sql.SQL("DROP TABLE {}").format(place))
        return True

    # ------------------------------------------------------------------ tables

    def _make_batches(self, connection: psycopg.Connection[Any]) -> None:
        from psycopg import sql

        table = self._identifier(BATCHES)
        if _exists(connection, table):
            return
        create = sql.SQL(
            "CREATE TABLE IF NOT EXISTS {} (target text NOT NULL, query text NOT NULL, "
            "batch bigint NOT NULL, applied_at timestamptz NOT NULL DEFAULT now(), "
            "PRIMARY KEY (target, query))"
        )
        _create(connection, create.format(table))

    def _make_table(self, connection: psycopg.Connection[Any], rows: DataFrame) -> None:
        from psycopg import sql

        table = self._identifier(self._name)
        if _exists(connection, table):
            return
        types = postgres_types(rows.schema)
        types.pop(self._merge.deleted, None)
        parts = [_column(name, kind) for name, kind in types.items()]
        if self._merge.keys:
            parts.append(sql.SQL("PRIMARY KEY ({})").format(names(self._merge.keys)))
        create = sql.SQL("CREATE TABLE IF NOT EXISTS {} ({})")
        _create(connection, create.format(table, sql.SQL(", ").join(parts)))

    def _make_staging(
        self, connection: psycopg.Connection[Any], staging: str, rows: DataFrame
    ) -> None:
        """Create a staging table with the types of the target's columns, so that COPY parses values
        alike."""
        from psycopg import sql

        deleted = self._merge.deleted
        kept = [name for name in rows.columns if name != deleted]
        extra = [sql.SQL("NULL::uuid AS {}").format(sql.Identifier(TASK))]
        if deleted:
            extra.append(sql.SQL("NULL::boolean AS {}").format(sql.Identifier(deleted)))
        create = sql.SQL("CREATE UNLOGGED TABLE {} AS SELECT {} FROM {} WITH NO DATA")
        chosen = sql.SQL(", ").join([names(kept), *extra])
        target = self._identifier(self._name)
        connection.execute(create.format(self._identifier(staging), chosen, target))

    def _drop_staging(self, connection: psycopg.Connection[Any], query: str | None) -> list[str]:
        """Drop the staging tables of a query's earlier attempts, or those of all queries."""
        from psycopg import sql

        prefix = self._prefix(query)
        select = sql.SQL(
            "SELECT relname FROM pg_class WHERE relkind = 'r' AND starts_with(relname, %s) "
            "AND relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = {}::regclass)"
        )
        batches = sql.Literal(self._identifier(BATCHES).as_string(connection))
        found = connection.execute(select.format(batches), (prefix,)).fetchall()
        return [name for (name,) in found if self._drop(connection, name)]

    def _drop(self, connection: psycopg.Connection[Any], staging: str) -> bool:
        """Drop a staging table. Return False if it is in use and therefore kept."""
        from psycopg import errors, sql

        drop = sql.SQL("DROP TABLE IF EXISTS {}").format(self._identifier(staging))
        try:
            with connection.transaction():
                connection.execute(f"SET LOCAL lock_timeout = {_DROP_WAIT_MS}")
                connection.execute(drop)
        except errors.LockNotAvailable:
            log.warning("staging_in_use table=%s", staging)
            return False
        return True

    # ------------------------------------------------------------------ names

    def _prefix(self, query: str | None) -> str:
        """Return the prefix of the names of staging tables: of this table, or of one of its
        queries."""
        words = f"{STAGING}_{_digest(self._full)}_"
        return words if query is None else f"{words}{_digest(query)}_"

    def _staging_name(self, mark: Mark) -> str:
        return f"{self._prefix(mark.query)}{mark.batch}_{uuid.uuid4().hex[:8]}"

    def _staging_source(self, staging: str, columns: Sequence[str]) -> StagingSource:
        return StagingSource(self._conninfo, self._schema, staging, tuple(columns), TASK)

    def _identifier(self, name: str) -> sql.Identifier:
        from psycopg import sql

        return sql.Identifier(self._schema, name) if self._schema else sql.Identifier(name)

    def _connect(self) -> psycopg.Connection[Any]:
        import psycopg

        return psycopg.connect(self._conninfo, autocommit=True)


def _exists(connection: psycopg.Connection[Any], table: sql.Identifier) -> bool:
    found = connection.execute("SELECT to_regclass(%s)", (table.as_string(connection),)).fetchone()
    return found is not None and found[0] is not None


def _create(connection: psycopg.Connection[Any], create: sql.Composed) -> None:
    """Create a table that may exist. IF NOT EXISTS takes no lock: when two sessions create it at
    the same moment one fails, and the table exists."""
    from psycopg import errors

    with suppress(errors.UniqueViolation, errors.DuplicateTable):
        connection.execute(create)


def _column(name: str, kind: str) -> sql.Composable:
    from psycopg import sql

    return sql.SQL("{} " + kind).format(sql.Identifier(name))


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:8]
