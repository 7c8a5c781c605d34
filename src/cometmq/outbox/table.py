"""Base class of all outboxes: adding rows, and inspecting and deciding about refused ones."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from cometmq.client.limits import check_message, check_target
from cometmq.core.errors import SettingsError
from cometmq.outbox.row import Refusal, Source, Status, headers_of
from cometmq.outbox.statements import Statement, Statements, Value

if TYPE_CHECKING:
    from cometmq.message.model import Message

_NAME: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*\.)?[A-Za-z_][A-Za-z0-9_]*")


class Outbox(ABC):
    """Table of messages to send, in the application's database.

    :attr:`errors` are the exceptions that the database raises.
    """

    errors: tuple[type[Exception], ...]

    def __init__(self, table: str, mark: str, max_message_bytes: int) -> None:
        if not _NAME.fullmatch(table):
            raise SettingsError("table", f"{table!r} is not a plain name such as outbox")
        self.table = table
        self.statements = Statements(table, mark)
        self._max_message_bytes = max_message_bytes

    @property
    @abstractmethod
    def name(self) -> str:
        """Name in log messages: the database without passwords, and the table."""

    @abstractmethod
    def open(self) -> Source:
        """Open the outbox for a relay, for use in one thread. Raises the database's errors."""

    @abstractmethod
    def _insert(self, values: tuple[Value, ...]) -> Statement:
        """Return the insert of topic, order key, headers and body, which returns the new id."""

    @abstractmethod
    def _cursor(self, connection: Any) -> Any:
        """Return a cursor of the application's connection that yields tuples, whatever its row
        factory.
        """

    @abstractmethod
    def _query(self, statement: Statement) -> tuple[Sequence[Sequence[Any]], int]:
        """Run a statement over a new connection and commit; return the rows and the number
        changed.
        """

    def statement(self, message: Message, *, order_key: str | None = None) -> Statement:
        """Return the insert of a message into the outbox, for any database library.

        The insert returns the row's id. Run it in the transaction of the change that the message
        describes, after that change. Raises MessageIllegal for a message that brokers would refuse.
        """
        check_target(message.topic)
        check_message(message, self._max_message_bytes)
        return self._insert((message.topic, order_key, headers_of(message), message.body))

    def add(self, connection: Any, message: Message, *, order_key: str | None = None) -> int:
        """Insert a message in the current transaction of ``connection`` (sqlite3, psycopg).

        Returns the row's id. The message is sent if the transaction commits, after all messages of
        its ``order_key`` that were committed before. Raises MessageIllegal for a message that
        brokers would refuse.
        """
        statement = self.statement(message, order_key=order_key)
        # Read the whole result, otherwise SQLite treats the insert as unfinished.
        [(row_id,)] = self._cursor(connection).execute(*statement).fetchall()
        return int(row_id)

    def status(self) -> Status:
        """Return the numbers of waiting and refused rows."""
        rows, _ = self._query(self.statements.status())
        return Status(*rows[0])

    def refused(self, limit: int = 100) -> list[Refusal]:
        """Return the oldest rows that cannot be sent."""
        rows, _ = self._query(self.statements.refused(limit))
        return [Refusal(*row) for row in rows]

    def retry(self, row_id: int) -> bool:
        """Have a refused row and the rows held back by it sent again; False if it is not
        refused.
        """
        return self._query(self.statements.retry(row_id))[1] == 1

    def discard(self, row_id: int) -> bool:
        """Delete a refused row, so that the rows held back by it are sent; False if it is not
        refused.
        """
        return self._query(self.statements.discard(row_id))[1] == 1
