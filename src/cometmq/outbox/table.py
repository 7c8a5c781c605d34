"""Base class of all outboxes, and the SQL statements that all databases share.

An outbox adds rows, and lists, retries or discards refused ones. A statement is SQL with its
values. The placeholder is ``?`` or ``%s``, which connections.py rewrites for other libraries; the
other SQL means the same in SQLite and PostgreSQL.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cometmq.client.arguments import check_topic_type, order_text
from cometmq.client.limits import check_message, check_target
from cometmq.core.errors import SettingsError
from cometmq.outbox.connections import insert, insert_async
from cometmq.outbox.row import Refusal, Source, Status, headers_of

if TYPE_CHECKING:
    from cometmq.client.arguments import Key
    from cometmq.message.model import Message
    from cometmq.outbox.row import Settled, Statement, Value, WantedRows

_WAITS: Final = "published_ms IS NULL AND refused IS NULL"
_INDEXES: Final = f"""
CREATE INDEX IF NOT EXISTS {{name}}_waiting ON {{table}} (id)
    WHERE {_WAITS};
CREATE INDEX IF NOT EXISTS {{name}}_refused ON {{table}} (topic, order_key, id)
    WHERE refused IS NOT NULL;
CREATE INDEX IF NOT EXISTS {{name}}_published ON {{table}} (published_ms)
    WHERE published_ms IS NOT NULL;
"""
_BEHIND_A_REFUSED: Final = (
    "EXISTS (SELECT 1 FROM {table} AS held WHERE held.refused IS NOT NULL"
    " AND held.topic = waiting.topic AND held.order_key = waiting.order_key"
    " AND held.id < waiting.id)"
)


def split(script: str) -> list[str]:
    """Return the statements of a script, which must have no semicolons in literals."""
    return [part.strip() for part in script.split(";") if part.strip()]


@dataclass(frozen=True, slots=True)
class Statements:
    """Statements for one table.

    ``mark`` is the placeholder, ``body`` the SQL expression of a row's body as bytes.
    """

    table: str
    mark: str
    body: str = "body"

    def indexes(self) -> str:
        """Return statements that create missing indexes of the table, in the table's schema."""
        return _INDEXES.format(table=self.table, name=self.table.rpartition(".")[2])

    def waiting(self, wanted: WantedRows) -> Statement:
        """Return the query of the oldest rows that may be sent: id, topic, order key, body size."""
        conditions = [_WAITS]
        if wanted.resting:
            conditions.append(f"topic NOT IN ({self._marks(wanted.resting)})")
        if wanted.hold_keys:
            conditions.append(f"NOT {_BEHIND_A_REFUSED.format(table=self.table)}")
        return (
            f"SELECT id, topic, order_key, length({self.body}) FROM {self.table} AS waiting "
            f"WHERE {' AND '.join(conditions)} ORDER BY id LIMIT {self.mark}",
            (*wanted.resting, wanted.rows),
        )

    def rows(self, ids: Sequence[int]) -> Statement:
        """Return the query of the fields of row.Row for these ids, ordered by id."""
        return (
            f"SELECT id, topic, order_key, CAST(headers AS TEXT), {self.body}, created_ms "
            f"FROM {self.table} WHERE id IN ({self._marks(ids)}) ORDER BY id",
            tuple(ids),
        )

    def settle(self, settled: Settled) -> Iterator[tuple[str, list[tuple[Value, ...]]]]:
        """Yield the statements that store the results of a page, each with a list of value tuples.

        Each statement is to be executed once per tuple.
        """
        table, mark = self.table, self.mark
        if settled.published and settled.keep_ms:
            yield (
                f"UPDATE {table} SET published_ms = {mark}, sent_as = {mark} WHERE id = {mark}",
                [(settled.now_ms, sent_as, at) for at, sent_as in settled.published.items()],
            )
            expired_ms = settled.now_ms - settled.keep_ms
            yield f"DELETE FROM {table} WHERE published_ms < {mark}", [(expired_ms,)]
        elif settled.published:
            yield f"DELETE FROM {table} WHERE id = {mark}", [(at,) for at in settled.published]
        if settled.refused:
            yield (
                f"UPDATE {table} SET refused = {mark} WHERE id = {mark}",
                [(reason, at) for at, reason in settled.refused.items()],
            )

    def sent_as(self, row_id: int) -> Statement:
        """Return the query of the attempt id of a published row."""
        return (
            f"SELECT sent_as FROM {self.table} WHERE id = {self.mark} AND published_ms IS NOT NULL",
            (row_id,),
        )

    def status(self) -> Statement:
        """Return the query of the fields of row.Status."""
        return (
            f"SELECT count(*), min(created_ms), (SELECT count(*) FROM {self.table} "
            f"WHERE refused IS NOT NULL) FROM {self.table} WHERE {_WAITS}",
            (),
        )

    def refused(self, limit: int) -> Statement:
        """Return the query of the fields of row.Refusal, for the oldest ``limit`` rows."""
        return (
            f"SELECT id, topic, order_key, refused FROM {self.table} "
            f"WHERE refused IS NOT NULL ORDER BY id LIMIT {self.mark}",
            (limit,),
        )

    def retry(self, row_id: int) -> Statement:
        """Return the update that makes a refused row wait again."""
        return f"UPDATE {self.table} SET refused = NULL {self._refused()}", (row_id,)

    def discard(self, row_id: int) -> Statement:
        """Return the deletion of a refused row."""
        return f"DELETE FROM {self.table} {self._refused()}", (row_id,)

    def _refused(self) -> str:
        return f"WHERE id = {self.mark} AND refused IS NOT NULL"

    def _marks(self, values: Sequence[object]) -> str:
        return ", ".join([self.mark] * len(values))


