"""A service of the shop: its own database, and a client that publishes and receives events."""

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, Self

import cometmq
from examples.ecommerce.events import TOPIC, Event, ShopClock, decode

#: A failed message is retried this many times, a second apart; then it is a dead letter.
RETRIES: Final = 2
_IN_A_SECOND: Final = 1  # the delay level

Work = Callable[[sqlite3.Connection], object]


class Failure(Exception):
    """Raised for a failure that may not occur again a little later."""


class Service:
    """One service, an async context manager. Its database is small enough for the event loop."""

    def __init__(self, name: str, folder: Path, schema: str, nameservers: str, clock: ShopClock):
        self.name = name
        self.clock = clock
        #: Counters by name: asked, repeated, retried, dead.
        self.counts: Counter[str] = Counter()
        self.client = cometmq.Client(nameservers)
        self.database = sqlite3.connect(folder / f"{name}.sqlite")
        self.database.execute("PRAGMA journal_mode = WAL")
        self.database.execute("PRAGMA synchronous = NORMAL")
        self.database.executescript(schema + "CREATE TABLE told (message_id TEXT PRIMARY KEY);")
        self._hearing: list[tuple[cometmq.Subscription, asyncio.Task[None]]] = []

    async def __aenter__(self) -> Self:
        await self.client.start()
        self.client.transaction_checker(self.name, topic=TOPIC)(self._was_told)
        return self

    async def __aexit__(self, *_: object) -> None:
        for subscription, running in self._hearing:
            await subscription.close()
            await running
        await self.client.close()
        self.database.close()

    # --8<-- [start:tell]
    async def tell(self, event: Event, work: Work, *, dies: bool = False) -> None:
        """Change the database and publish the event: both happen, or neither.

        Raises the errors of ``work``, and then the event is not published. ``dies`` simulates a
        service that is killed after the change: the broker asks :meth:`_was_told` for the outcome.
        """
        async with self.client.transaction(event.message(), group=self.name) as transaction:
            with self.database:
                work(self.database)
                self.database.execute("INSERT INTO told VALUES (?)", (transaction.message_id,))
            if dies:
                transaction.leave_open()

    async def _was_told(self, message: cometmq.MessageView) -> bool:
        """Answer the broker's check of a transaction whose outcome it did not receive."""
        self.counts["asked"] += 1
        found = self.database.execute(
            "SELECT 1 FROM told WHERE message_id = ?", (message.message_id,)
        )
        return found.fetchone() is not None

    # --8<-- [end:tell]
    async def hear(self, kinds: str, group: str, react: Callable[[Event], Awaitable[None]]) -> None:
        """React to each event of some kinds. An event whose reaction raises Failure is retried."""
        subscription = self.client.subscribe(
            TOPIC, group=group, filter=kinds, start="first", max_reconsume_times=RETRIES
        )

        async def handle(message: cometmq.ReceivedMessage) -> None:
            try:
                await react(decode(message.body))
            except Failure:
                await message.retry(delay_level=_IN_A_SECOND)
                self.counts["retried" if message.reconsume_times < RETRIES else "dead"] += 1

        await subscription.start()
        running = asyncio.create_task(subscription.run(handle), name=group)
        self._hearing.append((subscription, running))
