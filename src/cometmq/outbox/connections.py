"""Inserts of a row over connections of other libraries, in the transaction that is open there.

    SQLAlchemy   Connection, Session, scoped_session; AsyncConnection, AsyncSession
    Django       django.db.connection, connections["name"]
    asyncpg      Connection, also of a pool
    psycopg      AsyncConnection

The SQL is always the outbox's own; only its placeholders are rewritten. A connection is recognised
by the module of its class, so none of these libraries is imported here.
"""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Any, Final

from cometmq.core.errors import NotOpen, WrongArgument

if TYPE_CHECKING:
    from cometmq.outbox.row import Statement

#: Placeholders of statements. No statement has these characters in a literal or a name.
_PLACEHOLDER: Final = re.compile(r"\?|%s")
#: Values of SQLAlchemy's ``paramstyle`` for which placeholders must be numbered.
_NUMBERED: Final = frozenset({"numeric_dollar"})
_LIBRARIES: Final = ("sqlalchemy", "django", "asyncpg", "psycopg")


def insert(connection: Any, statement: Statement) -> int | None:
    """Run an insert over a connection of SQLAlchemy or Django, and return the new id.

    Returns None, without running it, for any other connection: the caller uses the database's own
    driver. Raises NotOpen outside of a transaction, and WrongArgument for an async connection.
    """
    match _library(connection):
        case "sqlalchemy":
            if hasattr(connection, "run_sync"):
                raise WrongArgument("connection", "is async: await add_async() instead")
            return _insert_sqlalchemy(connection, statement)
        case "django":
            return _insert_django(connection, statement)
        case "asyncpg":
            raise WrongArgument("connection", "is async: await add_async() instead")
        case "psycopg":
            _check_psycopg(connection)
            return None
        case _:
            return None


async def insert_async(connection: Any, statement: Statement) -> int:
    """Run an insert over an async connection and return the new id.

    Raises NotOpen outside of a transaction, and WrongArgument for another connection.
    """
    library = _library(connection)
    if library == "sqlalchemy" and hasattr(connection, "run_sync"):
        return int(await connection.run_sync(_insert_sqlalchemy, statement))
    if library == "asyncpg":
        if not connection.is_in_transaction():
            raise NotOpen("asyncpg has no transaction: use `async with connection.transaction()`")
        return int(await connection.fetchval(numbered(statement[0]), *statement[1]))
    if library == "psycopg" and type(connection).__name__.startswith("Async"):
        _check_psycopg(connection)
        cursor = await connection.execute(*statement)
        # Read the raw result: a row factory of the application may change the type of rows.
        return int(cursor.pgresult.get_value(0, 0))
    raise WrongArgument(
        "connection",
        f"must be of asyncpg, or async of psycopg or SQLAlchemy, not {type(connection).__name__}",
    )


def _check_psycopg(connection: Any) -> None:
    # Without autocommit the statement itself begins a transaction.
    if connection.autocommit and not connection.info.transaction_status:
        raise NotOpen("psycopg has no transaction: use `with connection.transaction()`")


def numbered(sql: str) -> str:
    """Return a statement with ``$1``, ``$2``, ... as placeholders."""
    numbers = itertools.count(1)
    return _PLACEHOLDER.sub(lambda _: f"${next(numbers)}", sql)


def _insert_sqlalchemy(connection: Any, statement: Statement) -> int:
    sql, values = statement
    if hasattr(connection, "flush"):
        # Lock the changed rows before the order key. If all transactions lock in this order, they
        # do not deadlock.
        connection.flush()
        connection = connection.connection()
    if connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT":
        raise NotOpen("SQLAlchemy has no transaction: the connection's isolation is AUTOCOMMIT")
    if connection.dialect.paramstyle in _NUMBERED:
        sql = numbered(sql)
    return int(connection.exec_driver_sql(sql, values).scalar_one())


def _insert_django(connection: Any, statement: Statement) -> int:
    if not connection.in_atomic_block:
        raise NotOpen("Django has no transaction: use `with transaction.atomic()`")
    sql, values = statement
    with connection.cursor() as cursor:
        cursor.execute(_PLACEHOLDER.sub("%s", sql), values)
        [(row_id,)] = cursor.fetchall()
    return int(row_id)


def _library(connection: object) -> str:
    """Return the library of an object's class or of a base class of it; "" for any other."""
    found = {each.__module__.partition(".")[0] for each in type(connection).__mro__}
    return next((name for name in _LIBRARIES if name in found), "")
