"""Charges placed orders at a bank that is away at times, and gives money back."""

import sqlite3
from collections import Counter
from pathlib import Path

from examples.ecommerce.events import Event, ShopClock
from examples.ecommerce.service import Failure, Service

SCHEMA = """
CREATE TABLE payments (number TEXT PRIMARY KEY, cents INTEGER NOT NULL, paid_ms INTEGER NOT NULL);
CREATE TABLE refunds (number TEXT PRIMARY KEY, cents INTEGER NOT NULL, refund_ms INTEGER NOT NULL);
"""


class BankIsAway(Failure):
    """It does not answer."""


class Bank:
    """Takes money for an order each time it is asked to, so it must not be asked twice."""

    def __init__(self) -> None:
        self.away = False
        self.charges: Counter[str] = Counter()

    def charge(self, order: str) -> None:
        """Take the money. Raises BankIsAway."""
        if self.away:
            raise BankIsAway
        self.charges[order] += 1


class Payments(Service):
    """The service that takes money and gives it back."""

    def __init__(self, folder: Path, nameservers: str, clock: ShopClock) -> None:
        super().__init__("payments", folder, SCHEMA, nameservers, clock)
        self.bank = Bank()

    async def start(self) -> None:
        """Hear what is to be paid, and what to be paid back."""
        await self.hear("placed", "payments", self._pay)
        await self.hear("sold-out", "refunds", self._refund)

    async def _pay(self, placed: Event) -> None:
        paid = placed.then("paid", self.clock.now_ms())

        def work(database: sqlite3.Connection) -> None:
            row = (paid.order, paid.cents, paid.at_ms)
            database.execute("INSERT INTO payments VALUES (?, ?, ?)", row)
            self.bank.charge(paid.order)  # what it raises undoes the row, and nobody hears of it

        try:
            await self.tell(paid, work)
        except sqlite3.IntegrityError:
            self.counts["repeated"] += 1  # it is paid: the message came a second time
            return
        if paid.order.endswith("3") and not self.counts[paid.order]:
            self.counts[paid.order] = 1
            raise Failure("the service dies before it acknowledges the message")

    async def _refund(self, sold_out: Event) -> None:
        refunded = sold_out.then("refunded", self.clock.now_ms())
        row = (refunded.order, refunded.cents, refunded.at_ms)
        try:
            await self.tell(
                refunded,
                lambda database: database.execute("INSERT INTO refunds VALUES (?, ?, ?)", row),
            )
        except sqlite3.IntegrityError:
            self.counts["repeated"] += 1
