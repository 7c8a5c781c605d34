"""How the rate changes with one quantity: a curve each, the Java broker's beside it.

    .venv/bin/python -m benchmarks.curves [--curve NAME ...] [--peer NAME ...] [--rounds 3]
        [--seconds 2] [--warm 20] [--gib 2] [--apart]

The curves are connections, topics, queues, size, groups, window and backlog; README.md describes
them. Every curve has its own brokers and stores. With ``--apart`` they run one after the other
instead of by turns, each with the memory and the disk to itself. Prints Markdown; one JSON file of
all curves and one SVG per curve are written under build/bench.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import msgspec

from benchmarks import charts, figures
from benchmarks.compare import FAILURES, machine, remove_all, said, stamp, versions
from benchmarks.figures import number_text
from benchmarks.filling import drop_from_memory
from benchmarks.loading import BUILD, BenchmarkFailed, build_program, end_cleanly
from benchmarks.many_queues import QUEUES as QUEUES_OF_MANY
from benchmarks.many_queues import WIDE, write_topics
from benchmarks.rounds import Bench, Load, RocketTarget, Target
from benchmarks.servers import JavaServer, OurServer
from benchmarks.targets import JVMS, ROCKETS, make
from cometmq.core.clock import SystemClock
from cometmq.net.client import Remoting
from cometmq.net.eventloop import run
from cometmq.net.tasks import Tasks

TOPICS_MAX: Final = 10_000
#: Bytes that a generator keeps in flight over 8 connections, whatever the size of a message.
IN_FLIGHT_BYTES: Final = 64 << 20
KIB_RECORD_BYTES: Final = 1_200
#: The longest load that fills topics.
FILLING_MAX_S: Final = 64
DEFAULT_PEERS: Final = ("cometmq", "rocketmq-4.9.7")

Point = Callable[[Bench, Target, float], Awaitable[float]]


@dataclass(frozen=True, slots=True)
class Curve:
    """One chart. ``measure`` returns y for an x. ``prepare`` is called with a target's folder
    before the target is started."""

    name: str
    x_label: str
    y_label: str
    xs: Sequence[float]
    measure: Point
    prepare: Callable[[Path], None] | None = None


class Series(msgspec.Struct):
    """The rounds of each x of a target, and the points that could not be measured."""

    points: dict[str, list[float]] = {}
    problems: list[str] = []


class Found(msgspec.Struct):
    """A measured curve: series by target."""

    name: str
    x_label: str
    y_label: str
    series: dict[str, Series]


async def _send(bench: Bench, target: Target, load: Load) -> float:
    return (await bench.load(target, load))["messages_per_s"]


async def connections(bench: Bench, target: Target, x: float) -> float:
    """Measure many connections with one send in flight each."""
    return await _send(bench, target, Load("send", "many", int(x), 1, 128, bench.seconds))


@dataclass(slots=True)
class Topics:
    """Sends that rotate over all queues of ``x`` topics. Each queue has a message before, because
    the first one makes the queue's directory and file."""

    filled: dict[str, float] = field(default_factory=dict)

    async def measure(self, bench: Bench, target: Target, x: float) -> float:
        load = Load("send", WIDE, 8, 64, 128, bench.seconds, queues=QUEUES_OF_MANY, topics=int(x))
        await self._fill(bench, target, load)
        return await _send(bench, target, load)

    async def _fill(self, bench: Bench, target: Target, load: Load) -> None:
        seconds = load.seconds
        while self.filled.get(target.name, 0) < load.topics:
            if seconds > FILLING_MAX_S:
                raise BenchmarkFailed(f"{target.name}: {load.topics} topics were not filled")
            # Each run begins with the first queue, so one run has to reach all of them.
            found = await bench.load(target, replace(load, seconds=seconds))
            if found["stored"] >= load.topics * load.queues:
                self.filled[target.name] = load.topics
            seconds *= 2


async def queues(bench: Bench, target: Target, x: float) -> float:
    """Measure sends that rotate over all queues of one topic."""
    load = Load("send", f"queues-{x:.0f}", 8, 64, 128, bench.seconds, queues=int(x))
    return await _send(bench, target, load)


async def size(bench: Bench, target: Target, x: float) -> float:
    """Measure megabytes of bodies per second, with messages of one size."""
    window = max(1, min(64, int(IN_FLIGHT_BYTES / 8 / x)))
    load = Load("send", "sizes", 8, window, int(x), bench.seconds)
    return x * await _send(bench, target, load) / 1e6


async def window(bench: Bench, target: Target, x: float) -> float:
    """Measure ``x`` sends in flight on each of 8 connections."""
    return await _send(bench, target, Load("send", "windows", 8, int(x), 128, bench.seconds))


