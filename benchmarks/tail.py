"""The longest waits under half load, beside all that a broker does in the background at once.

    .venv/bin/python -m benchmarks.tail [--peer NAME ...] [--seconds 20] [--rounds 1] [--warm 20]
        [--brokers 50] [--topics 1000] [--flush ASYNC_FLUSH] [--rate N ...]

Messages are sent by the clock, so a stall counts with every message that it held up: half as many
as the broker takes at full load in the same situation, and besides those of each ``--rate``. The
calm rounds have only that. The busy ones have flushes, log files of 64 MiB that fill and are
deleted, four consumers that replay from the first message on, and a cluster that registers itself
again every ten seconds at the node's name server, once with changes.
Prints Markdown: what the sender waited, and the longest turns that CometMQ's watchdog reported (it
reports those over 20 ms). One JSON lands under build/bench.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.compare import FAILURES, machine, remove_all, said, stamp, versions
from benchmarks.figures import number_text
from benchmarks.loading import BUILD, BenchmarkFailed, build_program, end_cleanly
from benchmarks.name_server import Client, registration
from benchmarks.rounds import Bench, Load, RocketTarget
from benchmarks.servers import OurServer
from benchmarks.targets import JVMS, ROCKETS, make
from cometmq.core.clock import SystemClock
from cometmq.net.client import Remoting
from cometmq.net.eventloop import run
from cometmq.net.tasks import Tasks

#: Files that fill in seconds, and may go as soon as they are full.
SETTINGS: Final = {
    "mappedFileSizeCommitLog": str(64 << 20),
    "mappedFileSizeConsumeQueue": str(20 * 50_000),
    "fileReservedTime": "0",
    "deleteWhen": ";".join(f"{hour:02}" for hour in range(24)),
}
REGISTER_S: Final = 10.0
#: Full load, of which half is sent.
FULL_S: Final = 5.0
_STALL: Final = re.compile(r"loop stalled handler=(.+?) took_ms=(\d+)")
_WORST: Final = 5


class Stall(msgspec.Struct, frozen=True, order=True):
    """A turn of the loop over 20 ms."""

    took_ms: int
    handler: str


class Waits(msgspec.Struct):
    """What the sender of one round saw, ms, and the broker's stalls meanwhile."""

    kind: str
    offered_per_s: float
    sent_per_s: float
    p50_ms: float
    p99_ms: float
    p999_ms: float
    longest_ms: float
    stalls: list[Stall]


def stalls(log: str) -> list[Stall]:
    """Return the stalls of a broker's log, the longest first."""
    found = [Stall(int(match[2]), match[1]) for match in _STALL.finditer(log)]
    return sorted(found, reverse=True)


