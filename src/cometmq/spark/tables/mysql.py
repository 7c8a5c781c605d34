"""A MySQL or MariaDB table to which micro-batches are appended, or into which they are merged by
key.

staging.py has the steps; this module has the SQL. Tasks copy rows with INSERT, many rows in a
statement, into an InnoDB table. DDL would commit the transaction that merges, so the staging table
is dropped after it.

Before a batch, the target is checked for faults about which MySQL would be silent. Its engine must
have transactions. ON DUPLICATE KEY UPDATE matches rows by every unique index, so there must be a
unique index on the keys, and no other one that could match.

Timestamps are written in UTC. Text is utf8mb4, and a new table compares it by bytes, including
trailing spaces.
"""

from __future__ import annotations

import datetime
import decimal
import logging
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from cometmq.core.errors import CometError, SettingsError
from cometmq.spark.tables.merge import Merge, MergeFailed
from cometmq.spark.tables.sink import NO_BATCH, ColumnsDiffer
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
    import pyarrow as pa
    import pymysql
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)

TYPES: Final = ColumnTypes(
    "MySQL",
    {
        "boolean": "boolean",
        "tinyint": "tinyint",
        "smallint": "smallint",
        "int": "int",
        "bigint": "bigint",
        "float": "float",
        "double": "double",
        "string": "longtext",
        "binary": "longblob",
        "date": "date",
        "timestamp": "datetime(6)",
        "timestamp_ntz": "datetime(6)",
    },
    decimal="decimal",
    text="longtext",
    nested="json",
)

#: Bytes of the text columns of a key. InnoDB's keys have at most 3 072 bytes; the rest is for
#: columns of other types.
_KEY_BYTES: Final = 2_800
_CHARACTER_BYTES: Final = 4
#: Collations that compare text by bytes, including trailing spaces: MariaDB's and MySQL's name.
_COLLATIONS: Final = ("utf8mb4_nopad_bin", "utf8mb4_0900_bin")

#: A value that does not fit its column is an error. 0 in an AUTO_INCREMENT column is stored as 0.
_SQL_MODE: Final = "STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION,NO_AUTO_VALUE_ON_ZERO"
#: max_sort_length: by default, a sort compares only 1 024 bytes, and keys may have 3 072.
_SESSION: Final = (
    f"SET time_zone = '+00:00', lock_wait_timeout = {LOCK_WAIT_S}, "
    f"innodb_lock_wait_timeout = {LOCK_WAIT_S}, max_sort_length = 8192"
)
#: Maximum size of an INSERT. Longer statements are not faster.
_STATEMENT_BYTES: Final = 1_000_000
_PACKET_HEAD: Final = 64
#: Error numbers of a deadlock and, in MariaDB, of a row that another transaction has changed.
_TRY_AGAIN: Final = (1213, 1020)
_LOCK_WAIT: Final = 1205
_TRIES: Final = 3

_ROW: Final = "_cometmq_row"
_RANK: Final = "_cometmq_rank"
_NEW: Final = "_cometmq_new"

_SCHEME: Final = "mysql"
_PORT: Final = 3306
_TIMEOUTS_S: Final = {"connect_timeout": 10, "read_timeout": 600, "write_timeout": 60}
_TEXTS: Final = ("unix_socket", "read_default_file", "ssl_ca", "ssl_cert", "ssl_key")


