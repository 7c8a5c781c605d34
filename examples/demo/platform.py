"""A platform that subscribes to the changes and keeps its own copy of the tables.

It is a member of its own consumer group. Acknowledged messages do not come again after a restart;
failed ones do after a delay. Its database decides which changes are new: beside the tables,
``applied`` holds the number of the newest change of every row, deleted rows included. So neither
repeats nor late retries do harm, and a deleted row does not return.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum, auto
from pathlib import Path
from typing import TYPE_CHECKING, Final
from zlib import crc32

from cometmq.client.client import Client
from cometmq.outbox.relay import Worker
from examples.demo.tables import TABLES, Change, connect, decode

if TYPE_CHECKING:
    import asyncio

    from cometmq.client.consumer.pushconsumer import Subscription
    from cometmq.client.consumer.received import ReceivedMessage
    from cometmq.core.clock import Clock
    from examples.demo.progress import Party

_APPLIED = """
CREATE TABLE IF NOT EXISTS applied (
    tbl TEXT NOT NULL,
    key TEXT NOT NULL,
    change INTEGER NOT NULL,
    PRIMARY KEY (tbl, key)
) WITHOUT ROWID
"""
_PUT_APPLIED = "INSERT OR REPLACE INTO applied (tbl, key, change) VALUES (?, ?, ?)"


class Applied(Enum):
    """Outcome of a change."""

    NEW = auto()
    REPEATED = auto()  # this change was applied before
    STALE = auto()  # a newer change of the row was applied before


class Copy:
    """The copy in the database at ``path``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection = connect(path)
        self._connection.execute(_APPLIED)

    def close(self) -> None:
        """Close the database."""
        self._connection.close()

    def apply(self, change: Change) -> Applied:
        """Apply a change in one transaction, unless the row has this change or a newer one."""
        run = self._connection.execute
        table = TABLES[change.table]
        run("BEGIN IMMEDIATE")
        try:
            known = run(
                "SELECT change FROM applied WHERE tbl = ? AND key = ?", (change.table, change.key)
            ).fetchone()
            if known is not None and known[0] >= change.change:
                run("ROLLBACK")
                return Applied.REPEATED if known[0] == change.change else Applied.STALE
            if change.row is None:
                run(table.delete_sql(), (change.key,))
            else:
                run(table.upsert_sql(), change.row)
            run(_PUT_APPLIED, (change.table, change.key, change.change))
        except BaseException:
            if self._connection.in_transaction:
                run("ROLLBACK")
            raise
        run("COMMIT")
        return Applied.NEW

    def last_changes(self) -> dict[tuple[str, str], int]:
        """Return the number of the newest applied change of every row, by table and key."""
        rows = self._connection.execute("SELECT tbl, key, change FROM applied")
        return {(table, key): change for table, key, change in rows}


log = logging.getLogger(__name__)

#: Delay levels of the first retries: 1 s, then 5 s.
RETRY_LEVELS: Final = (1, 2)

_OUTCOMES: Final = {Applied.NEW: "new", Applied.REPEATED: "repeated", Applied.STALE: "stale"}

#: Decides whether the platform fails on a change, given the number of earlier attempts.
Fails = Callable[[Change, int], bool]


class Platform:
    """One platform: its group is ``<name>-platform``, its copy the database at ``path``."""

    def __init__(
        self,
        name: str,
        path: Path,
        *,
        namesrv: str,
        topic: str,
        party: Party,
        clock: Clock,
        fails: Fails | None = None,
    ) -> None:
        self.name = name
        self.path = path
        #: Number of the newest change of each row that this platform has applied, by table and key.
        self.known: dict[tuple[str, str], int] = {}
        self._namesrv = namesrv
        self._topic = topic
        self._party = party
        self._clock = clock
        self._fails = fails
        self._client: Client | None = None
        self._subscription: Subscription | None = None
        self._consuming: asyncio.Task[None] | None = None
        self._worker: Worker | None = None
        self._copy: Copy | None = None

    @property
    def group(self) -> str:
        """Name of the consumer group."""
        return f"{self.name}-platform"

    async def start(self) -> None:
        """Open the copy and join the group. Raise ClientError if no broker can be reached."""
        self._worker = Worker(self.name)
        self._copy = await self._worker.call(Copy, self.path)
        self.known = await self._worker.call(self._copy.last_changes)
        self._client = Client(self._namesrv)
        await self._client.start()
        self._subscription = self._client.subscribe(
            self._topic, group=self.group, filter="insert || update || delete", start="first"
        )
        await self._subscription.start()
        tasks = self._client.session.tasks
        self._consuming = tasks.spawn(self._subscription.run(self._handle), name=self.group)
        self._party.running = True

    async def stop(self) -> None:
        """Leave the group and close the copy; messages not acknowledged are delivered again
        later."""
        if self._client is None or self._worker is None or self._copy is None:
            return
        self._party.running = False
        assert self._subscription is not None
        await self._subscription.close()
        if self._consuming is not None:
            await self._consuming
        await self._client.close()
        await self._worker.call(self._copy.close)
        self._worker.close()
        self._client = self._subscription = self._consuming = self._worker = self._copy = None

    async def _handle(self, message: ReceivedMessage) -> None:
        change = decode(message.body)
        if self._fails is not None and self._fails(change, message.reconsume_times):
            self._party.outcomes["failed"] += 1
            attempt = min(message.reconsume_times, len(RETRY_LEVELS) - 1)
            await message.retry(delay_level=RETRY_LEVELS[attempt])
            return
        assert self._worker is not None
        assert self._copy is not None
        applied = await self._worker.call(self._copy.apply, change)
        if message.reconsume_times:
            self._party.outcomes["retried"] += 1
        self._party.outcomes[_OUTCOMES[applied]] += 1
        if applied is Applied.NEW:
            self.known[change.table, change.key] = change.change
            self._party.lags_ms.append(self._clock.wall_ms() - change.at_ms)


def fails_at_first(share: float) -> Fails:
    """Return a function that fails about ``share`` of the changes once, the same ones in every run.

    The next change of such a row may succeed before the failed one comes again.
    """
    bound = int(share * 1000)

    def fails(change: Change, attempts: int) -> bool:
        return attempts == 0 and crc32(f"{change.key} {change.change}".encode()) % 1000 < bound

    return fails
