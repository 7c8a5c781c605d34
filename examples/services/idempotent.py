"""An idempotent consumer: a repeated message changes nothing, in SQLite or in PostgreSQL.

The key of what was done is a row of the transaction that does it.
"""

import asyncio
import signal
import sqlite3
import sys
from contextlib import closing
from typing import Any

import cometmq

TABLES = (
    "CREATE TABLE IF NOT EXISTS processed (key TEXT PRIMARY KEY)",
    "CREATE TABLE IF NOT EXISTS balance (cents BIGINT NOT NULL)",
)


def connect(database: str) -> Any:
    """A SQLite file, or what begins with ``host=`` or ``postgresql:``, with transactions."""
    if database.startswith(("host=", "postgresql:")):
        import psycopg

        return psycopg.connect(database)
    return sqlite3.connect(database, timeout=30)


def pay(database: str, message: cometmq.MessageView) -> bool:
    """Book a payment unless it is booked; return whether it was new."""
    # The key of the business if there is one: it also stands for a payment that was sent twice.
    # The message's id only stands for one that is delivered twice.
    key = message.keys[0] if message.keys else message.message_id
    mark = "?" if isinstance(connection := connect(database), sqlite3.Connection) else "%s"
    with closing(connection), connection:
        first = connection.execute(
            f"INSERT INTO processed VALUES ({mark}) ON CONFLICT DO NOTHING", (key,)
        )
        if first.rowcount == 1:
            connection.execute(f"UPDATE balance SET cents = cents + {mark}", (int(message.body),))
        return bool(first.rowcount == 1)


async def main(name_server: str, topic: str, database: str) -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)

    async def handle(message: cometmq.ReceivedMessage) -> None:
        await asyncio.to_thread(pay, database, message)

    async with cometmq.Client(name_server) as client:
        subscription = client.subscribe(topic, group=f"{topic}-payments", start="first")
        consuming = asyncio.create_task(subscription.run(handle))
        stopped = asyncio.create_task(stopping.wait())
        # A consumer that ends by itself, such as one without a permission, ends the service.
        await asyncio.wait([consuming, stopped], return_when=asyncio.FIRST_COMPLETED)
        unfinished = await client.drain(timeout_ms=25_000)
        if unfinished:
            consuming.cancel()
        stopped.cancel()
        await asyncio.gather(consuming, return_exceptions=unfinished > 0)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
