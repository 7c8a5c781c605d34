"""Sends a day of a shop: each message says what happened to an order.

python orders.py 127.0.0.1:9876 1
"""

import asyncio
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import cometmq

TOPIC = "orders"
ORDERS_A_DAY = 200


@dataclass(frozen=True, slots=True)
class OrderEvent:
    """A change of an order's state."""

    order: str
    state: str
    cents: int


def events(day: int) -> Iterator[OrderEvent]:
    """Yield a day's events: new orders, of which nine in ten are paid, and what becomes of the
    orders of the day before."""
    first = (day - 1) * ORDERS_A_DAY
    for number in range(max(first - ORDERS_A_DAY, 0), first):
        yield event(number, "shipped" if is_paid(number) else "cancelled")
    for number in range(first, first + ORDERS_A_DAY):
        yield event(number, "placed")
        if is_paid(number):
            yield event(number, "paid")


def event(number: int, state: str) -> OrderEvent:
    """Return an event of an order."""
    return OrderEvent(f"A{number:05}", state, 500 + 7 * number)


def is_paid(number: int) -> bool:
    """Return whether an order is paid on its day."""
    return number % 10 != 0


async def main(name_server: str, day: str) -> None:
    count = 0
    async with cometmq.Client(name_server) as client:
        for each in events(int(day)):
            body = json.dumps(asdict(each)).encode()
            # All events of an order go to one queue, in order.
            await client.send(TOPIC, body, tag=each.state, keys=[each.order], order_key=each.order)
            count += 1
    print(f"day {day}: {count} messages")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