class RowTooLarge(CometError):
    """Raised if a row of ``size_bytes`` is longer than the server's ``max_allowed_packet``."""

    def __init__(self, size_bytes: int, max_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.max_bytes = max_bytes
        super().__init__(
            f"a row is a statement of {size_bytes} bytes, and the server's max_allowed_packet is "
            f"{max_bytes}"
        )

    def __reduce__(self) -> tuple[type[RowTooLarge], tuple[int, int]]:
        return RowTooLarge, (self.size_bytes, self.max_bytes)


# ---------------------------------------------------------------------- connections


def arguments(url: str) -> dict[str, Any]:
    """Return the arguments for PyMySQL from ``mysql://USER:PASSWORD@HOST:PORT/DATABASE?NAME=VALUE``.

    The password may come from ``MYSQL_PWD`` instead. Raises SettingsError, which does not show the
    URL.
    """
    parts = urlsplit(url)
    try:
        port = parts.port or _PORT
    except ValueError:  # drop its text, which may have a part of the password
        port = 0
    if parts.scheme != _SCHEME or len(parts.path) < 2 or not port or "@" in parts.path:
        raise SettingsError(
            "url",
            "is not of the form mysql://USER:PASSWORD@HOST:PORT/DATABASE; special characters need "
            "percent signs (%2F for /)",
        )
    own = parts.password
    found: dict[str, Any] = {
        "host": parts.hostname or "localhost",
        "port": port,
        "user": unquote(parts.username or ""),
        "password": os.environ.get("MYSQL_PWD", "") if own is None else unquote(own),
        "database": unquote(parts.path[1:]),
        **_TIMEOUTS_S,
    }
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name in _TEXTS:
            found[name] = value
        elif name in _TIMEOUTS_S and value.isdecimal() and int(value) > 0:
            found[name] = int(value)
        else:
            raise SettingsError("url", f"has a parameter {name!r} that is unknown or has no sense")
    if "ssl_ca" in found:
        found["ssl_verify_cert"] = found["ssl_verify_identity"] = True
    return found


def connected(url: str) -> pymysql.Connection[Any]:
    """Return a connection that commits each statement. Raises SettingsError and pymysql.Error."""
    import pymysql

    return pymysql.connect(
        **arguments(url),
        charset="utf8mb4",
        autocommit=True,
        sql_mode=_SQL_MODE,
        init_command=_SESSION,
    )


@contextmanager
def transaction(connection: pymysql.Connection[Any]) -> Iterator[None]:
    """Begin a transaction. Commit it at the end of the block, or roll it back after an error."""
    connection.begin()
    try:
        yield
    except BaseException:
        with suppress(Exception):
            connection.rollback()
        raise
    connection.commit()


def run(connection: pymysql.Connection[Any], statement: str, *values: object) -> int:
    """Run a statement with ``%s`` for each value, and return the number of rows."""
    with connection.cursor() as cursor:
        return int(cursor.execute(statement, values))


def rows_of(
    connection: pymysql.Connection[Any], statement: str, *values: object
) -> list[tuple[Any, ...]]:
    """Run a query with ``%s`` for each value, and return its rows."""
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        return list(cursor.fetchall())


def identifier(*names: str) -> str:
    """Return a qualified name in backticks, such as database and table, for :func:`run`."""
    return ".".join(f"`{_doubled(name.replace('`', '``'))}`" for name in names if name)


def _doubled(text: str) -> str:
    """Return text with percent signs doubled, as statements with ``%s`` need it."""
    return text.replace("%", "%%")


def _list(names: Iterable[str], *before: str) -> str:
    return ", ".join(identifier(*before, name) for name in names)


# ---------------------------------------------------------------------- what tasks do


class MySqlStaging(StagingFormat):
    """The staging tables of MySQL."""

    @classmethod
    def name(cls) -> str:
        return "cometmq_mysql_staging"

    def copier(self) -> Copier:
        return copy


def copy(source: StagingSource, task: str, batches: Iterator[pa.RecordBatch]) -> int:
    """Copy batches in one transaction and return the number of rows. Raises RowTooLarge."""
    table = identifier(source.schema, source.staging)
    columns = _list((*source.columns, source.task_column))
    # "% ()" undoes the doubling of percent signs in the names.
    head = (f"INSERT INTO {table} ({columns}) VALUES " % ()).encode()
    with connected(source.conninfo) as connection, transaction(connection):
        [(packet,)] = rows_of(connection, "SELECT @@max_allowed_packet")
        rows = 0
        for batch in batches:
            found = literals(batch, task, connection.escape)
            for statement in inserts(head, found, int(packet) - _PACKET_HEAD):
                connection.query(statement)
            rows += batch.num_rows
    return rows


def inserts(head: bytes, rows: Iterable[bytes], packet: int) -> Iterator[bytes]:
    """Yield INSERT statements with the rows, each of at most ``packet`` bytes. Raises
    RowTooLarge."""
    limit = min(_STATEMENT_BYTES, packet)
    parts: list[bytes] = []
    size = len(head)
    for row in rows:
        if len(head) + len(row) > packet:
            raise RowTooLarge(len(head) + len(row), packet)
        if parts and size + len(row) > limit:
            yield head + b",".join(parts)
            parts, size = [], len(head)
        parts.append(row)
        size += len(row) + 1
    if parts:
        yield head + b",".join(parts)


def literals(batch: pa.RecordBatch, task: str, escape: Callable[[object], str]) -> Iterator[bytes]:
    """Yield each row of a batch as SQL: ``(value, ..., task)``. ``escape`` quotes a value."""
    end = f",{_task(task)})"
    for row in zip(*(_values(column) for column in batch.columns), strict=True):
        words = ",".join(_literal(value, escape) for value in row)
        yield f"({words}{end}".encode()


def _values(column: Any) -> list[Any]:
    import pyarrow as pa

    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        column = column.cast(pa.timestamp("us", "UTC"))
    values: list[Any] = column.to_pylist()
    return values


def _literal(value: object, escape: Callable[[object], str]) -> str:
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    if isinstance(value, decimal.Decimal):
        return format(value, "f")  # MySQL would read a number with an exponent as a float
    if isinstance(value, datetime.datetime):
        return f"'{value.replace(tzinfo=None).isoformat(' ', 'microseconds')}'"
    return escape(value)


def _task(task: str) -> str:
    return f"X'{uuid.UUID(task).hex}'"


# ---------------------------------------------------------------------- the merge


def statements(
    merge: Merge, target: Sequence[str], staging: str, columns: Sequence[str], tasks: str
) -> list[str]:
    """Return the statements that merge the staged rows into the table, in order.

    ``target`` is the database, which may be empty, and the table. ``staging`` is an identifier.
    ``tasks`` is the list of the task attempts whose rows count, as SQL.
    """
    kept = [name for name in columns if name != merge.deleted]
    table, new = identifier(*target), identifier(_NEW)
    newest = f"{_newest(merge, staging, columns, tasks)} AS {new}"
    insert = f"INSERT INTO {table} ({_list(kept)}) SELECT {_list(kept, _NEW)} FROM {newest}"
    if not merge.keys:
        return [insert]
    found: list[str] = []
    if merge.deleted:
        same = " AND ".join(f"t.{identifier(k)} = {identifier(_NEW, k)}" for k in merge.keys)
        newer = _newer(merge, "t", lambda name: identifier(_NEW, name))
        deleted = identifier(_NEW, merge.deleted)
        found.append(
            f"DELETE t FROM {newest} STRAIGHT_JOIN {table} AS t ON {same} "
            f"WHERE {deleted} AND {newer} IS NOT TRUE"
        )
        insert += f" WHERE {deleted} IS NOT TRUE"
    return [*found, f"{insert} ON DUPLICATE KEY UPDATE {_assignments(merge, target, kept)}"]


def _newest(merge: Merge, staging: str, columns: Sequence[str], tasks: str) -> str:
    """Return the subquery for the staged rows that count; only the newest of each key if the merge
    has ``newest_by``."""
    rows = f"FROM {staging} WHERE {identifier(TASK)} IN ({tasks})"
    if not merge.newest_by:
        return f"(SELECT {_list(columns)} {rows})"
    order = ", ".join(f"{identifier(name)} DESC" for name in merge.newest_by)  # puts nulls last
    rank = identifier(_RANK)
    return (
        f"(SELECT {_list(columns)} FROM (SELECT {_list(columns)}, ROW_NUMBER() OVER "
        f"(PARTITION BY {_list(merge.keys)} ORDER BY {order}) AS {rank} {rows}) AS r "
        f"WHERE {rank} = 1)"
    )


def _newer(merge: Merge, own: str, other: Callable[[str], str]) -> str:
    """Return the condition that the table's row ``own`` is newer than the incoming one, whose
    columns ``other`` returns as SQL."""
    left = ", ".join(f"{own}.{identifier(name)}" for name in merge.newest_by)
    return f"(({left}) > ({', '.join(map(other, merge.newest_by))}))"


def _assignments(merge: Merge, target: Sequence[str], kept: Sequence[str]) -> str:
    """Return the assignments of an upsert.

    MySQL assigns from left to right, and each condition sees the values assigned before it. The
    columns of ``newest_by`` are therefore last, the least significant first, so that an assignment
    does not change the result of the conditions after it.
    """
    table = identifier(*target)
    other = [name for name in kept if name not in (*merge.keys, *merge.newest_by)]
    other += [name for name in reversed(merge.newest_by) if name not in merge.keys]
    if not other:
        own = identifier(*target, merge.keys[0])
        return f"{own} = {own}"
    if not merge.newest_by:
        return ", ".join(f"{identifier(*target, n)} = VALUES({identifier(n)})" for n in other)
    newer = _newer(merge, table, lambda name: f"VALUES({identifier(name)})")
    return ", ".join(
        f"{own} = IF({newer}, {own}, VALUES({identifier(name)}))"
        for name in other
        for own in (identifier(*target, name),)
    )


class MySqlTable(StagedTable["pymysql.Connection[Any]"]):
    """The table ``table`` (also ``database.table``) of the server and database that ``url`` names.

    ``url`` is ``mysql://USER:PASSWORD@HOST:PORT/DATABASE``, and must work on every executor. The
    password may instead come from ``MYSQL_PWD`` or an option file there. The table is created if it
    is missing, with ``keys`` as its primary key. An existing table must have a unique index on
    them.

    ``keys``, ``newest_by`` and ``deleted`` are those of
    :class:`~cometmq.spark.tables.merge.Merge`. Raises SettingsError for an invalid combination or
    URL.
    """

    def __init__(
        self,
        url: str,
        table: str,
        *,
        keys: Sequence[str] = (),
        newest_by: Sequence[str] = (),
        deleted: str = "",
    ) -> None:
        arguments(url)
        super().__init__(url, table, Merge(tuple(keys), tuple(newest_by), deleted))

    def _format(self) -> type[StagingFormat]:
        return MySqlStaging

    def _converted(self, rows: DataFrame) -> DataFrame:
        return TYPES.converted(rows, {"json": as_json})

    def _connect(self) -> pymysql.Connection[Any]:
        return connected(self._conninfo)

    def _lost(self) -> tuple[type[Exception], ...]:
        from pymysql import err

        return (err.OperationalError, err.InterfaceError)

    def _noted(self, connection: pymysql.Connection[Any], query: str, *, waits: bool) -> int:
        select = f"SELECT batch FROM {self._identifier(BATCHES)} WHERE target = %s AND query = %s"
        if waits:
            select += " FOR UPDATE"
        found = rows_of(connection, select, self._full, query)
        return int(found[0][0]) if found else NO_BATCH

    # ------------------------------------------------------------------ the merge

    def _transaction(self, connection: pymysql.Connection[Any]) -> AbstractContextManager[None]:
        return transaction(connection)

    def _apply(self, connection: pymysql.Connection[Any], batch: StagedBatch) -> bool:
        from pymysql import err

        for tries_left in reversed(range(_TRIES)):
            try:
                return super()._apply(connection, batch)
            except err.OperationalError as error:
                if error.args[0] not in _TRY_AGAIN or not tries_left:
                    raise
                log.info("merge_tried_again table=%s query=%s batch=%d", self, *batch.mark)
        raise AssertionError("the last try returns or raises")

    def _merged(self, connection: pymysql.Connection[Any], batch: StagedBatch) -> bool:
        mark = batch.mark
        # If the batch was recorded before, no row changes, and the returned count is 0.
        note = (
            f"INSERT INTO {self._identifier(BATCHES)} (target, query, batch) VALUES (%s, %s, %s) "
            "ON DUPLICATE KEY UPDATE "
            "applied_at = IF(batch < VALUES(batch), CURRENT_TIMESTAMP(6), applied_at), "
            "batch = GREATEST(batch, VALUES(batch))"
        )
        if not run(connection, note, self._full, mark.query, mark.batch):
            return False
        if not batch.counts:
            return True
        place = self._identifier(batch.staging)
        tasks = ", ".join(map(_task, sorted(batch.counts)))
        rows = f"FROM {place} WHERE {identifier(TASK)} IN ({tasks})"
        [(found,)] = rows_of(connection, f"SELECT COUNT(*) {rows}")
        self._check_count(batch, found)
        merge = self._merge
        nulls = " OR ".join(f"{identifier(name)} IS NULL" for name in merge.keys)
        if nulls and rows_of(connection, f"SELECT 1 {rows} AND ({nulls}) LIMIT 1"):
            raise self._null_key()
        if merge.keys and not merge.newest_by:
            keys = _list(merge.keys)
            twice = f"SELECT 1 {rows} GROUP BY {keys} HAVING COUNT(*) > 1 LIMIT 1"
            if rows_of(connection, twice):
                raise self._repeated_key(mark)
        target = self._schema, self._name
        for statement in statements(merge, target, place, batch.columns, tasks):
            run(connection, statement)
        return True

    # ------------------------------------------------------------------ tables

    def _make_batches(self, connection: pymysql.Connection[Any]) -> None:
        if self._types(connection, BATCHES):
            return
        run(
            connection,
            f"CREATE TABLE IF NOT EXISTS {self._identifier(BATCHES)} "
            "(target VARBINARY(512) NOT NULL, query VARBINARY(255) NOT NULL, "
            "batch BIGINT NOT NULL, applied_at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6), "
            "PRIMARY KEY (target, query)) ENGINE=InnoDB",
        )

    def _make_table(self, connection: pymysql.Connection[Any], rows: DataFrame) -> None:
        if self._types(connection, self._name):
            self._check_engine(connection)
            self._check_indexes(connection, rows.columns)
            return
        types = TYPES.of_schema(rows.schema)
        types.pop(self._merge.deleted, None)
        keys = self._merge.keys
        parts = [
            f"{identifier(name)} {kind}" for name, kind in (types | _keys(types, keys)).items()
        ]
        if keys:
            parts.append(f"PRIMARY KEY ({_list(keys)})")
        run(
            connection,
            f"CREATE TABLE IF NOT EXISTS {self._identifier(self._name)} ({', '.join(parts)}) "
            f"ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE {_collation(connection)}",
        )

    def _check_engine(self, connection: pymysql.Connection[Any]) -> None:
        found = rows_of(
            connection,
            "SELECT t.engine FROM information_schema.tables t JOIN information_schema.engines e "
            "ON e.engine = t.engine WHERE e.transactions = 'YES' "
            "AND t.table_schema = COALESCE(%s, DATABASE()) AND t.table_name = %s",
            *self._place(self._name),
        )
        if not found:
            raise MergeFailed(f"{self._full} is in no engine with transactions, such as InnoDB")

    def _check_indexes(self, connection: pymysql.Connection[Any], columns: Sequence[str]) -> None:
        """Raise MergeFailed unless there is a unique index on the keys, and no other one by which
        ON DUPLICATE KEY UPDATE could match rows."""
        if not self._merge.keys:
            return
        found = rows_of(
            connection,
            "SELECT i.index_name, i.column_name, i.sub_part, c.extra "
            "FROM information_schema.statistics i LEFT JOIN information_schema.columns c "
            "USING (table_schema, table_name, column_name) WHERE i.non_unique = 0 "
            "AND i.table_schema = COALESCE(%s, DATABASE()) AND i.table_name = %s",
            *self._place(self._name),
        )
        indexes: dict[str, set[str]] = {}
        counted = {
            column.lower() for _, column, _, extra in found if "auto_increment" in (extra or "")
        } - {name.lower() for name in columns}
        for name, column, part, _ in found:
            indexes.setdefault(name, set()).add("" if part or not column else column.lower())
        keys = {name.lower() for name in self._merge.keys}
        if keys not in indexes.values():
            raise MergeFailed(f"{self._full} has no unique index on {', '.join(self._merge.keys)}")
        for name, parts in indexes.items():
            if not parts >= keys and not parts & counted:
                raise MergeFailed(
                    f"{self._full} has another unique index, {name}: a row that equals another in "
                    "it would change that one"
                )

    def _make_staging(
        self, connection: pymysql.Connection[Any], staging: str, rows: DataFrame
    ) -> None:
        types = self._types(connection, self._name)
        deleted = self._merge.deleted
        kept = [name for name in rows.columns if name != deleted]
        unknown = [name for name in kept if name.lower() not in types]
        if unknown:
            differences = [f"column {name!r} is not in the table" for name in unknown]
            raise ColumnsDiffer(self._full, differences)
        for name in self._merge.newest_by:
            kind, stored = rows.schema[name].dataType.simpleString(), types[name.lower()]
            if not _keeps(kind, stored):
                raise MergeFailed(
                    f"{self._full}: its column {name!r} is {stored}, which rounds a {kind}: rows "
                    "could not be compared by it"
                )
        parts = [f"{identifier(name)} {types[name.lower()]} NULL" for name in kept]
        if deleted:
            parts.append(f"{identifier(deleted)} BOOLEAN")
        parts.append(f"{identifier(TASK)} BINARY(16) NOT NULL")
        # Some servers demand a primary key.
        parts.append(f"{identifier(_ROW)} BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY")
        create = f"CREATE TABLE {self._identifier(staging)} ({', '.join(parts)}) ENGINE=InnoDB"
        run(connection, create)

    def _types(self, connection: pymysql.Connection[Any], table: str) -> dict[str, str]:
        """Return the types of a table's columns by name in lower case; none if there is no such
        table."""
        found = rows_of(
            connection,
            "SELECT column_name, column_type, collation_name FROM information_schema.columns "
            "WHERE table_schema = COALESCE(%s, DATABASE()) AND table_name = %s",
            *self._place(table),
        )
        return {
            name.lower(): _doubled(f"{kind} COLLATE {collation}" if collation else kind)
            for name, kind, collation in found
        }

    def _staging_tables(self, connection: pymysql.Connection[Any], prefix: str) -> list[str]:
        found = rows_of(
            connection,
            "SELECT table_name FROM information_schema.tables "
            "WHERE table_schema = COALESCE(%s, DATABASE()) "
            "AND LEFT(table_name, CHAR_LENGTH(%s)) = %s",
            *self._place(prefix),
            prefix,
        )
        return [name for (name,) in found]

    def _drop(self, connection: pymysql.Connection[Any], staging: str) -> bool:
        from pymysql import err

        run(connection, f"SET lock_wait_timeout = {DROP_WAIT_S}")
        try:
            run(connection, f"DROP TABLE IF EXISTS {self._identifier(staging)}")
        except err.OperationalError as error:
            if error.args[0] != _LOCK_WAIT:
                raise
            log.warning("staging_in_use table=%s", staging)
            return False
        finally:
            run(connection, f"SET lock_wait_timeout = {LOCK_WAIT_S}")
        return True

    def _place(self, table: str) -> tuple[str | None, str]:
        """Return the database (None: that of the connection) and the table, as parameters."""
        return self._schema or None, table

    def _identifier(self, name: str) -> str:
        return identifier(self._schema, name)


def _keeps(kind: str, stored: str) -> bool:
    """Return whether a column of type ``stored`` keeps values of the Spark type ``kind`` exactly,
    or refuses them."""
    if kind.startswith("timestamp"):
        return stored in ("datetime(6)", "timestamp(6)")
    if kind in ("float", "double"):
        return stored.startswith(("double", kind))
    return _scale(kind) <= _scale(stored)


def _scale(kind: str) -> int:
    """Return the scale of a decimal type, 0 for other types."""
    if not kind.startswith("decimal("):
        return 0
    return int(kind.partition(",")[2].partition(")")[0] or 0)


def _keys(types: dict[str, str], keys: Sequence[str]) -> dict[str, str]:
    """Return the types of key columns. Text and binary columns get a length that fits a key."""
    long = [name for name in keys if types.get(name) in ("longtext", "longblob")]
    size = _KEY_BYTES // max(len(long), 1)
    found = {name: types[name] for name in keys if name in types}
    for name in long:
        is_text = types[name] == "longtext"
        found[name] = f"varchar({size // _CHARACTER_BYTES})" if is_text else f"varbinary({size})"
    return found


def _collation(connection: pymysql.Connection[Any]) -> str:
    found = rows_of(
        connection,
        "SELECT collation_name FROM information_schema.collations WHERE collation_name IN %s",
        _COLLATIONS,
    )
    names = [name for (name,) in found]
    return next((name for name in _COLLATIONS if name in names), "utf8mb4_bin")
