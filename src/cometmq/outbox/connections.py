"""Writes a row over the connections of other libraries, in the transaction that they have open.

    SQLAlchemy   Connection, Session, scoped_session; AsyncConnection, AsyncSession
    Django       django.db.connection, connections["name"]
    asyncpg      Connection, also of a pool
    psycopg      AsyncConnection

The SQL is always the outbox's own; only its placeholders are rewritten. A connection is recognised
by the library that its class comes from, so none of these libraries is imported here.
"""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Any, Final

from cometmq.core.errors import NotOpen, WrongArgument

if TYPE_CHECKING:
    from cometmq.outbox.row import Statement

#: No statement has these characters in a text or a name.
_PLACEHOLDER: Final = re.compile(r"\?|%s")
#: Placeholders of SQLAlchemy's ``paramstyle`` that differ from those of its database.
_NUMBERED: Final = frozenset({"numeric_dollar"})
_LIBRARIES: Final = ("sqlalchemy", "django", "asyncpg", "psycopg")


def insert(connection: Any, statement: Statement) -> int | None:
    """Run an insert over a connection of SQLAlchemy or Django and return the new id; return None
    for a connection of any other library.

    Raises NotOpen outside of a transaction, and WrongArgument for an async connection.
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
        # A row factory of the application may make rows of any type.
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
        # The rows' locks come before that of the order key, in all transactions alike.
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
    """Return the library that an object comes from, through the classes of its own program."""
    found = {each.__module__.partition(".")[0] for each in type(connection).__mro__}
    return next((name for name in _LIBRARIES if name in found), "")
