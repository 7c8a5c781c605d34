"""CometMQ beside the real Java broker: same machine, same run, alternating rounds.

    .venv/bin/python -m benchmarks.compare [--case NAME ...] [--rounds 5] [--seconds 5] [--warm 60]

Prints one JSON line a case: the median of the rounds of both, and ours / Java. Rates count a round
only with the time until its last message was dispatched (visible to consumers); a round whose
dispatch is not done a second after its end is an error. Needs gcc, Java 17 and Maven.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from cometmq.admin.node import NodeProcess
from cometmq.core.clock import SystemClock
from cometmq.net.client import Remoting
from cometmq.net.runtime import run
from cometmq.net.tasks import Tasks
from cometmq.protocol import headers as h
from cometmq.protocol.codes import RequestCode
from tests.compat import anchor

HERE: Final = Path(__file__).parent
QUEUES: Final = 8
DRAIN_LIMIT_S: Final = 1.0
TIMEOUT_MS: Final = 10_000
#: What the Java broker is started with in production, where memory allows it.
JAVA_HEAP: Final = ("4g", "4g")
JAVA_SETTINGS: Final = {
    "mappedFileSizeCommitLog": str(1 << 30),
    "mappedFileSizeConsumeQueue": "6000000",
    "maxHashSlotNum": "5000000",
    "maxIndexNum": "20000000",
    # Its own defaults refuse sends after 200 ms in the queue, which a saturated machine reaches.
    "waitTimeMillsInSendQueue": "5000",
}


class BenchmarkFailed(Exception):
    """A round cannot be counted."""


class Broker(Protocol):
    """A broker under test."""

    name: str

    @property
    def port(self) -> int:
        """Where it serves."""
        ...

    @property
    def namesrv(self) -> str:
        """The address of its name server."""
        ...

    @property
    def pid(self) -> int:
        """Its process."""
        ...

    def start(self) -> None:
        """Start it; returns when it serves."""
        ...

    def stop(self) -> None:
        """Stop it and remove its files."""
        ...


class OurBroker:
    """CometMQ as a user starts it."""

    name = "cometmq"

    def __init__(self, home: Path, flush: str) -> None:
        self._home = home
        self._node = NodeProcess(home / "store", settings={"flushDiskType": flush})

    @property
    def port(self) -> int:
        return int(self._node.broker.rpartition(":")[2])

    @property
    def namesrv(self) -> str:
        return self._node.namesrv

    @property
    def pid(self) -> int:
        assert self._node.process is not None
        return self._node.process.pid

    def start(self) -> None:
        self._node.start()

    def stop(self) -> None:
        self._node.terminate()
        shutil.rmtree(self._home)


class JavaBroker:
    """Apache RocketMQ 4.9.7 with its whole compiler and a heap that does not hold it back."""

    name = "java"

    def __init__(self, home: Path, flush: str) -> None:
        self._home = home
        settings = {**JAVA_SETTINGS, "flushDiskType": flush}
        self._cluster = anchor.JavaCluster(
            anchor.fetch_jars(), home, settings, heap=JAVA_HEAP, openings=("-XX:+UseG1GC",)
        )
        for server in (self._cluster.namesrv_server, self._cluster.broker_server):
            server.command.remove("-XX:TieredStopAtLevel=1")  # that is for short tests

    @property
    def port(self) -> int:
        return int(self._cluster.broker.rpartition(":")[2])

    @property
    def namesrv(self) -> str:
        return self._cluster.namesrv

    @property
    def pid(self) -> int:
        return self._cluster.broker_server.pid

    def start(self) -> None:
        self._cluster.start()

    def stop(self) -> None:
        self._cluster.stop()
        shutil.rmtree(self._home)


async def run_program(command: Sequence[str], what: str) -> dict[str, float]:
    """The JSON line that a program prints. Raises BenchmarkFailed, naming ``what`` it ran for."""
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    output, _ = await process.communicate()
    if process.returncode != 0:
        raise BenchmarkFailed(f"{what}: {command[0]} ended with {process.returncode}")
    found: dict[str, float] = json.loads(output)
    return found


@dataclass(slots=True)
class Bench:
    """Two running brokers, the load generator, and what a case leaves running (``stack``)."""

    load_path: Path
    seconds: float
    brokers: Sequence[Broker]
    remoting: Remoting
    topics: dict[str, set[str]] = field(default_factory=dict)
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def load(self, broker: Broker, kind: str, topic: str, *words: object) -> dict[str, float]:
        """One run of the load generator, corrected for the time that dispatch took behind it."""
        await self.topic(broker, topic)
        before = await self.stored(broker, topic)
        result = await self.run(broker, kind, topic, *words)
        if result["errors"]:
            raise BenchmarkFailed(f"{broker.name} {kind}: {result['errors']} errors")
        if kind != "pull":
            drain_s = await self._drain(broker, topic, before + int(result["stored"]))
            result["messages_per_s"] *= self.seconds / (self.seconds + drain_s)
            result["drain_s"] = drain_s
        return result

    async def run(self, broker: Broker, kind: str, topic: str, *words: object) -> dict[str, float]:
        """One run of the load generator, whatever the broker still has to do behind it."""
        command = [str(self.load_path), kind, str(broker.port), topic, str(QUEUES)]
        return await run_program([*command, *map(str, words)], f"{broker.name} {kind}")

    async def _drain(self, broker: Broker, topic: str, wanted: int) -> float:
        begin = time.perf_counter()
        while (found := await self.stored(broker, topic)) < wanted:
            took_s = time.perf_counter() - begin
            if took_s > DRAIN_LIMIT_S:
                raise BenchmarkFailed(
                    f"{broker.name}: dispatch is {wanted - found} messages behind"
                )
            await asyncio.sleep(0.005)
        return time.perf_counter() - begin

    async def topic(self, broker: Broker, name: str) -> None:
        """Create a topic on a broker, once."""
        if name not in self.topics.setdefault(broker.name, set()):
            self.topics[broker.name].add(name)
            header = h.CreateTopic(name, "TBW102", QUEUES, QUEUES, 6, "SINGLE_TAG", 0, "false")
            await self._call(broker, RequestCode.UPDATE_AND_CREATE_TOPIC, header)

    async def stored(self, broker: Broker, topic: str) -> int:
        """Messages of a topic that consumers can see."""
        total = 0
        for queue_id in range(QUEUES):
            header = h.TopicQueue(topic, queue_id)
            total += int(await self._call(broker, RequestCode.GET_MAX_OFFSET, header, "offset"))
        return total

    async def _call(self, broker: Broker, code: int, header: h.Header, field_name: str = "") -> str:
        address = f"127.0.0.1:{broker.port}"
        response = await self.remoting.call(address, code, header, timeout_ms=TIMEOUT_MS)
        return response.ext.get(field_name, "")


Measure = Callable[[Bench, Broker], Awaitable[float]]
#: Makes the Java broker fast, in so many seconds.
WarmUp = Callable[[Bench, float], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Case:
    """One line of the comparison: ``target`` bounds ours / Java, from below for rates; of a case
    that is ``ours_only`` it bounds the figure itself."""

    name: str
    unit: str
    target: float
    measure: Measure
    flush: str = "ASYNC_FLUSH"
    ours_only: bool = False


async def _single(bench: Bench, broker: Broker) -> float:
    found = await bench.load(broker, "send", "single", 8, 64, 128, bench.seconds)
    return found["messages_per_s"]


async def _latency(bench: Bench, broker: Broker) -> float:
    found = await bench.load(broker, "send", "latency", 1, 1, 1024, bench.seconds)
    return found["p50_us"]


async def _batch(bench: Bench, broker: Broker) -> float:
    found = await bench.load(broker, "batch", "batch", 8, 4, 128, bench.seconds, 64)
    return found["messages_per_s"]


async def _pull(bench: Bench, broker: Broker) -> float:
    await bench.topic(broker, "pull")
    if await bench.stored(broker, "pull") == 0:
        await bench.load(broker, "send", "pull", 8, 64, 128, bench.seconds)
    return (await bench.load(broker, "pull", "pull", 8, 32, bench.seconds))["messages_per_s"]


async def _fairness(bench: Bench, broker: Broker) -> float:
    await bench.topic(broker, "greedy")
    greedy = asyncio.create_task(
        bench.run(broker, "send", "greedy", 16, 64, 128, bench.seconds + 1)
    )
    await asyncio.sleep(0.5)
    modest = await bench.load(broker, "send", "modest", 1, 1, 128, bench.seconds)
    await greedy
    return modest["p99_us"]


CASES: Final = (
    Case("single 128 B, 8 x 64 in flight", "messages/s", 0.8, _single),
    Case("single 1 KiB, one in flight", "p50 us", 0.6, _latency),
    Case("batch 64 x 128 B", "messages/s", 0.6, _batch),
    Case("pull, 32 a request", "messages/s", 1.0, _pull),
    Case("p99 beside 16 pipelining connections", "us", 1.0, _fairness),
    Case("SYNC_FLUSH, 8 x 64 in flight", "messages/s", 0.8, _single, "SYNC_FLUSH"),
    Case("SYNC_FLUSH, one in flight", "p50 us", 0.3, _latency, "SYNC_FLUSH"),
)
STARTS: Final = ("start", "memory")
IDLE_S: Final = 3


async def compare(
    cases: Sequence[Case],
    load_path: Path,
    *,
    rounds: int,
    seconds: float,
    warm: float,
    warm_up: WarmUp | None = None,
) -> None:
    """Run the cases that share a flush policy on one pair of brokers, and print their lines."""
    for flush in dict.fromkeys(case.flush for case in cases):
        with tempfile.TemporaryDirectory(prefix="cometmq-bench-") as home:
            brokers = (OurBroker(Path(home, "ours"), flush), JavaBroker(Path(home, "java"), flush))
            tasks = Tasks()
            remoting = Remoting(clock=SystemClock(), tasks=tasks)
            bench = Bench(load_path, seconds, brokers, remoting)
            try:
                for broker in brokers:
                    broker.start()
                await (warm_up or _warm_up)(bench, warm)
                for case in cases:
                    if case.flush == flush:
                        await _compare_case(bench, case, rounds)
            finally:
                await bench.stack.aclose()
                await remoting.close()
                await tasks.close()
                for broker in brokers:
                    broker.stop()


async def _warm_up(bench: Bench, warm_s: float) -> None:
    java = bench.brokers[1]
    for kind, words, share in (
        ("send", (8, 64, 128), 0.6),
        ("batch", (4, 4, 128), 0.2),
        ("pull", (8, 32), 0.2),
    ):
        await bench.topic(java, "warm")
        more = (64,) if kind == "batch" else ()
        if warm_s * share >= 1:
            await bench.run(java, kind, "warm", *words, warm_s * share, *more)


async def _compare_case(bench: Bench, case: Case, rounds: int) -> None:
    found: dict[str, list[float]] = {broker.name: [] for broker in bench.brokers}
    problems: list[str] = []
    brokers = bench.brokers[:1] if case.ours_only else bench.brokers
    for number in range(rounds):
        order = brokers if number % 2 == 0 else tuple(reversed(brokers))
        for broker in order:
            try:
                found[broker.name].append(await case.measure(bench, broker))
            except BenchmarkFailed as error:
                problems.append(str(error))
    _print(case.name, case.unit, found["cometmq"], found["java"], case.target, problems)


def _print(
    name: str,
    unit: str,
    ours: Sequence[float],
    java: Sequence[float],
    target: float,
    problems: Sequence[str] = (),
) -> None:
    medians = [statistics.median(values) if values else None for values in (ours, java)]
    line: dict[str, object] = {
        "case": name,
        "unit": unit,
        "ours": medians[0],
        "java": medians[1],
        "ratio": round(medians[0] / medians[1], 3) if medians[0] and medians[1] else None,
        "target": target,
        "rounds": [list(ours), list(java)],
    }
    if problems:
        line["not_counted"] = list(problems)
    print(json.dumps(line), flush=True)


def starts(load_path: Path, rounds: int) -> None:
    """From the start of the process to its first acknowledged message, and memory when idle."""
    times: dict[str, list[float]] = {"cometmq": [], "java": []}
    memory: dict[str, list[float]] = {"cometmq": [], "java": []}
    makers: tuple[Callable[[Path, str], Broker], ...] = (OurBroker, JavaBroker)
    for make in makers:
        for number in range(rounds if make is OurBroker else max(1, rounds // 2)):
            with tempfile.TemporaryDirectory(prefix="cometmq-bench-") as home:
                broker = make(Path(home, "node"), "ASYNC_FLUSH")
                begin = time.perf_counter()
                broker.start()
                words = [str(load_path), "send", str(broker.port), "TBW102", "1", "1", "1", "1"]
                subprocess.run([*words, "0.001"], check=True, stdout=subprocess.DEVNULL)
                times[broker.name].append(round(time.perf_counter() - begin, 3))
                if number == 0:
                    time.sleep(IDLE_S)
                    memory[broker.name].append(_anonymous_mib(broker.pid))
                broker.stop()
    _print("start to first acknowledged message", "s", times["cometmq"], times["java"], 0.1)
    _print("idle memory (RssAnon)", "MiB", memory["cometmq"], memory["java"], 1.0)


def _anonymous_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return round(int(line.split()[1]) / 1024, 1)
    raise BenchmarkFailed(f"no RssAnon of process {pid}")


@contextmanager
def awake(wanted: bool) -> Iterator[None]:
    """Spin on every processor, in the class that runs only when nothing else wants to.

    With one request in flight both brokers mostly sleep, and a halted virtual processor takes 40 us
    and more to wake up, twice a request: more than either broker needs for it.
    """
    code = "import os; os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\nwhile True: pass"
    count = (os.cpu_count() or 1) if wanted else 0
    spinners = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(count)]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


def build_load(directory: Path) -> Path:
    """Compile the load generator. Raises CalledProcessError, FileNotFoundError without gcc."""
    path = directory / "load"
    subprocess.run(["gcc", "-O2", "-o", path, HERE / "load" / "load.c"], check=True)
    return path


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--case", action="append", help="only cases whose name holds this text")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument(
        "--awake",
        action="store_true",
        help="keep idle processors awake: measures brokers, not how a virtual machine wakes up",
    )
    parser.add_argument("--warm", type=float, default=60.0, help="seconds of load on Java first")
    words = parser.parse_args()
    if (problem := anchor.missing_tool()) is not None:
        print(f"the comparison needs the Java broker: {problem}", file=sys.stderr)
        return 2
    wanted = words.case or [""]
    cases = [case for case in CASES if any(text in case.name for text in wanted)]
    with awake(words.awake), tempfile.TemporaryDirectory(prefix="cometmq-load-") as home:
        load_path = build_load(Path(home))
        if not words.case or set(words.case) & set(STARTS):
            starts(load_path, words.rounds)
        run(compare(cases, load_path, rounds=words.rounds, seconds=words.seconds, warm=words.warm))
    return 0


if __name__ == "__main__":
    sys.exit(main())
