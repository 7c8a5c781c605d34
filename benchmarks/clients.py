"""Filtered pulls, transactions and clients beside Java's: same machine, same run, alternating.

    .venv/bin/python -m benchmarks.clients [--case NAME ...] [--rounds 3] [--seconds 5] [--warm 20]

Filters and transactions are loaded by the C load generator, on both brokers alike. The push latency
is that of CometMQ's client on CometMQ beside the Java client on the Java broker. The rates of
CometMQ's producer and consumer (programs.py) stand for themselves: their targets are messages a
second. One JSON line a case, as benchmarks.compare prints it. Needs gcc, Java 17 and Maven.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.compare import (
    HERE,
    JAVA_HEAP,
    Bench,
    BenchmarkFailed,
    Broker,
    Case,
    awake,
    build_load,
    compare,
    run_program,
)
from cometmq.net.runtime import run
from tests.compat import anchor

#: Expressions over what `load orders` sends, by the share of messages that match. In place of {}
#: stands the number of the measurement, in place of ### that of the pass over a queue: so many
#: messages more or less hardly count, but what is known of one expression says nothing of another.
EXPRESSIONS: Final = {
    0.1: "amount < 3{:03d}### AND region = 'eu'",
    0.5: "amount >= 25{:02d}### AND region IN ('eu', 'us')",
}
SHARE_TOLERANCE: Final = 0.02
LOOKED_AT: Final = "messages looked at/s"
PACE_US: Final = 5_000
LATENCY_WARM_S: Final = 8
IN_FLIGHT: Final = 512


@dataclass(slots=True)
class Filtered:
    """Pulls by an expression that a ``share`` of the messages match. With ``anew`` each message is
    looked at once by any expression; else each pass over a queue has the same one."""

    share: float
    anew: bool
    measurements: dict[str, int] = field(default_factory=dict)

    async def measure(self, bench: Bench, broker: Broker) -> float:
        """Messages looked at; those delivered are the share of them."""
        await bench.topic(broker, "orders")
        if await bench.stored(broker, "orders") == 0:
            await bench.load(broker, "orders", "orders", 8, 64, 128, bench.seconds)
        number = self.measurements[broker.name] = self.measurements.get(broker.name, -1) + 1
        expression = EXPRESSIONS[self.share].format(number if self.anew else 0)
        if not self.anew:
            expression = expression.replace("###", "000")
        found = await bench.load(broker, "pull", "orders", 8, 32, bench.seconds, expression)
        delivered = found["messages_per_s"] / found["looked_at_per_s"]
        if abs(delivered - self.share) > SHARE_TOLERANCE:
            raise BenchmarkFailed(f"{broker.name}: {delivered:.3f} of the messages matched")
        return found["looked_at_per_s"]


async def _commits(bench: Bench, broker: Broker) -> float:
    found = await bench.load(broker, "commit", "transactions", 8, 64, 128, bench.seconds)
    return found["messages_per_s"]


async def _produce(bench: Bench, broker: Broker) -> float:
    await bench.topic(broker, "produced")
    found = await _our_program(broker, "produce", "produced", 128, bench.seconds, IN_FLIGHT)
    return found["messages_per_s"]


async def _consume(bench: Bench, broker: Broker) -> float:
    await bench.topic(broker, "consumed")
    if await bench.stored(broker, "consumed") == 0:
        await bench.load(broker, "batch", "consumed", 8, 4, 128, bench.seconds, 64)
    return (await _our_program(broker, "consume", "consumed", bench.seconds))["messages_per_s"]


async def _our_program(
    broker: Broker, program: str, topic: str, *words: object
) -> dict[str, float]:
    command = [*_ours(program), broker.namesrv, topic, *map(str, words)]
    return await run_program(command, program)


def _ours(program: str) -> list[str]:
    return [sys.executable, "-m", "benchmarks.programs", program]


@dataclass(slots=True)
class PushLatency:
    """Producer and push consumer in one process, for each broker in its own language. They run on
    between the rounds, idle."""

    processes: dict[str, asyncio.subprocess.Process] = field(default_factory=dict)

    async def measure(self, bench: Bench, broker: Broker) -> float:
        """The median of the times from a send to the listener."""
        process = self.processes.get(broker.name)
        if process is None:
            process = self.processes[broker.name] = await self._start(bench, broker)
        assert process.stdin is not None
        process.stdin.write(f"{bench.seconds} {PACE_US}\n".encode())
        found = json.loads(await self._line(process))
        if found["heard"] != found["sent"]:
            raise BenchmarkFailed(f"{broker.name}: heard {found['heard']} of {found['sent']}")
        return float(found["p50_us"])

    async def _start(self, bench: Bench, broker: Broker) -> asyncio.subprocess.Process:
        await bench.topic(broker, "latency")
        home = Path(bench.stack.enter_context(tempfile.TemporaryDirectory(prefix="cometmq-jvm-")))
        command = _ours("latency") if broker.name == "cometmq" else _java_latency(home)
        process = await asyncio.create_subprocess_exec(
            *(*command, broker.namesrv, "latency", "1024", str(LATENCY_WARM_S)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        bench.stack.push_async_callback(_end, process)
        if await self._line(process) != "ready":
            raise BenchmarkFailed(f"{broker.name}: the latency program does not start")
        return process

    async def _line(self, process: asyncio.subprocess.Process) -> str:
        assert process.stdout is not None
        return (await process.stdout.readline()).decode().strip()


async def _end(process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None
    process.stdin.close()
    await process.wait()


def _java_latency(home: Path) -> list[str]:
    jars = anchor.fetch_jars()
    classes = anchor.compile_java(jars, [HERE / "java" / "PushLatency.java"])
    command = anchor.java_command([classes, f"{jars}/*"], home, heap=JAVA_HEAP)
    command.remove("-XX:TieredStopAtLevel=1")
    return [*command, "PushLatency"]


CASES: Final = (
    Case("SQL92 first look, 10 % match", LOOKED_AT, 0.8, Filtered(0.1, anew=True).measure),
    Case("SQL92 first look, 50 % match", LOOKED_AT, 0.8, Filtered(0.5, anew=True).measure),
    Case("SQL92 again, 10 % match", LOOKED_AT, 0.8, Filtered(0.1, anew=False).measure),
    Case("SQL92 again, 50 % match", LOOKED_AT, 0.8, Filtered(0.5, anew=False).measure),
    Case("transactions, 8 x 64 in flight", "commits/s", 0.7, _commits),
    Case("push latency, 1 KiB", "p50 us", 0.7, PushLatency().measure),
    Case("asyncio producer, 512 in flight", "messages/s", 20_000, _produce, ours_only=True),
    Case("push consumer, 128 B", "messages/s", 100_000, _consume, ours_only=True),
)


async def _warm_up(cases: Sequence[Case], bench: Bench, warm_s: float) -> None:
    """Each case that loads the Java broker gets its part of the time; JVMs of clients warm up by
    themselves."""
    java = bench.brokers[1]
    loaded = [case for case in cases if not case.ours_only and "latency" not in case.name]
    asked_s = bench.seconds
    for case in loaded:
        bench.seconds = warm_s / len(loaded)
        await case.measure(bench, java)
    bench.seconds = asked_s


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--case", action="append", help="only cases whose name holds this text")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--awake", action="store_true", help="as in benchmarks.compare")
    parser.add_argument("--warm", type=float, default=20.0, help="seconds of load on Java first")
    words = parser.parse_args()
    if (problem := anchor.missing_tool()) is not None:
        print(f"the comparison needs the Java broker: {problem}", file=sys.stderr)
        return 2
    wanted = words.case or [""]
    cases = [case for case in CASES if any(text in case.name for text in wanted)]
    with awake(words.awake), tempfile.TemporaryDirectory(prefix="cometmq-load-") as home:
        run(
            compare(
                cases,
                build_load(Path(home)),
                rounds=words.rounds,
                seconds=words.seconds,
                warm=words.warm,
                warm_up=partial(_warm_up, cases),
            )
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
