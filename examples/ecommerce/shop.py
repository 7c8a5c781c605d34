"""A day of the shop: orders arrive, the bank goes away and comes back, every order is settled."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import cometmq
from examples.ecommerce.events import TOPIC, ShopClock
from examples.ecommerce.orders import Orders
from examples.ecommerce.payments import Payments
from examples.ecommerce.redrive import redrive
from examples.ecommerce.stock import Stock

ITEMS = ("tea", "kettle", "cup", "spoon", "tray")
PRICE_CENTS = dict(zip(ITEMS, (420, 3900, 890, 250, 1750), strict=True))
#: Number of payments that must become dead letters before the bank comes back.
DEAD_LETTERS = 5
PATIENCE_S = 90


@dataclass(frozen=True, slots=True)
class Plan:
    """The load: ``orders``, at ``orders_per_s``. The stock suffices for a part of them."""

    orders: int = 600
    orders_per_s: int = 60
    seed: int = 7

    @property
    def items(self) -> dict[str, int]:
        """The initial stock: most items last for all orders, two do not."""
        enough, scarce = 3 * self.orders, self.orders // 4
        return {name: scarce if name in {"kettle", "cup"} else enough for name in ITEMS}


@dataclass(slots=True)
class Outcome:
    """Counters of the run, and the number of times the bank charged each order."""

    counts: Counter[str] = field(default_factory=Counter)
    charges: Counter[str] = field(default_factory=Counter)


async def open_shop(nameservers: str, folder: Path, plan: Plan) -> Outcome:
    """Run the services in ``folder`` until every order has ended.

    Raises TimeoutError if that does not happen in time.
    """
    clock = ShopClock()
    outcome = Outcome()
    async with cometmq.Client(nameservers) as client:
        await cometmq.Admin(client.session).create_topic(TOPIC, queues=4)
        async with (
            Orders(folder, nameservers, clock) as orders,
            Payments(folder, nameservers, clock) as payments,
            Stock(folder, nameservers, clock, plan.items) as stock,
        ):
            services = (orders, payments, stock)
            for service in services:
                await service.start()
            await sell(orders, payments, plan, outcome)
            await until(lambda: payments.counts["dead"] >= DEAD_LETTERS, "dead letters")
            payments.bank.away = False
            again = asyncio.create_task(redrive(client, "payments", outcome.counts))
            await until(lambda: orders.open() == 0, "all orders")
            again.cancel()
            with suppress(asyncio.CancelledError):
                await again
            for service in services:
                for what in ("asked", "repeated", "retried", "dead"):
                    outcome.counts[what] += service.counts[what]
            outcome.charges = payments.bank.charges
    return outcome


async def sell(orders: Orders, payments: Payments, plan: Plan, outcome: Outcome) -> None:
    """Place the orders of the day. The bank goes away after a third of them."""
    random = Random(plan.seed)
    started_s = time.monotonic()
    for number in range(plan.orders):
        if number == plan.orders // 3:
            payments.bank.away = True
        item = random.choice(ITEMS)
        pieces = 0 if number % 50 == 49 else random.randint(1, 3)  # an order of 0 pieces is invalid
        placed = await orders.place(
            f"A{number:05}", item, pieces, pieces * PRICE_CENTS[item], dies=number % 20 == 7
        )
        outcome.counts["placed" if placed else "refused"] += 1
        ahead_s = started_s + number / plan.orders_per_s - time.monotonic()
        await asyncio.sleep(max(ahead_s, 0))


async def until(holds: Callable[[], bool], what: str) -> None:
    """Wait until ``holds`` is true. Raises TimeoutError, which names ``what``."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"waited {PATIENCE_S} s for {what}")
        await asyncio.sleep(0.05)
