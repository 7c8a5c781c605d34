"""The payment service: charges placed orders at a bank that is sometimes away, and refunds them."""

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
    """Raised while the bank does not answer."""


class Bank:
    """Takes money on every request for an order, so it must not be asked twice."""

    def __init__(self) -> None:
        self.away = False
        self.charges: Counter[str] = Counter()

    def charge(self, order: str) -> None:
        """Charge an order. Raises BankIsAway."""
        if self.away:
            raise BankIsAway
        self.charges[order] += 1


class Payments(Service):
    """The service that charges and refunds orders."""

    def __init__(self, folder: Path, nameservers: str, clock: ShopClock) -> None:
        super().__init__("payments", folder, SCHEMA, nameservers, clock)
        self.bank = Bank()

    async def start(self) -> None:
        """Subscribe to the events that call for a payment or a refund."""
        await self.hear("placed", "payments", self._pay)
        await self.hear("sold-out", "refunds", self._refund)

    async def _pay(self, placed: Event) -> None:
        paid = placed.then("paid", self.clock.now_ms())

        def work(database: sqlite3.Connection) -> None:
            row = (paid.order, paid.cents, paid.at_ms)
            database.execute("INSERT INTO payments VALUES (?, ?, ?)", row)
            self.bank.charge(paid.order)  # an error rolls the row back, and no event is sent

        try:
            await self.tell(paid, work)
        except sqlite3.IntegrityError:
            self.counts["repeated"] += 1  # already paid: the message was delivered twice
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
