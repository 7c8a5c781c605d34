"""Rounds with real clients: CometMQ's (programs.py), and for the push latency also Java's.

The push latency compares CometMQ's client on CometMQ with the Java client on the Java broker. The
rates of CometMQ's producer and consumer are not compared with others.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.loading import HERE, BenchmarkFailed, need_tools, run_program
from benchmarks.rounds import Bench, Load, RocketTarget, Target
from benchmarks.servers import JAVA_HEAP, QUICK_COMPILER
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
    need_tools("java", "javac", "mvn")
    jars = anchor.fetch_jars()
    classes = anchor.compile_java(jars, [HERE / "java" / "PushLatency.java"])
    command = anchor.java_command([classes, f"{jars}/*"], home, heap=JAVA_HEAP)
    command.remove(QUICK_COMPILER)
    return [*command, "PushLatency"]
