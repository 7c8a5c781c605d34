"""``cometmq bench``: sends messages, then pulls them, with live progress.

A quick measurement of a running cluster through CometMQ's client, whose cost is part of the
numbers. Comparisons of brokers need a load generator of negligible cost: see benchmarks/.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from cometmq.cli import connect, render
from cometmq.cli.command import Noun
from cometmq.cli.connect import Connected
from cometmq.cli.parser import Option
from cometmq.core.clock import SystemClock
from cometmq.core.plural import plural

if TYPE_CHECKING:
    from rich.console import Console

    from cometmq.admin.api import Admin
    from cometmq.client.client import Client
    from cometmq.message.model import MessageQueue

noun = Noun("bench", "Measure sends and pulls.")

DRAW_INTERVAL_MS = 200
PULL_MESSAGES = 32


@dataclass(slots=True)
class Phase:
    """One measured phase: work done so far, and the duration of each request."""

    name: str
    started_ns: int
    messages: int = 0
    body_bytes: int = 0
    request_ns: list[int] = field(default_factory=list)
    seconds: float = 0.0

    def result(self) -> PhaseRow:
        """Return the results of the phase."""
        times = sorted(self.request_ns)
        return PhaseRow(
            self.name,
            self.messages,
            round(self.seconds, 3),
            round(self.messages / self.seconds) if self.seconds else 0,
            round(self.body_bytes / self.seconds / 2**20, 2) if self.seconds else 0.0,
            len(times),
            _at(times, 0.5),
            _at(times, 0.99),
            _at(times, 1.0),
        )


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """Results of one phase; latencies are those of requests."""

    phase: str
    messages: int
    seconds: float
    messages_per_s: int
    mib_per_s: float
    requests: int
    p50_ms: float
    p99_ms: float
    max_ms: float


@noun.command("", "bench --seconds 10 --size 128 --connections 8 --in-flight 64")
async def bench(
    cluster: Connected,
    topic: Annotated[
        str, Option(help="Topic to send to; a new one gets --queues queues.")
    ] = "comet-bench",
    queues: Annotated[int, Option(min=1, help="Number of queues.")] = 8,
    size: Annotated[int, Option(min=1, help="Size of a body in bytes.")] = 128,
    connections: Annotated[int, Option(min=1, help="Number of connections.")] = 4,
    in_flight: Annotated[int, Option(min=1, help="Sends in flight on each connection.")] = 64,
    seconds: Annotated[float, Option(min=0.1, help="Duration of the send phase.")] = 10,
    pull: Annotated[bool, Option("--pull", help="Pull the messages that were sent.")] = True,
) -> list[PhaseRow]:
    """Measure sends, then pulls, against a running cluster."""
    settings = Settings(topic, queues, size, connections, in_flight, seconds)
    return [phase.result() for phase in await _bench(cluster, settings, pull=pull)]


@dataclass(frozen=True, slots=True)
class Settings:
    """Parameters of a measurement."""

    topic: str
    queues: int
    size: int
    connections: int
    in_flight: int
    seconds: float


async def _bench(cluster: Connected, settings: Settings, *, pull: bool) -> list[Phase]:
    clock = SystemClock()
    phases: list[Phase] = []
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(connect.client(cluster.connection))
            for _ in range(settings.connections)
        ]
        await _create(cluster.admin, settings)
        written = await clients[0].queues(settings.topic, "write")
        starts = {queue: await clients[0].puller.max_offset(queue) for queue in written}
        sending = Phase("send", clock.monotonic_ns())
        phases.append(sending)
        await _watched(sending, clock, _send_all(clients, settings, sending, clock))
        if pull:
            pulling = Phase("pull", clock.monotonic_ns())
            phases.append(pulling)
            await _watched(pulling, clock, _pull_all(clients, starts, pulling, clock))
    return phases


async def _create(admin: Admin, settings: Settings) -> None:
    """Create the topic on the masters that lack it; one that is there stays as it is."""
    masters = await admin.brokers(masters_only=True)
    configs = await admin.ask_together(
        masters, lambda each: admin.topic_config(each.address, settings.topic)
    )
    lacking = [each.name for each, config in configs.items() if config is None]
    if lacking or not masters:
        await admin.create_topic(settings.topic, queues=settings.queues, brokers=lacking)


async def _watched(phase: Phase, clock: SystemClock, work: object) -> None:
    """Run ``work`` to its end and show its progress."""
    assert asyncio.iscoroutine(work)
    console = render.progress_console()
    async with asyncio.TaskGroup() as group:
        drawing = group.create_task(_draw(phase, clock, console))
        await work
        drawing.cancel()
    phase.seconds = (clock.monotonic_ns() - phase.started_ns) / 1e9


async def _draw(phase: Phase, clock: SystemClock, console: Console | None) -> None:
    if console is None:
        return
    from rich.live import Live
    from rich.text import Text

    with Live(console=console, auto_refresh=False, transient=True) as live:
        while True:
            seconds = max(1e-9, (clock.monotonic_ns() - phase.started_ns) / 1e9)
            rate = phase.messages / seconds
            messages = plural(phase.messages, "message")
            text = f"{phase.name} {seconds:5.1f} s  {messages}  {rate:,.0f}/s"
            live.update(Text(text), refresh=True)
            await clock.sleep_ms(DRAW_INTERVAL_MS)


async def _send_all(
    clients: list[Client], settings: Settings, phase: Phase, clock: SystemClock
) -> None:
    body = bytes(settings.size)
    end_ns = phase.started_ns + int(settings.seconds * 1e9)

    async def lane(sender: Client) -> None:
        while (begun_ns := clock.monotonic_ns()) < end_ns:
            await sender.send(settings.topic, body)
            phase.request_ns.append(clock.monotonic_ns() - begun_ns)
            phase.messages += 1
            phase.body_bytes += settings.size

    async with asyncio.TaskGroup() as group:
        for sender in clients:
            for _ in range(settings.in_flight):
                group.create_task(lane(sender))


async def _pull_all(
    clients: list[Client], starts: dict[MessageQueue, int], phase: Phase, clock: SystemClock
) -> None:
    async def lane(reader: Client, queue: MessageQueue, start: int) -> None:
        offset, end = start, await reader.puller.max_offset(queue)
        while offset < end:
            begun_ns = clock.monotonic_ns()
            result = await reader.puller.pull(queue, offset, max_messages=PULL_MESSAGES)
            phase.request_ns.append(clock.monotonic_ns() - begun_ns)
            if result.next_offset <= offset:
                break
            offset = result.next_offset
            phase.messages += len(result.found)
            phase.body_bytes += sum(len(message.body) for message in result.found)

    async with asyncio.TaskGroup() as group:
        for number, (queue, start) in enumerate(starts.items()):
            group.create_task(lane(clients[number % len(clients)], queue, start))


def _at(ordered_ns: list[int], share: float) -> float:
    if not ordered_ns:
        return 0.0
    at = min(len(ordered_ns) - 1, int(len(ordered_ns) * share))
    return round(ordered_ns[at] / 1e6, 3)
