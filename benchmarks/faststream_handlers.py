"""Messages a second to handlers of FastStream, beside a handler of the plain client.

    python -m benchmarks.faststream_handlers [--messages 20000] [--rounds 3]

A broker process holds the messages; each row reads all of them. The last row calls the handlers in
memory, with nothing of RocketMQ: what FastStream itself costs.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path

from cometmq.client.client import Client
from cometmq.faststream import RocketMQBroker, TestRocketMQBroker
from cometmq.message.model import Message
from cometmq.testing.cluster import ProcessCluster

TOPIC = "handled"
_MEMORY_PART = 10


class Countdown:
    """Ends when all messages were handled."""

    def __init__(self, messages: int) -> None:
        self.left = messages
        self.ended = asyncio.Event()

    def take(self, count: int) -> None:
        self.left -= count
        if self.left <= 0:
            self.ended.set()


async def plain(namesrv: str, messages: int) -> int:
    """Read with a handler of the client."""
    countdown = Countdown(messages)
    async with Client(namesrv) as client:
        subscription = client.subscribe(TOPIC, group=uuid.uuid4().hex, start="first", concurrency=1)

        async def handle(_: object) -> None:
            countdown.take(1)

        running = asyncio.ensure_future(subscription.run(handle))
        await countdown.ended.wait()
        await subscription.close()
        await running
    return messages


async def handlers(namesrv: str, messages: int) -> int:
    """Read with a handler of FastStream, one message at a time."""
    countdown, broker = Countdown(messages), RocketMQBroker(namesrv, logger=None)

    @broker.subscriber(TOPIC, group=uuid.uuid4().hex, start="first")
    async def handle(body: bytes) -> None:
        countdown.take(1)

    async with broker:
        await broker.start()
        await countdown.ended.wait()
    return messages


async def batches(namesrv: str, messages: int) -> int:
    """Read with a handler of batches of 500."""
    countdown, broker = Countdown(messages), RocketMQBroker(namesrv, logger=None)

    @broker.subscriber(TOPIC, group=uuid.uuid4().hex, start="first", batch=True, max_records=500)
    async def handle(bodies: list[bytes]) -> None:
        countdown.take(len(bodies))

    async with broker:
        await broker.start()
        await countdown.ended.wait()
    return messages


async def memory(_namesrv: str, messages: int) -> int:
    """Publish in memory, and call the handler."""
    broker, count = RocketMQBroker(logger=None), messages // _MEMORY_PART

    @broker.subscriber(TOPIC, group="g")
    async def handle(body: bytes) -> None: ...

    async with TestRocketMQBroker(broker) as tested:
        for _ in range(count):
            await tested.publish(b"x" * 100, TOPIC)
    return count


async def run(namesrv: str, messages: int, rounds: int) -> None:
    """Measure all rows in turn, and print their medians."""
    async with Client(namesrv) as client:
        await client.send_many([Message(TOPIC, b"x" * 100)] * messages)
    rows: dict[Callable[[str, int], Awaitable[int]], list[float]] = {
        plain: [], handlers: [], batches: [], memory: []
    }  # fmt: skip
    for _ in range(rounds):
        for row, found in rows.items():
            begun = time.monotonic()
            count = await row(namesrv, messages)
            found.append(count / (time.monotonic() - begun))
    for row, found in rows.items():
        print(f"{row.__name__:10} {statistics.median(found):10,.0f} messages/s  {row.__doc__}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ProcessCluster(Path(folder)) as cluster:
        asyncio.run(run(cluster.namesrv, arguments.messages, arguments.rounds))


if __name__ == "__main__":
    main()
