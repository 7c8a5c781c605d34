"""Invariants at the end of the shop's day, and its events per minute, from the databases."""

import sqlite3
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

MINUTE_MS = 60_000

#: Events per minute: (minute in ms, kind) to (events, cents).
Minutes = dict[tuple[int, str], tuple[int, int]]

_HAPPENED = """
SELECT 'placed', placed_ms, cents FROM orders.orders
UNION ALL SELECT 'paid', paid_ms, cents FROM payments.payments
UNION ALL SELECT kind, ended_ms, cents FROM stock.ended
UNION ALL SELECT 'refunded', refund_ms, cents FROM payments.refunds
"""


class Books:
    """The databases of all services in a folder, attached to one connection."""

    def __init__(self, folder: Path) -> None:
        self._all = sqlite3.connect(":memory:")
        for name in ("orders", "payments", "stock"):
            self._all.execute(f"ATTACH ? AS {name}", (str(folder / f"{name}.sqlite"),))

    def close(self) -> None:
        """Close the databases."""
        self._all.close()

    def wrong(self, charges: Mapping[str, int], pieces: int) -> list[str]:
        """Return the violated invariants as text; empty if all hold.

        ``charges`` is the number of times the bank charged each order, ``pieces`` the initial
        stock.
        """
        one = self._one
        shipped_cents = one(
            "SELECT coalesce(sum(cents), 0) FROM orders.orders WHERE state = 'shipped'"
        )
        kept_cents = one(
            "SELECT (SELECT coalesce(sum(cents), 0) FROM payments.payments)"
            " - (SELECT coalesce(sum(cents), 0) FROM payments.refunds)"
        )
        left = one("SELECT sum(pieces) FROM stock.items")
        gone = one("SELECT coalesce(sum(pieces), 0) FROM stock.ended WHERE kind = 'shipped'")
        paid = {number for (number,) in self._all.execute("SELECT number FROM payments.payments")}
        holds = {
            "every order came to an end": not one(
                "SELECT count(*) FROM orders.orders WHERE state = 'open'"
            ),
            "no order is paid twice": max(charges.values(), default=0) <= 1,
            "the bank and the payments agree": charges.keys() == paid,
            "the stock is never negative": one("SELECT min(pieces) FROM stock.items") >= 0,
            "every piece is in stock or shipped": left + gone == pieces,
            "the money that was kept is that of shipped orders": kept_cents == shipped_cents,
            "what the shop calls shipped the warehouse did ship": not one(
                "SELECT count(*) FROM orders.orders AS o LEFT JOIN stock.ended AS e"
                " ON e.number = o.number AND e.kind = 'shipped'"
                " WHERE (o.state = 'shipped') != (e.number IS NOT NULL)"
            ),
        }
        return [what for what, is_so in holds.items() if not is_so]

    def minutes(self) -> Minutes:
        """Return events and cents of each kind in each minute."""
        events: Counter[tuple[int, str]] = Counter()
        cents: Counter[tuple[int, str]] = Counter()
        for kind, at_ms, amount in self._all.execute(_HAPPENED):
            place = at_ms // MINUTE_MS * MINUTE_MS, kind
            events[place] += 1
            cents[place] += amount
        return {place: (count, cents[place]) for place, count in events.items()}

    def _one(self, query: str) -> int:
        [(value,)] = self._all.execute(query).fetchall()
        return int(value)
