"""A PostgreSQL table to which micro-batches are appended, or into which they are merged by key.

staging.py has the steps; this module has the SQL. The staging table is unlogged. Tasks copy rows
with COPY, as CSV. Spark first converts types that CSV cannot hold to text: binary to a backslash,
``x`` and hex digits, which bytea accepts, and arrays, maps and structs to JSON. The transaction
that merges also drops the staging table.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any, Final

from cometmq.spark.tables.merge import Merge
from cometmq.spark.tables.sink import NO_BATCH
from cometmq.spark.tables.staging import (
    BATCHES,
    DROP_WAIT_S,
    LOCK_WAIT_S,
    TASK,
    ColumnTypes,
    Copier,
    StagedBatch,
    StagedTable,
    StagingFormat,
    StagingSource,
    as_json,
)

if TYPE_CHECKING:
    import psycopg
    import pyarrow as pa
    from psycopg import sql
    from pyspark.sql import Column, DataFrame

log = logging.getLogger(__name__)

TYPES: Final = ColumnTypes(
    "PostgreSQL",
    {
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
    },
    decimal="numeric",
    text="text",
    nested="jsonb",
)


def csv_of(batch: pa.RecordBatch) -> bytes:
    """Return the rows of a batch as CSV. Null is an empty field; an empty text is two quotes."""
    import pyarrow.csv as csv

    target = io.BytesIO()
    csv.write_csv(batch, target, csv.WriteOptions(include_header=False))
    return target.getvalue()


def _as_hex(column: Column) -> Column:
    from pyspark.sql import functions as f

    return f.concat(f.lit("\\x"), f.hex(column))


class PostgresStaging(StagingFormat):
    """The staging tables of PostgreSQL."""

    @classmethod
    def name(cls) -> str:
        return "cometmq_postgres_staging"

    def copier(self) -> Copier:
        return copy


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


def _with_task(batch: pa.RecordBatch, column: str, task: str) -> Any:
    import pyarrow as pa

    return batch.append_column(column, pa.array([task] * batch.num_rows, pa.string()))


def statements(
    merge: Merge, target: sql.Composable, staging: sql.Composable, columns: Sequence[str]
) -> list[sql.Composed]:
    """Return the statements that merge the staged rows into the table, in order.

    Each has one parameter: the list of the task attempts whose rows count.
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
    """Return the subquery for the staged rows that count; only the newest of each key if the merge
    has ``newest_by``."""
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
    """Return ``left.name = right.name`` for each column, joined by ``between``. If ``left`` is
    empty, the left side is the name alone."""
    from psycopg import sql

    words = (
        sql.SQL("{} = {}").format(
            sql.Identifier(*filter(None, (left, name))), sql.Identifier(right, name)
        )
        for name in columns
    )
    return sql.SQL(between).join(words)


def _not_newer(columns: Sequence[str], left: str, right: str) -> sql.Composable:
    """Return the condition that the table's row is not newer than the incoming one. A null in an
    order column is no reason to keep the table's row."""
    from psycopg import sql

    if not columns:
        return sql.SQL("TRUE")
    own, other = (
        sql.SQL(", ").join(sql.Identifier(side, name) for name in columns) for side in (left, right)
    )
    return sql.SQL("(ROW({}) > ROW({})) IS NOT TRUE").format(own, other)


