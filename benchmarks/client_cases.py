"""What CometMQ's client does in a second; java/Clients.java is the counterpart with Java's client.

    python -m benchmarks.client_cases NAMESRV

For each input line "CASE COUNT TOPIC SECONDS MESSAGES" it runs the case and prints one JSON line
with the messages a second, the failures, and p50 and p99 of the waits in microseconds where they
are measured. Bodies have 128 B. MESSAGES is how many the topic of a consumer holds.

- ``single``: COUNT sends in flight, each awaited; in Java one thread that waits for COUNT 1, and
  sends with callbacks otherwise
- ``auto``: the same with automatic batches: ``linger_ms`` here, ``autoBatch`` in Java
- ``soon``: one task that hands messages over with ``send_soon``, COUNT in flight
- ``batch``: batches of COUNT, four at a time
- ``many``: ``send_many`` with COUNT messages, four calls at a time
- ``oneway``: one-way sends by one task
- ``transaction``: COUNT transactions at a time, each committed
- ``request``: COUNT requests at a time; the replier is a consumer in the same process
- ``push``, ``pull``: a new group reads the topic from its first message on: a listener that counts,
  or a loop that polls
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final

from cometmq.client.client import Client
from cometmq.message.model import Message
from cometmq.net.eventloop import run

if TYPE_CHECKING:
    from cometmq.client.consumer.received import ReceivedMessage
    from cometmq.client.sendrequests import SendResult

BODY: Final = bytes(128)
LINGER_MS: Final = 5.0
_TIMEOUT_MS: Final = 20_000
_LANES: Final = 4


class Round:
    """One round: its end, and what was counted until then."""

    def __init__(self, seconds: float) -> None:
        self.begun = time.perf_counter()
        self.seconds = seconds
        self.end = self.begun + seconds
        self.done = 0
        self.samples: list[float] = []

    def is_over(self) -> bool:
        return time.perf_counter() >= self.end

    def result(self, took_s: float = 0.0) -> dict[str, float]:
        ordered = sorted(self.samples) or [0.0]
        return {
            "per_s": self.done / (took_s or self.seconds),
            "failed": 0,
            "p50_us": ordered[len(ordered) // 2] * 1e6,
            "p99_us": ordered[len(ordered) * 99 // 100] * 1e6,
        }


class Cases:
    """The clients of this program, and what they do."""

    def __init__(self, plain: Client, lingering: Client) -> None:
        self._plain = plain
        self._lingering = lingering
        self._repliers: set[str] = set()

    async def measure(
        self, case: str, count: int, topic: str, seconds: float, messages: int
    ) -> dict[str, float]:
        """Run one case."""
        if case == "push":
            return await self.push(topic, seconds, messages)
        if case == "pull":
            return await self.pull(topic, seconds, messages)
        if case == "request" and topic not in self._repliers:
            self._repliers.add(topic)
            await self._reply(topic)
        this = Round(seconds)
        await getattr(self, case)(this, count, topic)
        return this.result()

    async def single(self, this: Round, count: int, topic: str) -> None:
        await _side_by_side(this, count, lambda: self._plain.send(topic, BODY))

    async def auto(self, this: Round, count: int, topic: str) -> None:
        await _side_by_side(this, count, lambda: self._lingering.send(topic, BODY))

    async def request(self, this: Round, count: int, topic: str) -> None:
        await _side_by_side(
            this, count, lambda: self._plain.request(topic, BODY, timeout_ms=_TIMEOUT_MS)
        )

    async def transaction(self, this: Round, count: int, topic: str) -> None:
        async def commit() -> None:
            async with self._plain.transaction(topic, BODY):
                pass

        await _side_by_side(this, count, commit)

    async def oneway(self, this: Round, count: int, topic: str) -> None:
        while not this.is_over():
            await self._plain.send_oneway(topic, BODY)
            this.done += 1
            if not this.done % 256:
                await asyncio.sleep(0)

    async def batch(self, this: Round, count: int, topic: str) -> None:
        given = [Message(topic, BODY)] * count
        await _in_groups(this, count, lambda: self._plain.send_batch(given))

    async def many(self, this: Round, count: int, topic: str) -> None:
        await _in_groups(
            this,
            count,
            lambda: self._plain.send_many([Message(topic, BODY) for _ in range(count)]),
        )

    async def soon(self, this: Round, count: int, topic: str) -> None:
        client = self._plain
        waiting: deque[asyncio.Future[SendResult]] = deque()
        while not this.is_over():
            for _ in range(64):
                waiting.append(await client.send_soon(topic, BODY))
            while len(waiting) >= count:
                await waiting.popleft()
                this.done += 1
        await client.flush()

    async def push(self, topic: str, seconds: float, messages: int) -> dict[str, float]:
        this = Round(seconds)
        is_over = asyncio.Event()

        def listen(message: ReceivedMessage) -> None:
            if not this.done:
                this.begun = time.perf_counter()
                this.end = this.begun + seconds
            this.done += 1
            if this.is_over() or this.done >= messages:
                is_over.set()

        group = f"push-{time.time_ns()}"
        async with self._plain.subscribe(topic, group=group, start="first") as subscription:
            listening = asyncio.create_task(subscription.run(listen))
            await is_over.wait()
            found = this.result(time.perf_counter() - this.begun)
            await subscription.close()
            await listening
        return found

    async def pull(self, topic: str, seconds: float, messages: int) -> dict[str, float]:
        group = f"pull-{time.time_ns()}"
        async with self._plain.pull_consumer(topic, group=group, start="first") as consumer:
            while not (first := len(await consumer.poll())):
                pass
            this = Round(seconds)
            this.done = first
            while not this.is_over() and this.done < messages:
                this.done += len(await consumer.poll())
            return this.result(time.perf_counter() - this.begun)

    async def _reply(self, topic: str) -> None:
        @self._plain.replier(topic, group=f"repliers-{time.time_ns()}", start="first")
        async def reply(message: ReceivedMessage) -> bytes | None:
            return BODY

        await self._plain.request(topic, BODY, timeout_ms=_TIMEOUT_MS)


async def _side_by_side(this: Round, count: int, call: Callable[[], Awaitable[Any]]) -> None:
    """Repeat a call in tasks; the first one measures how long each takes."""

    async def repeat() -> None:
        while not this.is_over():
            await call()
            this.done += 1

    async def watch() -> None:
        while (begun := time.perf_counter()) < this.end:
            await call()
            this.samples.append(time.perf_counter() - begun)
            this.done += 1

    await asyncio.gather(watch(), *(repeat() for _ in range(count - 1)))


async def _in_groups(this: Round, count: int, call: Callable[[], Awaitable[Any]]) -> None:
    async def repeat() -> None:
        while not this.is_over():
            await call()
            this.done += count

    await asyncio.gather(*(repeat() for _ in range(_LANES)))


async def main(namesrv: str) -> None:
    """Run a case for each line of standard input, until it ends."""
    async with AsyncExitStack() as stack:
        plain = await stack.enter_async_context(Client(namesrv, send_timeout_ms=_TIMEOUT_MS))
        lingering = await stack.enter_async_context(
            Client(namesrv, send_timeout_ms=_TIMEOUT_MS, linger_ms=LINGER_MS)
        )
        cases = Cases(plain, lingering)
        while line := await asyncio.to_thread(sys.stdin.readline):
            case, count, topic, seconds, messages = line.split()
            found = await cases.measure(case, int(count), topic, float(seconds), int(messages))
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    run(main(sys.argv[1]))
