"""Exactly once into PostgreSQL: the position in each queue is a row, changed with the result.

A queue's position says up to where its messages are in the database. A batch locks that row, leaves
out the messages before it, writes its results and the new position, and commits. So whatever is
read twice (after a crash, after a rebalance, or by a consumer that does not know yet that it has
lost the queue) is written once. The broker's offset is stored after the commit: it is never ahead
of the position, so no message is left out.
"""

import asyncio
import signal
import sys
from collections import defaultdict

import psycopg

import cometmq

TABLES = """
CREATE TABLE IF NOT EXISTS positions (
    consumer_group TEXT, topic TEXT, broker TEXT, queue INT, next_offset BIGINT NOT NULL,
    PRIMARY KEY (consumer_group, topic, broker, queue)
);
CREATE TABLE IF NOT EXISTS payments (number BIGINT NOT NULL);
"""
_PLACE = "consumer_group = %s AND topic = %s AND broker = %s AND queue = %s"


async def write(
    database: psycopg.AsyncConnection[tuple[int, ...]],
    group: str,
    queue: cometmq.MessageQueue,
    messages: list[cometmq.MessageView],
) -> int:
    """Write a batch of one queue and its position in one transaction; return the position."""
    place = (group, queue.topic, queue.broker_name, queue.queue_id)
    async with database.transaction():
        await database.execute(
            "INSERT INTO positions VALUES (%s, %s, %s, %s, 0) ON CONFLICT DO NOTHING", place
        )
        # The lock is the fence: of two consumers of the queue, the second sees what the first did.
        found = await database.execute(
            f"SELECT next_offset FROM positions WHERE {_PLACE} FOR UPDATE", place
        )
        [(position,)] = await found.fetchall()
        for message in messages:
            if message.queue_offset >= position:
                await database.execute("INSERT INTO payments VALUES (%s)", (int(message.body),))
        position = max(position, messages[-1].queue_offset + 1)
        await database.execute(
            f"UPDATE positions SET next_offset = %s WHERE {_PLACE}", (position, *place)
        )
    return position


async def consume(consumer: cometmq.PullConsumer, conninfo: str, stopping: asyncio.Event) -> None:
    """Write what the consumer reads until ``stopping``. Any error ends it: what follows a batch
    that was not committed must not be written."""
    async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as database:
        # A consumer that hangs in a transaction loses its lock.
        await database.execute("SET idle_in_transaction_session_timeout = '10s'")
        while not stopping.is_set():
            batches = defaultdict(list)
            for message in await consumer.poll(timeout_ms=500, max_messages=100):
                batches[message.queue].append(message)
            for queue, messages in batches.items():
                position = await write(database, consumer.group, queue, messages)
                if queue in consumer.assignment():
                    await consumer.commit({queue: position})


async def main(name_server: str, topic: str, conninfo: str) -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    async with (
        cometmq.Client(name_server) as client,
        client.pull_consumer(
            topic, group=f"{topic}-bank", start="first", auto_commit=False
        ) as consumer,
    ):
        await consume(consumer, conninfo, stopping)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