@dataclass(slots=True)
class Tail:
    """The measurements of one running target."""

    bench: Bench
    target: RocketTarget
    brokers: int
    topics: int

    async def measure(self, rounds: int, warm_s: float, rates: Sequence[float]) -> list[Waits]:
        """Return all rounds. Raises BenchmarkFailed."""
        if self.target.name in JVMS and warm_s > 0:
            await self.bench.load(self.target, Load("send", "warm", 8, 64, 128, warm_s))
        found: list[Waits] = []
        for kind in ("calm", "busy"):
            topic = f"full-{kind}"
            await self.bench.topic(self.target, topic)
            async with self._beside(kind, topic, FULL_S):
                full = await self.bench.load(self.target, Load("send", topic, 8, 64, 128, FULL_S))
            half = full["messages_per_s"] / 2
            for number in range(rounds):
                for rate in (half, *rates):
                    said(f"{self.target.name}, {kind}, round {number + 1}, {rate:.0f} a second")
                    topic = f"paced-{kind}-{number}-{rate:.0f}"
                    await self.bench.topic(self.target, topic)
                    async with self._beside(kind, topic, self.bench.seconds):
                        found.append(await self._paced(kind, topic, rate))
        return found

    async def _paced(self, kind: str, topic: str, rate: float) -> Waits:
        log = self._log()
        before = log.stat().st_size if log is not None else 0
        more = (f"rate={rate:.0f}",)
        load = Load("send", topic, 8, 1, 128, self.bench.seconds, more=more)
        found = await self.bench.load(self.target, load)
        text = log.read_bytes()[before:].decode(errors="replace") if log is not None else ""
        p50, p99, p999, longest = (
            found[key] / 1000 for key in ("p50_us", "p99_us", "p999_us", "max_us")
        )
        sent = found["messages_per_s"]
        return Waits(kind, rate, sent, p50, p99, p999, longest, stalls(text))

    def _log(self) -> Path | None:
        server = self.target.server
        return server.log_path if isinstance(server, OurServer) else None

    @contextlib.asynccontextmanager
    async def _beside(self, kind: str, topic: str, seconds: float) -> AsyncIterator[None]:
        """For as long as the block, when busy: a replay of a topic, and registrations."""
        if kind != "busy":
            yield
            return
        load = Load("pull", topic, 4, 1, 0, seconds, messages=32)
        replay = asyncio.create_task(self.bench.run(self.target, load))
        registering = asyncio.create_task(self._register())
        try:
            yield
        finally:
            registering.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await registering
            await replay

    async def _register(self) -> None:
        host, _, port = self.target.namesrv.partition(":")
        loop = asyncio.get_running_loop()
        clients = [
            (await loop.create_connection(Client, host, int(port)))[1] for _ in range(self.brokers)
        ]
        version = 0
        try:
            while True:
                version += 1
                requests = await asyncio.to_thread(self._registrations, 1 + version // 2)
                await asyncio.gather(*map(Client.ask, clients, requests))
                await asyncio.sleep(REGISTER_S)
        finally:
            for client in clients:
                client.transport.close()

    def _registrations(self, version: int) -> list[bytes]:
        return [
            registration(number, self.topics, version=version, compressed=False)
            for number in range(self.brokers)
        ]


def table(found: dict[str, list[Waits]]) -> str:
    """Return the rounds as Markdown, with the longest stalls below it."""
    head = "| broker | round | offered/s | sent/s | p50 ms | p99 ms | p99.9 ms | longest ms |"
    lines = [head, "|---" * 8 + "|"]
    notes = []
    for name, rounds in found.items():
        for waits in rounds:
            rates = waits.offered_per_s, waits.sent_per_s
            times = waits.p50_ms, waits.p99_ms, waits.p999_ms, waits.longest_ms
            cells = [number_text(value) for value in (*rates, *times)]
            lines.append("| " + " | ".join([name, waits.kind, *cells]) + " |")
            notes += [
                f"- {name}, {waits.kind}, {number_text(waits.offered_per_s)} a second: a turn of "
                f"{stall.took_ms} ms in {stall.handler}"
                for stall in waits.stalls[:_WORST]
            ]
    return "\n".join([*lines, "", *notes]) + "\n"


async def measure(asked: argparse.Namespace, programs: Path) -> dict[str, list[Waits]]:
    """Measure one target after the other."""
    tasks = Tasks()
    remoting = Remoting(clock=SystemClock(), tasks=tasks)
    settings = SETTINGS | {"flushDiskType": asked.flush}
    found = {}
    names: Sequence[str] = asked.peer or ("cometmq", "rocketmq-4.9.7")
    try:
        for name in names:
            with tempfile.TemporaryDirectory(prefix="stores-", dir=BUILD) as home:
                target = None
                try:
                    target = await asyncio.to_thread(
                        make, name, asked.flush, Path(home, name), remoting, settings
                    )
                    await asyncio.to_thread(target.start)
                    bench = Bench(programs, asked.seconds, [target])
                    assert isinstance(target, RocketTarget)
                    tail = Tail(bench, target, asked.brokers, asked.topics)
                    found[name] = await tail.measure(asked.rounds, asked.warm, asked.rate)
                except FAILURES as error:
                    print(f"- left out: {name}: {error}", flush=True)
                finally:
                    remove_all([target] if target is not None else [])
    finally:
        await remoting.close()
        await tasks.close()
    return found


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--peer", action="append", choices=ROCKETS)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=20.0, help="of load a round")
    parser.add_argument("--warm", type=float, default=20.0, help="seconds of load on a JVM first")
    parser.add_argument("--brokers", type=int, default=50, help="brokers that register")
    parser.add_argument("--topics", type=int, default=1_000, help="topics of each of them")
    parser.add_argument("--rate", type=float, action="append", default=[], help="also sent")
    parser.add_argument("--flush", choices=("ASYNC_FLUSH", "SYNC_FLUSH"), default="ASYNC_FLUSH")
    asked = parser.parse_args()
    end_cleanly()
    programs = BUILD / "programs"
    programs.mkdir(parents=True, exist_ok=True)
    try:
        build_program("load", programs)
    except BenchmarkFailed as error:
        print(error, file=sys.stderr)
        return 2
    found = run(measure(asked, programs))
    print(table(found))
    fields = {"at": stamp(), "machine": machine(), "versions": versions(), "tail": found}
    path = BUILD / f"tail-{stamp()}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(fields), indent=1) + b"\n")
    said(str(path))
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