@dataclass(slots=True)
class Groups:
    """One producer whose messages are delivered to ``x`` groups. A topic is used once."""

    used: int = 0

    async def measure(self, bench: Bench, target: Target, x: float) -> float:
        self.used += 1
        topic = f"groups-{self.used}"
        return await _send(
            bench, target, Load("fan", topic, 1, 64, 128, bench.seconds, more=(str(int(x)),))
        )


@dataclass(frozen=True, slots=True)
class Backlog:
    """Pulls by 8 consumers, from the first message of ``x`` GiB of 1 KiB messages on.

    The first messages of a backlog that is larger than the machine's memory are not in the page
    cache, unless something read them since. Therefore such a broker restarts before each round,
    without its files in the page cache.
    """

    warm: float

    async def measure(self, bench: Bench, target: Target, x: float) -> float:
        stored = await target.stored("backlog", 8) if "backlog" in target.topics else 0
        while stored * KIB_RECORD_BYTES < x * 2**30:
            seconds = 0.3 if x < 1 else 1.0
            await bench.load(target, Load("batch", "backlog", 8, 4, 1024, seconds, 32))
            stored = await target.stored("backlog", 8)
        if stored * KIB_RECORD_BYTES > memory_bytes():
            await self._restart(bench, target)
        load = Load("pull", "backlog", 8, 1, 0, bench.seconds, messages=32)
        return await _send(bench, target, load)

    async def _restart(self, bench: Bench, target: Target) -> None:
        server = target.server if isinstance(target, RocketTarget) else None
        if not isinstance(server, OurServer | JavaServer):
            raise BenchmarkFailed(f"{target.name}: this benchmark cannot restart it")
        await asyncio.to_thread(server.stop)
        await asyncio.to_thread(drop_from_memory, target.home)
        await asyncio.to_thread(target.start)
        await warm_up(bench, target, self.warm)


async def warm_up(bench: Bench, target: Target, seconds: float) -> None:
    """Load a JVM for some seconds. Do nothing with other brokers."""
    if target.name in JVMS and seconds > 0:
        await bench.load(target, Load("send", "warm", 8, 64, 128, seconds))


