"""A worker for Kubernetes: on SIGTERM it finishes what it has begun, and ends with code 0."""

import asyncio
import signal
import sqlite3
import sys

import cometmq

#: Less than terminationGracePeriodSeconds (30 s unless the pod says otherwise) by what the rest of
#: the stop takes: storing offsets, leaving the group, closing connections.
DRAIN_MS = 25_000


async def work(name_server: str, topic: str, database: str) -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    ledger = sqlite3.connect(database, isolation_level=None)

    async def handle(message: cometmq.ReceivedMessage) -> None:
        await asyncio.sleep(0.05)  # here the service does its work
        ledger.execute("INSERT INTO ledger VALUES (?)", (message.body.decode(),))

    async with cometmq.Client(name_server) as client:
        subscription = client.subscribe(topic, group=f"{topic}-workers", start="first")
        consuming = asyncio.create_task(subscription.run(handle))
        until = [consuming, asyncio.create_task(stopping.wait())]
        await asyncio.wait(until, return_when=asyncio.FIRST_COMPLETED)
        if unfinished := await client.drain(timeout_ms=DRAIN_MS):
            print(f"{unfinished} messages were not finished and will come again", file=sys.stderr)
            consuming.cancel()
        await asyncio.gather(consuming, return_exceptions=unfinished > 0)
        until[1].cancel()
    ledger.close()


if __name__ == "__main__":
    asyncio.run(work(*sys.argv[1:]))
