"""The base-data platform: its tables, an outbox for the messages of its changes, and a relay that
publishes them.

A change and its message are one SQLite transaction:

    edit -> BEGIN; change the row; take the next change number; add to the outbox; COMMIT
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from cometmq.message.model import Message
from cometmq.outbox.relay import Relay, RelaySettings, Worker
from cometmq.outbox.sqlite import SqliteOutbox, SqliteSource
from examples.demo.tables import TABLES, Change, connect

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from cometmq.client.client import Client
    from cometmq.core.clock import Clock
    from cometmq.outbox.row import Settled
    from examples.demo.progress import Board
    from examples.demo.script import Edit

_CHANGES = """
CREATE TABLE IF NOT EXISTS changes (
    tbl TEXT NOT NULL,
    key TEXT NOT NULL,
    change INTEGER NOT NULL,
    PRIMARY KEY (tbl, key)
) WITHOUT ROWID
"""
_PUT_CHANGE = "INSERT OR REPLACE INTO changes (tbl, key, change) VALUES (?, ?, ?)"


class BaseData:
    """The platform's database at ``path``; its messages go to ``topic``."""

    def __init__(self, path: Path, topic: str) -> None:
        self.path = path
        self.outbox = SqliteOutbox(path)
        self._topic = topic
        self._connection = connect(path)
        self._connection.execute(_CHANGES)
        self.outbox.create(self._connection)
        highest = self._connection.execute("SELECT coalesce(max(change), 0) FROM changes")
        self._last_change: int = highest.fetchone()[0]

    def close(self) -> None:
        """Close the database."""
        self._connection.close()

    def apply(self, edits: Iterable[Edit], at_ms: int) -> int:
        """Apply the edits and add their messages in one transaction; return the number of
        changes."""
        run = self._connection.execute
        last = self._last_change
        run("BEGIN IMMEDIATE")
        try:
            for edit in edits:
                last += 1
                self._apply(Change(edit.table, edit.op, edit.key, last, at_ms, edit.row))
        except BaseException:
            run("ROLLBACK")
            raise
        run("COMMIT")
        done, self._last_change = last - self._last_change, last
        return done

    def _apply(self, change: Change) -> None:
        run = self._connection.execute
        table = TABLES[change.table]
        if change.row is None:
            run(table.delete_sql(), (change.key,))
        else:
            run(table.upsert_sql(), change.row)
        run(_PUT_CHANGE, (change.table, change.key, change.change))
        message = Message(self._topic, change.encode(), change.op, (change.key,))
        self.outbox.add(self._connection, message, order_key=change.key)

    def last_changes(self) -> dict[tuple[str, str], int]:
        """Return the number of the last change of every row, deleted ones included, by table and
        key."""
        rows = self._connection.execute("SELECT tbl, key, change FROM changes")
        return {(table, key): change for table, key, change in rows}


PAGE_CHANGES = 256


class RelayDied(BaseException):
    """The relay is killed after it sent a page and before it noted that."""


class Source:
    """The platform with its database at ``path``; an async context manager."""

    def __init__(self, path: Path, client: Client, topic: str, board: Board, clock: Clock) -> None:
        self.path = path
        self._client = client
        self._topic = topic
        self._board = board
        self._clock = clock
        self._worker = Worker("base")
        self._base: BaseData | None = None
        self._relay: Relay | None = None
        self._crash = False
        self._finished = False
        self._unnoted: set[int] = set()

    async def __aenter__(self) -> Source:
        self._base = await self._worker.call(BaseData, self.path, self._topic)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._base is not None
        await self._worker.call(self._base.close)
        self._worker.close()

    async def commit(self, edits: Iterable[Edit]) -> int:
        """Apply the edits in one transaction; return the number of changes."""
        assert self._base is not None
        done = await self._worker.call(self._base.apply, edits, self._clock.wall_ms())
        self._board.committed += done
        if self._relay is not None:
            self._relay.wake()
        return done

    def crash_relay(self) -> None:
        """Let the relay die after it sent its next page and before it noted that."""
        self._crash = True

    def finish(self) -> None:
        """Declare that no further edits follow: :meth:`publish` ends once the outbox is empty."""
        self._finished = True
        if self._relay is not None:
            self._relay.stop()

    async def publish(self) -> None:
        """Publish committed changes until :meth:`finish`.

        Raise ClientError if a message is refused then; it and all later ones stay in the outbox.
        """
        outbox = _Counted(self.path, self)
        while True:
            self._relay = Relay(self._client, outbox, RelaySettings(page_rows=PAGE_CHANGES))
            try:
                if self._finished:
                    await self._relay.drain()
                    return
                await self._relay.run()
            except RelayDied:
                self._board.say(
                    f"the relay is killed after it sent {len(self._unnoted)} changes and before it "
                    "recorded that; another relay sends them again"
                )

    def count(self, published: Collection[int]) -> None:
        """Count a page of rows that were sent. Raise RelayDied if it must not be noted."""
        again = self._unnoted.intersection(published)
        self._board.published_again += len(again)
        self._board.published += len(published) - len(again)
        self._unnoted -= again
        if self._crash and published:
            self._crash = False
            self._unnoted.update(published)
            raise RelayDied

    async def last_changes(self) -> dict[tuple[str, str], int]:
        """Return the number of the last change of every row, by table and key."""
        assert self._base is not None
        return await self._worker.call(self._base.last_changes)


class _Counted(SqliteOutbox):
    """The platform's outbox, which counts each page after it was sent and before that is noted."""

    def __init__(self, path: Path, source: Source) -> None:
        super().__init__(path)
        self._source = source

    def open(self) -> SqliteSource:
        return _CountedSource(self, self._source)


class _CountedSource(SqliteSource):
    def __init__(self, outbox: SqliteOutbox, source: Source) -> None:
        super().__init__(outbox.path, outbox.lock_path, outbox.statements)
        self._source = source

    def settle(self, settled: Settled) -> None:
        self._source.count(settled.published.keys())
        super().settle(settled)