def memory_bytes() -> int:
    """Return the size of the machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def curves(gib: float, warm: float = 0.0) -> tuple[Curve, ...]:
    """Return all curves. That of the backlog ends at ``gib``; a JVM that it restarts is loaded for
    ``warm`` seconds."""
    rate = "messages/s"
    backlogs = [x for x in (0.125, 0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 100) if x <= gib]
    return (
        Curve("connections", "connections, one send of 128 B in flight on each", rate,
              (1, 8, 64, 512, 2_048, 10_000), connections),
        Curve("topics", "topics of 10 queues, sends of 128 B, 8 x 64", rate,
              (1, 10, 100, 1_000, TOPICS_MAX), Topics().measure,
              lambda home: write_topics(home / "store", TOPICS_MAX)),
        Curve("queues", "queues of one topic, sends of 128 B, 8 x 64", rate,
              (8, 64, 256, 1_024), queues),
        Curve("size", "bytes a message, single sends on 8 connections", "MB of bodies/s",
              (16, 128, 1_024, 16_384, 262_144, 4_194_304), size),
        Curve("groups", "groups that follow a topic, one producer x 64", rate,
              (1, 3, 10, 30, 100), Groups().measure),
        Curve("window", "sends of 128 B in flight on each of 8 connections", rate,
              (1, 4, 16, 64, 256, 1_024), window),
        Curve("backlog", "GiB of 1 KiB messages, pulled from the first on by 8 consumers", rate,
              backlogs, Backlog(warm).measure),
    )  # fmt: skip


@dataclass(slots=True)
class Measuring:
    """A run over curves."""

    peers: Sequence[str]
    rounds: int
    seconds: float
    warm: float
    remoting: Remoting
    programs: Path
    is_apart: bool
    left_out: list[str] = field(default_factory=list)

    async def curve(self, curve: Curve) -> Found:
        """Measure one curve on its own targets."""
        said(f"curve of {curve.name}")
        found = Found(curve.name, curve.x_label, curve.y_label, {})
        for names in [[name] for name in self.peers] if self.is_apart else [self.peers]:
            await self._measure(names, curve, found)
        return found

    async def _measure(self, names: Sequence[str], curve: Curve, found: Found) -> None:
        with tempfile.TemporaryDirectory(prefix="stores-", dir=BUILD) as home:
            bench = Bench(self.programs, self.seconds, [])
            targets: list[Target] = []
            try:
                for name in names:
                    targets += await self._started(name, Path(home, name), curve)
                for target in targets:
                    await warm_up(bench, target, self.warm)
                    found.series[target.name] = Series()
                for x in curve.xs:
                    await self._point(bench, targets, curve, x, found)
            finally:
                remove_all(targets)
                await bench.stack.aclose()

    async def _started(self, name: str, home: Path, curve: Curve) -> list[Target]:
        target = None
        try:
            target = await asyncio.to_thread(make, name, "ASYNC_FLUSH", home, self.remoting)
            if curve.prepare is not None:
                curve.prepare(home)
            await asyncio.to_thread(target.start)
        except FAILURES as error:
            self.left_out.append(f"{name}: {' '.join(str(error).split())[:300]}")
            remove_all([target] if target is not None else [])
            return []
        return [target]

    async def _point(
        self, bench: Bench, targets: Sequence[Target], curve: Curve, x: float, found: Found
    ) -> None:
        said(f"  {curve.name} {x:.10g}")
        for number in range(self.rounds):
            for target in targets if number % 2 == 0 else list(reversed(targets)):
                series = found.series[target.name]
                try:
                    y = await curve.measure(bench, target, x)
                except FAILURES as error:
                    series.problems.append(f"{x:.10g}: {type(error).__name__} {error}")
                    continue
                series.points.setdefault(f"{x:.10g}", []).append(round(y, 3))
                if curve.name != "backlog" and curve.prepare is None:
                    await bench.empty(target)


def medians(series: Series) -> list[tuple[float, float]]:
    """Return the points of a series: x and the median of its rounds."""
    spreads = [(float(x), figures.spread(values)) for x, values in series.points.items()]
    return [(x, spread.median) for x, spread in spreads if spread is not None]


def table(found: Found) -> str:
    """Return a curve as Markdown: a line per x, a column per target."""
    by_target = {name: dict(medians(series)) for name, series in found.series.items()}
    xs = sorted({x for points in by_target.values() for x in points})
    lines = [f"**{found.name}**: {found.x_label}; {found.y_label}", ""]
    lines += [
        "| " + " | ".join([found.name, *by_target]) + " |",
        "|---" * (1 + len(by_target)) + "|",
    ]
    for x in xs:
        cells = [number_text(points[x]) if x in points else "" for points in by_target.values()]
        lines.append("| " + " | ".join([f"{x:.10g}", *cells]) + " |")
    for name, series in found.series.items():
        lines += [f"- not counted: {name} {problem}" for problem in series.problems]
    return "\n".join(lines) + "\n"


async def measure(asked: argparse.Namespace, programs: Path) -> list[Found]:
    """Measure the requested curves, and print each one when it is done."""
    tasks = Tasks()
    remoting = Remoting(clock=SystemClock(), tasks=tasks)
    peers = asked.peer or DEFAULT_PEERS
    measuring = Measuring(
        peers, asked.rounds, asked.seconds, asked.warm, remoting, programs, asked.apart
    )
    found = []
    try:
        for curve in curves(asked.gib, asked.warm):
            if not asked.curve or curve.name in asked.curve:
                found.append(await measuring.curve(curve))
                print(table(found[-1]), flush=True)
    finally:
        await remoting.close()
        await tasks.close()
    for reason in dict.fromkeys(measuring.left_out):
        print(f"- left out: {reason}")
    return found


def main() -> int:
    """Run the command line."""
    names = [curve.name for curve in curves(0)]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--curve", action="append", choices=names)
    parser.add_argument("--peer", action="append", choices=ROCKETS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of load a round")
    parser.add_argument("--warm", type=float, default=20.0, help="seconds of load on a JVM first")
    parser.add_argument("--gib", type=float, default=2.0, help="the largest backlog, each broker")
    parser.add_argument("--apart", action="store_true", help="one broker after the other")
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
    at = stamp()
    for each in found:
        points = {name: medians(series) for name, series in each.series.items()}
        title = f"CometMQ beside Apache RocketMQ: {each.name}"
        chart = charts.lines(title, each.x_label, each.y_label, points)
        (BUILD / f"curve-{each.name}-{at}.svg").write_text(chart, encoding="utf-8")
    fields = {"at": at, "machine": machine(), "versions": versions(), "curves": found}
    text = msgspec.json.format(msgspec.json.encode(fields), indent=1)
    (BUILD / f"curves-{at}.json").write_bytes(text + b"\n")
    said(f"{BUILD}/curves-{at}.json and an SVG a curve")
    return 0


if __name__ == "__main__":
    sys.exit(main())
