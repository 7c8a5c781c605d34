"""An order is placed, paid and distributed: each service notifies the next one by a message."""

import asyncio
import sqlite3
import sys

import cometmq

TOPIC = "shop-orders"

shop = sqlite3.connect(":memory:")  # in memory, so it is fast enough for the event loop
shop.execute("CREATE TABLE orders (number TEXT, amount INT CHECK (amount > 0), message_id TEXT)")


async def place(client: cometmq.Client, number: str, amount: int) -> None:
    """Store an order and publish it: both happen, or neither."""
    message = cometmq.Message(TOPIC, str(amount).encode(), tag="placed", keys=(number,))
    try:
        async with client.transaction(message, group="shop") as tx:
            with shop:
                shop.execute("INSERT INTO orders VALUES (?, ?, ?)", (number, amount, tx.message_id))
        print(f"shop: {number} placed")
    except sqlite3.IntegrityError:
        print(f"shop: {number} is not possible")


async def was_stored(message: cometmq.MessageView) -> bool:
    """Answer the broker's check of a transaction whose outcome it did not receive."""
    found = shop.execute("SELECT 1 FROM orders WHERE message_id = ?", (message.message_id,))
    return found.fetchone() is not None


async def pay(client: cometmq.Client, count: int) -> None:
    """The payment service: receive placed orders and publish that they are paid."""
    async with client.subscribe(TOPIC, group="payment", filter="placed", start="first") as placed:
        async for order in placed:
            async with order.processing():
                [number] = order.keys
                await client.send(TOPIC, order.body, tag="paid", keys=[number], order_key=number)
                print(f"payment: {number} paid, {order.body.decode()} euros")
                count -= 1
            if not count:
                return


async def distribute(client: cometmq.Client, service: str, count: int) -> None:
    """Print each paid order. Every service is its own group, so each gets all paid orders."""
    async with client.subscribe(TOPIC, group=service, filter="paid", start="first") as paid:
        async for order in paid:
            async with order.processing():
                print(f"{service}: {order.keys[0]}")
                count -= 1
            if not count:
                return


async def main(name_server: str = "127.0.0.1:9876") -> None:
    async with cometmq.Client(name_server) as client:
        client.transaction_checker("shop")(was_stored)
        await place(client, "A17", 40)
        await place(client, "A18", -5)
        await place(client, "A19", 25)
        await pay(client, 2)
        await asyncio.gather(distribute(client, "warehouse", 2), distribute(client, "points", 2))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