class PostgresTable(StagedTable["psycopg.Connection[Any]"]):
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
        super().__init__(conninfo, table, Merge(tuple(keys), tuple(newest_by), deleted))

    def _format(self) -> type[StagingFormat]:
        return PostgresStaging

    def _converted(self, rows: DataFrame) -> DataFrame:
        return TYPES.converted(rows, {"bytea": _as_hex, "jsonb": as_json})

    def _connect(self) -> psycopg.Connection[Any]:
        import psycopg

        return psycopg.connect(self._conninfo, autocommit=True)

    def _lost(self) -> tuple[type[Exception], ...]:
        import psycopg

        return (psycopg.OperationalError,)

    def _noted(self, connection: psycopg.Connection[Any], query: str, *, waits: bool) -> int:
        from psycopg import sql

        select = "SELECT batch FROM {} WHERE target = %s AND query = %s"
        if waits:
            connection.execute(f"SET lock_timeout = '{LOCK_WAIT_S}s'")
            select += " FOR UPDATE"
        values = (self._full, query)
        found = connection.execute(sql.SQL(select).format(self._identifier(BATCHES)), values)
        row = found.fetchone()
        return NO_BATCH if row is None else int(row[0])

    # ------------------------------------------------------------------ the merge

    def _transaction(
        self, connection: psycopg.Connection[Any]
    ) -> AbstractContextManager[psycopg.Transaction]:
        return connection.transaction()

    def _merged(self, connection: psycopg.Connection[Any], batch: StagedBatch) -> bool:
        from psycopg import errors, sql

        mark = batch.mark
        note = sql.SQL(
            "INSERT INTO {batches} AS b (target, query, batch) VALUES (%s, %s, %s) "
            "ON CONFLICT (target, query) DO UPDATE SET batch = excluded.batch, applied_at = now() "
            "WHERE b.batch < excluded.batch"
        ).format(batches=self._identifier(BATCHES))
        if connection.execute(note, (self._full, mark.query, mark.batch)).rowcount == 0:
            return False
        place = self._identifier(batch.staging)
        count = sql.SQL("SELECT count(*) FROM {} WHERE {} = ANY(%s)")
        named = sorted(batch.counts)
        found = connection.execute(count.format(place, sql.Identifier(TASK)), (named,)).fetchone()
        self._check_count(batch, found[0] if found else 0)
        if self._merge.keys:
            nulls = sql.SQL(" OR ").join(
                sql.SQL("{} IS NULL").format(sql.Identifier(name)) for name in self._merge.keys
            )
            have = sql.SQL("SELECT 1 FROM {} WHERE {} = ANY(%s) AND ({}) LIMIT 1")
            having = have.format(place, sql.Identifier(TASK), nulls)
            if connection.execute(having, (named,)).fetchone():
                raise self._null_key()
        target = self._identifier(self._name)
        for statement in statements(self._merge, target, place, batch.columns):
            try:
                connection.execute(statement, (named,))
            except errors.CardinalityViolation:
                raise self._repeated_key(mark) from None
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
        types = TYPES.of_schema(rows.schema)
        types.pop(self._merge.deleted, None)
        parts = [_column(name, kind) for name, kind in types.items()]
        if self._merge.keys:
            parts.append(sql.SQL("PRIMARY KEY ({})").format(names(self._merge.keys)))
        create = sql.SQL("CREATE TABLE IF NOT EXISTS {} ({})")
        _create(connection, create.format(table, sql.SQL(", ").join(parts)))

    def _make_staging(
        self, connection: psycopg.Connection[Any], staging: str, rows: DataFrame
    ) -> None:
        # Take the column types from the target, so that COPY parses values as the target would.
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

    def _staging_tables(self, connection: psycopg.Connection[Any], prefix: str) -> list[str]:
        from psycopg import sql

        select = sql.SQL(
            "SELECT relname FROM pg_class WHERE relkind = 'r' AND starts_with(relname, %s) "
            "AND relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = {}::regclass)"
        )
        batches = sql.Literal(self._identifier(BATCHES).as_string(connection))
        found = connection.execute(select.format(batches), (prefix,)).fetchall()
        return [name for (name,) in found]

    def _drop(self, connection: psycopg.Connection[Any], staging: str) -> bool:
        from psycopg import errors, sql

        drop = sql.SQL("DROP TABLE IF EXISTS {}").format(self._identifier(staging))
        try:
            with connection.transaction():
                connection.execute(f"SET LOCAL lock_timeout = '{DROP_WAIT_S}s'")
                connection.execute(drop)
        except errors.LockNotAvailable:
            log.warning("staging_in_use table=%s", staging)
            return False
        return True

    def _identifier(self, name: str) -> sql.Identifier:
        from psycopg import sql

        return sql.Identifier(self._schema, name) if self._schema else sql.Identifier(name)


def _exists(connection: psycopg.Connection[Any], table: sql.Identifier) -> bool:
    found = connection.execute("SELECT to_regclass(%s)", (table.as_string(connection),)).fetchone()
    return found is not None and found[0] is not None


def _create(connection: psycopg.Connection[Any], create: sql.Composed) -> None:
    """Create a table that may exist. IF NOT EXISTS takes no lock: if two sessions create the table
    at the same moment, one of them gets an error, which is ignored."""
    from psycopg import errors

    with suppress(errors.UniqueViolation, errors.DuplicateTable):
        connection.execute(create)


def _column(name: str, kind: str) -> sql.Composable:
    from psycopg import sql

    return sql.SQL("{} " + kind).format(sql.Identifier(name))
