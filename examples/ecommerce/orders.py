"""The order service: takes orders and records their outcome."""

import sqlite3
from pathlib import Path

from examples.ecommerce.events import Event, ShopClock
from examples.ecommerce.service import Service

SCHEMA = """
CREATE TABLE orders (
    number TEXT PRIMARY KEY,
    pieces INTEGER NOT NULL CHECK (pieces > 0),
    cents INTEGER NOT NULL,
    placed_ms INTEGER NOT NULL,
    state TEXT NOT NULL DEFAULT 'open'
);
"""


class Orders(Service):
    """The service that customers use."""

    def __init__(self, folder: Path, nameservers: str, clock: ShopClock) -> None:
        super().__init__("orders", folder, SCHEMA, nameservers, clock)

    async def start(self) -> None:
        """Subscribe to the events that end an order."""
        await self.hear("shipped || refunded", "orders", self._close)

    async def place(
        self, number: str, item: str, pieces: int, cents: int, *, dies: bool = False
    ) -> bool:
        """Store an order and publish it. Return False if the order is invalid."""
        event = Event(number, "placed", item, pieces, cents, self.clock.now_ms())

        def work(database: sqlite3.Connection) -> None:
            database.execute(
                "INSERT INTO orders (number, pieces, cents, placed_ms) VALUES (?, ?, ?, ?)",
                (number, pieces, cents, event.at_ms),
            )

        try:
            await self.tell(event, work, dies=dies)
        except sqlite3.IntegrityError:
            return False
        return True

    def open(self) -> int:
        """Return the number of orders that have not ended."""
        query = "SELECT count(*) FROM orders WHERE state = 'open'"
        [(count,)] = self.database.execute(query).fetchall()
        return int(count)

    async def _close(self, event: Event) -> None:
        with self.database:
            self.database.execute(
                "UPDATE orders SET state = ? WHERE number = ?", (event.kind, event.order)
            )
