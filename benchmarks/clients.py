"""Rounds with real clients, and a table of CometMQ's client beside Java's.

    .venv/bin/python -m benchmarks.clients [--rounds 5] [--seconds 2] [--warm 10] [--case TEXT ...]
                                           [--broker cometmq] [--document FILE]

The table compares CometMQ's client (client_cases.py) with Java's clients of 4.9.7 and 5.5.0
(java/Clients.java) on the same broker. Each client is one process that runs for the whole time; in
each round all take their turn, in the other order each time. Java's clients are warmed for
``--warm`` seconds a case. Prints Markdown: messages a second, the median of the rounds with the
lowest and the highest, p50 and p99 of the wait for an answer in microseconds, and what failed in
all rounds together. ``--broker rocketmq-4.9.7`` has Java's broker instead of CometMQ's.

``make bench`` uses the rounds with programs.py: the push latency, for each broker in its own
language, and the rates of CometMQ's producer and consumer alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from benchmarks.loading import BUILD, HERE, BenchmarkFailed, end_cleanly, need_tools, run_program
from benchmarks.rounds import Bench, Load, RocketTarget, Target
from benchmarks.servers import JAVA_HEAP, QUICK_COMPILER, JavaServer, OurServer, Server
from cometmq.admin.api import Admin
from cometmq.client.client import Client
from cometmq.core.errors import RouteNotFound
from cometmq.message.model import Message
from cometmq.net.eventloop import run
from tests.compat import anchor

PACE_US: Final = 5_000
LATENCY_WARM_S: Final = 8
IN_FLIGHT: Final = 512
_LINE_S: Final = 120.0
_END_S: Final = 15.0


async def produce(bench: Bench, target: Target) -> dict[str, float]:
    """Measure single sends of CometMQ's asyncio producer, with IN_FLIGHT of them at a time."""
    await bench.topic(target, "produced")
    return await _our_program(target, "produce", "produced", 128, bench.seconds, IN_FLIGHT)


async def consume(bench: Bench, target: Target) -> dict[str, float]:
    """Measure CometMQ's push consumer, from the first message of a topic on."""
    if (target.name, "consumed") not in bench.kept:
        load = Load("batch", "consumed", 8, 4, 128, 2 * bench.seconds, 64)
        await bench.load(target, load)
        bench.kept.add((target.name, "consumed"))
    return await _our_program(target, "consume", "consumed", bench.seconds)


async def _our_program(
    target: Target, program: str, topic: str, *words: object
) -> dict[str, float]:
    assert isinstance(target, RocketTarget)
    command = [*_ours(program), target.namesrv, topic, *map(str, words)]
    return await run_program(command, program, _LINE_S)


def _ours(program: str) -> list[str]:
    return [sys.executable, "-m", "benchmarks.programs", program]


