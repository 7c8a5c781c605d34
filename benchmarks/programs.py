"""Programs with CometMQ's client for the benchmarks, each run in its own process.

    python -m benchmarks.programs latency NAMESRV TOPIC BODY_BYTES WARM_SECONDS
    python -m benchmarks.programs produce NAMESRV TOPIC BODY_BYTES SECONDS IN_FLIGHT
    python -m benchmarks.programs consume NAMESRV TOPIC SECONDS

``latency`` is the counterpart of java/PushLatency.java: producer and push consumer in one process.
It sends back to back for the warm-up and prints "ready". For each line "SECONDS PACE_US" it sends a
message every PACE_US and prints the time from a send to the listener. ``produce`` keeps IN_FLIGHT
single sends in flight. ``consume`` reads a topic from its first message on in its own group, by
``subscription.run(listener)`` with the default concurrency, and acknowledges each message. Both
leave the first fifth of their time out of the count. Each prints JSON lines.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from cometmq.client.client import Client
from cometmq.net.eventloop import run

if TYPE_CHECKING:
    from cometmq.client.consumer.received import ReceivedMessage

_LAST_WAIT_S: Final = 1.0
_STAMP_BYTES: Final = 8


async def latency(namesrv: str, topic: str, body_bytes: str, warm_s: str) -> None:
    """Measure latencies for each line of standard input, until it ends."""
    samples: list[int] = []
    arrived = asyncio.Event()
    rest = bytes(int(body_bytes) - _STAMP_BYTES)

    def heard(message: ReceivedMessage) -> None:
        samples.append(time.perf_counter_ns() - int.from_bytes(message.body[:_STAMP_BYTES], "big"))
        arrived.set()

    async def send_for(seconds: float, pace_ns: int) -> int:
        begin = time.perf_counter_ns()
        end = begin + int(seconds * 1e9)
        sent = 0
        while (now := time.perf_counter_ns()) < end:
            if (next_at := begin + sent * pace_ns) > now:
                await asyncio.sleep((next_at - now) / 1e9)
            stamp = time.perf_counter_ns().to_bytes(_STAMP_BYTES, "big")
            await client.send(topic, stamp + rest)
            sent += 1
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WAIT_S):
                while len(samples) < sent:
                    arrived.clear()
                    await arrived.wait()
        return sent

    async with (
        Client(namesrv) as client,
        client.subscribe(topic, group="latency-consumers") as subscription,
    ):
        listening = asyncio.create_task(subscription.run(heard))
        await send_for(float(warm_s), 0)
        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            seconds, pace_us = line.split()
            samples.clear()
            sent = await send_for(float(seconds), int(pace_us) * 1_000)
            ordered = sorted(samples)
            _print(
                sent=sent,
                heard=len(ordered),
                p50_us=ordered[len(ordered) // 2] / 1e3,
                p99_us=ordered[len(ordered) * 99 // 100] / 1e3,
            )
        await subscription.close()
        await listening


async def produce(namesrv: str, topic: str, body_bytes: str, seconds: str, in_flight: str) -> None:
    """Send single messages, each awaited by a separate task."""
    body = bytes(int(body_bytes))
    sent = 0
    rate = _Rate(float(seconds))

    async def send() -> None:
        nonlocal sent
        while not rate.is_over(sent):
            await client.send(topic, body)
            sent += 1

    async with Client(namesrv) as client:
        await asyncio.gather(*(send() for _ in range(int(in_flight))))
    _print(messages_per_s=rate.per_s(), stored=sent)


async def consume(namesrv: str, topic: str, seconds: str) -> None:
    """Consume with a listener that counts."""
    heard = 0
    rate = _Rate(float(seconds))
    is_over = asyncio.Event()

    def listen(message: ReceivedMessage) -> None:
        nonlocal heard
        heard += 1
        if rate.is_over(heard):
            is_over.set()

    group = f"consumers-{time.time_ns()}"
    async with (
        Client(namesrv) as client,
        client.subscribe(topic, group=group, start="first") as subscription,
    ):
        listening = asyncio.create_task(subscription.run(listen))
        await is_over.wait()
        await subscription.close()
        await listening
    _print(messages_per_s=rate.per_s(), heard=heard)


class _Rate:
    """A rate without the first fifth of the time."""

    def __init__(self, seconds: float) -> None:
        begin = time.perf_counter()
        self._counted_from = begin + seconds / 5
        self._end = begin + seconds
        self._warm: tuple[float, int] | None = None
        self._over: tuple[float, int] | None = None

    def is_over(self, total: int) -> bool:
        """Return whether the time is over, with ``total`` done so far."""
        now = time.perf_counter()
        if self._warm is None and now >= self._counted_from:
            self._warm = now, total
        if self._over is None and now >= self._end:
            self._over = now, total
        return self._over is not None

    def per_s(self) -> float:
        """Return the rate per second. The time must be over."""
        assert self._warm is not None
        assert self._over is not None
        (since, before), (until, total) = self._warm, self._over
        return (total - before) / (until - since)


def _print(**facts: float) -> None:
    print(json.dumps(facts), flush=True)


_PROGRAMS: Final[dict[str, Callable[..., Coroutine[Any, Any, None]]]] = {
    "latency": latency,
    "produce": produce,
    "consume": consume,
}


if __name__ == "__main__":
    run(_PROGRAMS[sys.argv[1]](*sys.argv[2:]))
