"""What every outbox offers, whatever the database: writing rows, and the operator's questions."""

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
    """A table of messages to send, in a database of the application's; :attr:`errors` are what that
    database raises."""

    errors: tuple[type[Exception], ...]

    def __init__(self, table: str, mark: str, max_message_bytes: int) -> None:
        if not _NAME.fullmatch(table):
            raise SettingsError("table", f"{table!r} is no plain name, such as outbox")
        self.table = table
        self.statements = Statements(table, mark)
        self._max_message_bytes = max_message_bytes

    @property
    @abstractmethod
    def name(self) -> str:
        """What logs call it: the database without passwords, and the table."""

    @abstractmethod
    def open(self) -> Source:
        """A relay's hold on it, for one thread. Raises what the database raises."""

    @abstractmethod
    def _insert(self, values: tuple[Value, ...]) -> Statement:
        """The insert of topic, order key, headers and body that gives the new id."""

    @abstractmethod
    def _cursor(self, connection: Any) -> Any:
        """A cursor of the application's connection that gives tuples, whatever that gives."""

    @abstractmethod
    def _query(self, statement: Statement) -> tuple[Sequence[Sequence[Any]], int]:
        """Run a statement over a connection of its own, and commit: rows, number of changed."""

    def statement(self, message: Message, *, order_key: str | None = None) -> Statement:
        """The insert that puts a message into the outbox, and the values of its marks, for any
        database library; it gives the row's id.

        Run it in the transaction of the change that the message tells of, after that change. Raises
        MessageIllegal for a message that no broker would take.
        """
        check_target(message.topic)
        check_message(message, self._max_message_bytes)
        return self._insert((message.topic, order_key, headers_of(message), message.body))

    def add(self, connection: Any, message: Message, *, order_key: str | None = None) -> int:
        """Put a message into the transaction that ``connection`` (of sqlite3, of psycopg) is in;
        gives the row's id.

        It is sent if that transaction commits, after all of its ``order_key`` that committed
        before. Raises MessageIllegal for a message that no broker would take.
        """
        statement = self.statement(message, order_key=order_key)
        # All of the answer is read, else SQLite takes the insert for unfinished.
        [(row_id,)] = self._cursor(connection).execute(*statement).fetchall()
        return int(row_id)

    def status(self) -> Status:
        """What waits and what is refused."""
        rows, _ = self._query(self.statements.status())
        return Status(*rows[0])

    def refused(self, limit: int = 100) -> list[Refusal]:
        """The oldest rows that cannot be sent."""
        rows, _ = self._query(self.statements.refused(limit))
        return [Refusal(*row) for row in rows]

    def retry(self, row_id: int) -> bool:
        """Have a refused row sent again, and what waits behind it; False when it is none."""
        return self._query(self.statements.retry(row_id))[1] == 1

    def discard(self, row_id: int) -> bool:
        """Drop a refused row and let go on what waits behind it; False when it is none."""
        return self._query(self.statements.discard(row_id))[1] == 1