@dataclass(slots=True)
class PushLatency:
    """Producer and push consumer in one process, for each broker in its own language. Between
    rounds they stay idle."""

    processes: dict[str, asyncio.subprocess.Process] = field(default_factory=dict)

    async def measure(self, bench: Bench, target: Target) -> dict[str, float]:
        """Measure the times from a send to the listener. Raises BenchmarkFailed."""
        process = self.processes.get(target.name)
        if process is None:
            process = self.processes[target.name] = await self._start(bench, target)
        assert process.stdin is not None
        process.stdin.write(f"{bench.seconds} {PACE_US}\n".encode())
        found: dict[str, float] = json.loads(await self._line(process))
        if found["heard"] != found["sent"]:
            raise BenchmarkFailed(f"{target.name}: heard {found['heard']} of {found['sent']}")
        return found

    async def _start(self, bench: Bench, target: Target) -> asyncio.subprocess.Process:
        assert isinstance(target, RocketTarget)
        await bench.topic(target, "latencies")
        home = Path(bench.stack.enter_context(tempfile.TemporaryDirectory(prefix="cometmq-jvm-")))
        command = _ours("latency") if target.name == "cometmq" else _java_latency(home)
        process = await asyncio.create_subprocess_exec(
            *(*command, target.namesrv, "latencies", "1024", str(LATENCY_WARM_S)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        bench.stack.push_async_callback(_end, process)
        bench.stack.callback(self.processes.pop, target.name, None)
        if await self._line(process) != "ready":
            raise BenchmarkFailed(f"{target.name}: the latency program does not start")
        return process

    async def _line(self, process: asyncio.subprocess.Process) -> str:
        assert process.stdout is not None
        return (await asyncio.wait_for(process.stdout.readline(), _LINE_S)).decode().strip()


async def _end(process: asyncio.subprocess.Process) -> None:
    try:
        await asyncio.wait_for(process.communicate(), _END_S)  # closes its standard input
    except TimeoutError:
        process.kill()


def _java_latency(home: Path) -> list[str]:
    return _java_program("PushLatency", home, anchor.VERSION, JAVA_HEAP)


def _java_program(name: str, home: Path, version: str, heap: tuple[str, str]) -> list[str]:
    """Return the command of a program of java/, with both compilers of the JVM."""
    need_tools("java", "javac", "mvn")
    jars = anchor.fetch_jars(version)
    classes = anchor.compile_java(jars, [HERE / "java" / f"{name}.java"])
    command = anchor.java_command([classes, f"{jars}/*"], home, heap=heap)
    command.remove(QUICK_COMPILER)
    return [*command, name]


# ---------------------------------------------------------------------- beside Java's client

OURS: Final = "cometmq"
CLIENTS: Final = (OURS, f"java {anchor.VERSION}", f"java {anchor.LATEST}")
#: Topic that consumers read, and messages that a consumer may take of it in a second.
_FULL: Final = "full"
#: Prefix of the topics of one-way sends, and the time until what was sent is stored.
_ONE_WAY: Final = "oneway"
_STORED_S: Final = 0.5
_READ_PER_S: Final = 700_000
_CLIENT_HEAP: Final = ("1g", "1g")


class Row(NamedTuple):
    """Row of the table: a case of client_cases.py with its count, and its counterpart in Java."""

    title: str
    ours: str
    java: str
    topic: str = "sends"


ROWS: Final = (
    Row("1 send in flight", "single 1", "single 1"),
    Row("64 sends in flight", "single 64", "single 64"),
    Row("512 sends in flight", "single 512", "single 512"),
    Row("512 in flight, automatic batches", "auto 512", "auto 512"),
    Row("4 096 in flight, automatic batches", "auto 4096", "auto 4096"),
    Row("4 096 in flight, handed over by one task", "soon 4096", "auto 4096"),
    Row("batches of 64, 4 at a time", "batch 64", "batch 64"),
    Row("1 000 messages a call, 4 at a time", "many 1000", "batch 1000"),
    Row("64 transactions at a time", "transaction 64", "transaction 64", "transactions"),
    Row("64 requests and their replies at a time", "request 64", "request 64", "requests"),
    Row("push consumer", "push 0", "push 0", _FULL),
    Row("pull consumer", "pull 0", "pull 0", _FULL),
    # The last row, because Java's 5.5.0 does not recover from it.
    Row("one-way sends, as many as were stored", "oneway 1", "oneway 1", _ONE_WAY),
)


class Running:
    """Process of one client, for all rounds."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self._process = process

    async def measure(self, row: Row, seconds: float, full: int) -> dict[str, float]:
        """Run a case; empty if this client does not have it. Raises BenchmarkFailed."""
        case = row.ours if self.name == OURS else row.java
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(f"{case} {_topic_of(row, self.name)} {seconds} {full}\n".encode())
        try:
            line = await asyncio.wait_for(stdout.readline(), _LINE_S + seconds)
            found: dict[str, float] = json.loads(line)
        except (TimeoutError, ValueError):
            raise BenchmarkFailed(f"{self.name}: no result of {case}") from None
        return found


async def _start_client(name: str, namesrv: str, stack: AsyncExitStack) -> Running:
    command = [sys.executable, "-m", "benchmarks.client_cases"]
    if name != OURS:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cometmq-jvm-")))
        command = _java_program("Clients", home, name.rpartition(" ")[2], _CLIENT_HEAP)
    process = await asyncio.create_subprocess_exec(
        *command, namesrv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    stack.push_async_callback(_end, process)
    return Running(name, process)


async def _fill(namesrv: str, names: Sequence[str], full: int) -> None:
    """Create the topics, and fill the one that consumers read."""
    async with Client(namesrv, send_timeout_ms=20_000) as client:
        admin = Admin(client.session)
        for topic in names:
            await _create(admin, topic)
        part = [Message(_FULL, bytes(128))] * 10_000
        for _ in range(0, full if _FULL in names else 0, len(part)):
            await client.send_many(part)


async def _create(admin: Admin, topic: str) -> None:
    """Create a topic, as soon as the broker has registered."""
    async with asyncio.timeout(_LINE_S):
        while True:
            try:
                await admin.create_topic(topic, queues=8)
            except RouteNotFound:
                await asyncio.sleep(_STORED_S)
            else:
                return


async def _measure_table(
    rows: Sequence[Row], words: argparse.Namespace, namesrv: str
) -> dict[str, list[dict[str, float]]]:
    """Measure and print the rows; return all results by row and client."""
    full = int(_READ_PER_S * words.seconds)
    found: dict[str, list[dict[str, float]]] = {}
    async with AsyncExitStack() as stack:
        topics = {_topic_of(row, name) for row in rows for name in CLIENTS}
        await _fill(namesrv, sorted(topics), full)
        running = [await _start_client(name, namesrv, stack) for name in CLIENTS]
        for row in rows:
            results: dict[str, list[dict[str, float]]] = {name: [] for name in CLIENTS}
            if words.warm:
                for client in running:
                    seconds = min(1.0, words.warm) if client.name == OURS else words.warm
                    await client.measure(row, seconds, full)
            for number in range(words.rounds):
                for client in running[:: 1 if number % 2 else -1]:
                    results[client.name].append(await _round(client, row, words.seconds, namesrv))
            print(_line(row, results), flush=True)
            found |= {f"{row.title} | {name}": each for name, each in results.items()}
    return found


async def _round(client: Running, row: Row, seconds: float, namesrv: str) -> dict[str, float]:
    """Measure one round. Of one-way sends those count that a broker stored."""
    full = int(_READ_PER_S * seconds)
    if row.topic != _ONE_WAY:
        return await client.measure(row, seconds, full)
    topic = _topic_of(row, client.name)
    before = await _stored(namesrv, topic)
    result = await client.measure(row, seconds, full)
    await asyncio.sleep(_STORED_S)
    return result | {"per_s": (await _stored(namesrv, topic) - before) / seconds}


async def _stored(namesrv: str, topic: str) -> int:
    async with Client(namesrv) as client:
        queues = await client.queues(topic)
        return sum([await client.puller.max_offset(queue) for queue in queues])


def _topic_of(row: Row, client: str) -> str:
    """Return the topic of a client; a replier must not serve the requests of others."""
    if row.topic == _FULL:
        return _FULL
    return f"{row.topic}-{client.replace(' ', '-').replace('.', '_')}"


def _line(row: Row, results: dict[str, list[dict[str, float]]]) -> str:
    ours, *javas = [_median_rate(each) for each in results.values()]
    cells = [f"{ours / max(javas):.1f}", *map(_cell, results.values())]
    return f"| {row.title} | {' | '.join(cells)} |"


def _median_rate(rounds: Sequence[dict[str, float]]) -> float:
    return median([each.get("per_s", 0.0) for each in rounds])


def _cell(rounds: Sequence[dict[str, float]]) -> str:
    rates = [each["per_s"] for each in rounds if each]
    if not rates:
        return "not there"
    text = f"{_short(median(rates))} ({_short(min(rates))} to {_short(max(rates))})"
    if rounds[0]["p50_us"]:
        p50, p99 = (median([each[name] for each in rounds]) for name in ("p50_us", "p99_us"))
        text += f"; {_short(p50)} / {_short(p99)} us"
    if failed := sum(each["failed"] for each in rounds):
        text += f"; {failed:g} failed"
    return text


def _short(number: float) -> str:
    """Return a number with three digits that count."""
    digits = 3 - len(str(int(number)))
    return f"{round(number, digits):,.0f}".replace(",", " ")


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--warm", type=float, default=10, help="seconds of each case for a JVM")
    parser.add_argument("--case", action="append", help="only rows whose title has this text")
    parser.add_argument("--broker", choices=(OURS, f"rocketmq-{anchor.VERSION}"), default=OURS)
    parser.add_argument("--document", help="file for all results, as JSON")
    words = parser.parse_args()
    rows = [row for row in ROWS if not words.case or any(text in row.title for text in words.case)]
    end_cleanly()
    BUILD.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="clients-", dir=BUILD) as home:
        server: Server = OurServer(Path(home)) if words.broker == OURS else JavaServer(Path(home))
        load = os.getloadavg()[0]
        server.start()
        try:
            print(f"Broker {words.broker}, load {load:.1f} at the start.\n")
            print(f"| case | ours / the better Java | {' | '.join(CLIENTS)} |")
            print("|---|---|---|---|---|", flush=True)
            found = run(_measure_table(rows, words, server.namesrv))
        finally:
            server.stop()
    if words.document:
        Path(words.document).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
