"""The warehouse service: ships paid orders while there is stock, and reports sold-out items."""

import sqlite3
from pathlib import Path

from examples.ecommerce.events import Event, ShopClock
from examples.ecommerce.service import Service

SCHEMA = """
CREATE TABLE items (name TEXT PRIMARY KEY, pieces INTEGER NOT NULL CHECK (pieces >= 0));
CREATE TABLE ended (
    number TEXT PRIMARY KEY, kind TEXT NOT NULL, pieces INTEGER NOT NULL,
    cents INTEGER NOT NULL, ended_ms INTEGER NOT NULL
);
"""


class SoldOut(Exception):
    """Raised if there are fewer pieces than the order needs."""


class Stock(Service):
    """The service of the warehouse."""

    def __init__(
        self, folder: Path, nameservers: str, clock: ShopClock, items: dict[str, int]
    ) -> None:
        super().__init__("stock", folder, SCHEMA, nameservers, clock)
        with self.database:
            self.database.executemany("INSERT INTO items VALUES (?, ?)", items.items())

    async def start(self) -> None:
        """Subscribe to paid orders."""
        await self.hear("paid", "stock", self._ship)

    async def _ship(self, paid: Event) -> None:
        try:
            try:
                await self._end(paid.then("shipped", self.clock.now_ms()))
            except SoldOut:
                await self._end(paid.then("sold-out", self.clock.now_ms()))
        except sqlite3.IntegrityError:
            self.counts["repeated"] += 1

    async def _end(self, event: Event) -> None:
        """Record the end of an order in the warehouse, shipped or sold out, once."""

        def work(database: sqlite3.Connection) -> None:
            database.execute(
                "INSERT INTO ended VALUES (?, ?, ?, ?, ?)",
                (event.order, event.kind, event.pieces, event.cents, event.at_ms),
            )
            if event.kind == "shipped":
                taken = database.execute(
                    "UPDATE items SET pieces = pieces - ? WHERE name = ? AND pieces >= ?",
                    (event.pieces, event.item, event.pieces),
                )
                if not taken.rowcount:
                    raise SoldOut

        await self.tell(event, work)