_NAME: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*\.)?[A-Za-z_][A-Za-z0-9_]*")


class Outbox(ABC):
    """Table of messages to send, in the application's database.

    :attr:`errors` are the exceptions that the database raises.
    """

    errors: tuple[type[Exception], ...]

    def __init__(
        self, table: str, mark: str, max_message_bytes: int, *, body: str = "body"
    ) -> None:
        if not _NAME.fullmatch(table):
            raise SettingsError("table", f"{table!r} is not a plain name such as outbox")
        self.table = table
        self.statements = Statements(table, mark, body)
        self._max_message_bytes = max_message_bytes

    @property
    @abstractmethod
    def name(self) -> str:
        """Name in log messages: the database without passwords, and the table."""

    @abstractmethod
    def schema(self) -> list[str]:
        """Return the statements, for migrations, that create the table and indexes if missing."""

    @abstractmethod
    def open(self) -> Source:
        """Open the outbox for a relay, for use in one thread. Raises the database's errors."""

    @abstractmethod
    def _insert(self, values: tuple[Value, ...]) -> Statement:
        """Return the insert of topic, order key, headers and body; its result is the new id."""

    @abstractmethod
    def _insert_over(self, connection: Any, statement: Statement) -> int:
        """Run an insert over a connection of the database's own driver; return the new id."""

    @abstractmethod
    def _query(self, statement: Statement) -> tuple[Sequence[Sequence[Any]], int]:
        """Run a statement over a new connection and commit; return rows and number of changes."""

    def statement(self, message: Message, *, order_key: Key | None = None) -> Statement:
        """Return the insert of a message into the outbox, for any database library.

        The result of the insert is the row's id. Run it in the transaction of the change that the
        message describes, after that change. Raises MessageIllegal for a message that brokers would
        refuse.
        """
        check_topic_type(message.topic)
        check_target(message.topic)
        check_message(message, self._max_message_bytes)
        key = order_text(order_key)
        return self._insert((message.topic, key, headers_of(message), message.body))

    def add(self, connection: Any, message: Message, *, order_key: Key | None = None) -> int:
        """Insert a message in the current transaction of ``connection``.

        ``connection`` is one of sqlite3 or psycopg, a Connection or Session of SQLAlchemy, or
        Django's ``connection``. A Session flushes its changes first. Returns the row's id. The
        message is sent if the transaction commits; messages of one ``order_key`` are sent in the
        order of their commits. Raises MessageIllegal for a message that brokers would refuse,
        NotOpen outside of a transaction, and WrongArgument for an async connection.
        """
        statement = self.statement(message, order_key=order_key)
        row_id = insert(connection, statement)
        return self._insert_over(connection, statement) if row_id is None else row_id

    async def add_async(
        self, connection: Any, message: Message, *, order_key: Key | None = None
    ) -> int:
        """Insert a message in the current transaction of an async ``connection``; see :meth:`add`.

        ``connection`` is one of asyncpg or of its pool, psycopg's AsyncConnection, or an
        AsyncConnection or AsyncSession of SQLAlchemy. Raises NotOpen outside of a transaction, and
        WrongArgument for any other connection.
        """
        return await insert_async(connection, self.statement(message, order_key=order_key))

    def status(self) -> Status:
        """Return the numbers of waiting and refused rows."""
        rows, _ = self._query(self.statements.status())
        return Status(*rows[0])

    def refused(self, limit: int = 100) -> list[Refusal]:
        """Return the oldest refused rows, at most ``limit``."""
        rows, _ = self._query(self.statements.refused(limit))
        return [Refusal(*row) for row in rows]

    def retry(self, row_id: int) -> bool:
        """Make a refused row wait again, so that it and the rows held back by it are sent.

        Returns False if the row is not refused.
        """
        return self._query(self.statements.retry(row_id))[1] == 1

    def discard(self, row_id: int) -> bool:
        """Delete a refused row, so that the rows held back by it are sent.

        Returns False if the row is not refused.
        """
        return self._query(self.statements.discard(row_id))[1] == 1
