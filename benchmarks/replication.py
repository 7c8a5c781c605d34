"""Masters with a slave each: CometMQ's pair beside a pair of the Java broker, in one run.

    .venv/bin/python -m benchmarks.replication copies  [--mebibytes 512] [--body 1024]
    .venv/bin/python -m benchmarks.replication sockets [--rounds 3] [--mebibytes 512]

The rate of sends that wait for the slave is a case of benchmarks.compare, with the same pairs.

``copies`` stores messages of BODY bytes on a master without a slave. Then each round starts a new
slave with an empty store, and measures the time from the first bytes in the slave's log files to
the last: ``bytes_per_s`` and ``copied_s``. From the same start it also measures the time until the
slave has reported all of them to its master (``reported_s``: CometMQ checks every record first, a
Java slave reports what its files have) and until its queues and index have them (``dispatched_s``),
each with the slave's processor time up to there.

``sockets`` is an upper bound for any copy: the same number of bytes from a file through a loopback
socket into a file, by two processes that do nothing else. ``copies`` measures it too.

Prints one JSON line per case.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

from benchmarks.loading import BenchmarkFailed, need_tools
from benchmarks.rounds import Bench, Load, RocketServer, RocketTarget
from benchmarks.servers import JAVA_HEAP, JAVA_SETTINGS, QUICK_COMPILER, cpu_s
from cometmq.core.clock import SystemClock
from cometmq.net.client import Remoting
from cometmq.net.eventloop import run
from cometmq.net.tasks import Tasks
from cometmq.protocol.bodies import KvTable
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.fastjson import parse_json
from tests.cluster.servers import BrokerProcess, NamesrvProcess
from tests.compat import anchor

#: The file sizes of a broker in production; a store of this benchmark fits into one file.
FILES: Final = {**JAVA_SETTINGS, "diskMaxUsedSpaceRatio": "95"}
#: A request for its progress costs a slave a millisecond.
POLL_S: Final = 0.025
#: Reading its files costs the slave nothing.
LOOK_S: Final = 0.002
WAIT_S: Final = 60
SOCKET_BYTES: Final = 1 << 18


class Pair(RocketServer, Protocol):
    """A master and its slave. The load is sent to the master."""

    name: str

    @property
    def slave_address(self) -> str:
        """Address of the slave."""
        ...

    @property
    def slave_pid(self) -> int:
        """Process id of the slave."""
        ...

    @property
    def slave_log(self) -> Path:
        """Folder of the slave's log files."""
        ...

    def start_slave(self) -> None:
        """Start the slave on its existing store."""
        ...

    def drop_slave(self) -> None:
        """End the slave and remove its store."""
        ...


class OurPair:
    """Processes of CometMQ: a name server, a master, a slave."""

    name = "cometmq"

    def __init__(self, home: Path, role: str) -> None:
        self._namesrv = NamesrvProcess(home)
        self.namesrv = self._namesrv.namesrv
        self._master = BrokerProcess(home, self.namesrv, settings={**FILES, "brokerRole": role})
        self._slave = BrokerProcess(home, self.namesrv, number=1, settings=FILES)

    @property
    def port(self) -> int:
        return int(self._master.broker.rpartition(":")[2])

    @property
    def pid(self) -> int:
        assert self._master.process is not None
        return self._master.process.pid

    @property
    def slave_address(self) -> str:
        return self._slave.broker

    @property
    def slave_pid(self) -> int:
        assert self._slave.process is not None
        return self._slave.process.pid

    @property
    def slave_log(self) -> Path:
        return self._slave.store / "commitlog"

    def start(self) -> None:
        self._namesrv.start()
        self._master.start()

    def kill(self) -> None:
        for server in (self._slave, self._master, self._namesrv):
            server.kill()

    def start_slave(self) -> None:
        self._slave.start()

    def drop_slave(self) -> None:
        self._slave.kill()
        shutil.rmtree(self._slave.store)


class JavaPair:
    """Two Java brokers and a name server."""

    name = "java"

    def __init__(self, home: Path, role: str) -> None:
        need_tools("java", "mvn")
        jars, openings = anchor.fetch_jars(), ("-XX:+UseG1GC",)
        self._master = anchor.JavaCluster(
            jars, home / "java-0", FILES | {"brokerRole": role}, heap=JAVA_HEAP, openings=openings
        )
        self.namesrv = self._master.namesrv
        self._slave = anchor.JavaCluster(
            jars,
            home / "java-1",
            FILES | {"brokerRole": "SLAVE", "brokerId": "1"},
            heap=JAVA_HEAP,
            openings=openings,
            namesrv_seen_by_broker=self.namesrv,
        )
        for cluster in (self._master, self._slave):
            cluster.broker_server.command.remove(QUICK_COMPILER)

    @property
    def port(self) -> int:
        return int(self._master.broker.rpartition(":")[2])

    @property
    def pid(self) -> int:
        return self._master.broker_server.pid

    @property
    def slave_address(self) -> str:
        return self._slave.broker

    @property
    def slave_pid(self) -> int:
        return self._slave.broker_server.pid

    @property
    def slave_log(self) -> Path:
        return self._slave.store / "commitlog"

    def start(self) -> None:
        self._master.start()

    def kill(self) -> None:
        for cluster in (self._slave, self._master):
            cluster.kill()

    def start_slave(self) -> None:
        self._slave.broker_server.start()

    def drop_slave(self) -> None:
        self._slave.kill()
        shutil.rmtree(self._slave.store)


MAKERS: Final[tuple[type[OurPair] | type[JavaPair], ...]] = (OurPair, JavaPair)


async def log_end(remoting: Remoting, address: str) -> tuple[int, int]:
    """Return the end of a broker's log, and the number of its bytes that are in no queue yet; 0 and
    0 while the broker does not answer."""
    try:
        response = await remoting.call(
            address, RequestCode.GET_BROKER_RUNTIME_INFO, None, timeout_ms=1_000
        )
    except Exception:
        return 0, 0
    table = parse_json(response.body, KvTable).table
    return int(table["commitLogMaxOffset"]), int(table["dispatchBehindBytes"])


def stands_in(log: Path, offset: int) -> bool:
    """Return whether the first file of a log has bytes other than zeros at an offset."""
    try:
        with (log / f"{0:020}").open("rb", buffering=0) as file:
            file.seek(offset)
            return any(file.read(4))
    except FileNotFoundError:
        return False


async def until_copied(remoting: Remoting, pair: Pair) -> dict[str, float]:
    """Wait until the slave has all data of the master: in its log files, then reported, then in its
    queues.

    Return the time of each from the first bytes on, and the processor time.
    """
    wanted, _ = await log_end(remoting, f"127.0.0.1:{pair.port}")
    deadline_s = time.perf_counter() + WAIT_S
    took: dict[str, float] = {}
    begin_s, begin_cpu_s, master_cpu_s = 0.0, 0.0, 0.0

    def reached(stage: str) -> None:
        took[f"{stage}_s"] = round(time.perf_counter() - begin_s, 3)
        used_s = cpu_s(pair.slave_pid) - begin_cpu_s
        took[f"{stage}_cpu_s_a_gb"] = round(1e9 * used_s / wanted, 2)

    async def until(holds: Callable[[], Awaitable[bool]], poll_s: float) -> None:
        while not await holds():
            if time.perf_counter() > deadline_s:
                raise BenchmarkFailed(f"{pair.name}: {took} of {wanted} bytes after {WAIT_S} s")
            await asyncio.sleep(poll_s)

    async def begun() -> bool:
        return stands_in(pair.slave_log, 0)

    async def copied() -> bool:
        return stands_in(pair.slave_log, wanted - 4)

    async def reported() -> bool:
        return (await log_end(remoting, pair.slave_address))[0] >= wanted

    async def dispatched() -> bool:
        return not (await log_end(remoting, pair.slave_address))[1]

    await until(begun, LOOK_S)
    begin_s = time.perf_counter()
    begin_cpu_s, master_cpu_s = cpu_s(pair.slave_pid), cpu_s(pair.pid)
    await until(copied, LOOK_S)
    reached("copied")
    took["master_cpu_s_a_gb"] = round(1e9 * (cpu_s(pair.pid) - master_cpu_s) / wanted, 2)
    await until(reported, POLL_S)
    reached("reported")
    await until(dispatched, POLL_S)
    reached("dispatched")
    return {"bytes_per_s": round(wanted / took["copied_s"]), "bytes": wanted, **took}


async def copies(
    bench: Bench,
    remoting: Remoting,
    targets: Sequence[RocketTarget],
    pairs: Sequence[Pair],
    words: argparse.Namespace,
) -> None:
    """Measure the rate at which a new slave receives the log."""
    wanted = words.mebibytes << 20
    for target in targets:
        await bench.topic(target, "history")
        while (await log_end(remoting, target.address))[0] < wanted:
            await bench.run(target, Load("send", "history", 8, 64, words.body, 1.0))
    found: dict[str, list[float]] = {pair.name: [] for pair in pairs}
    facts: dict[str, list[dict[str, float]]] = {pair.name: [] for pair in pairs}
    plain, plain_cpu = [], []
    for number in range(words.rounds):
        before_s = cpu_s(os.getpid())
        plain.append(socket_copy(wanted))
        plain_cpu.append(round(1e9 * (cpu_s(os.getpid()) - before_s) / wanted, 2))
        for pair in pairs if number % 2 == 0 else reversed(pairs):
            pair.start_slave()
            copied = await until_copied(remoting, pair)
            pair.drop_slave()
            found[pair.name].append(copied["bytes_per_s"])
            facts[pair.name].append(copied)
    report("catch-up of a new slave, bytes a second", 1.0, found, rounds_in_full=facts)
    report(
        "catch-up beside a socket copy, bytes a second",
        0.6,
        {"cometmq": found.get("cometmq", [0.0]), "socket": plain},
        socket_cpu_s_a_gb=plain_cpu,
    )


def socket_copy(size_bytes: int) -> float:
    """Return bytes per second of a plain copy: file, loopback socket, file; two processes."""
    with tempfile.TemporaryDirectory(prefix="cometmq-socket-") as home:
        source, target = Path(home, "source"), Path(home, "target")
        block = os.urandom(1 << 20)
        with source.open("wb") as file:
            for _ in range(size_bytes >> 20):
                file.write(block)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            command = [sys.executable, "-m", "benchmarks.replication", "give", str(source)]
            with subprocess.Popen([*command, str(listener.getsockname()[1])]):
                connection, _ = listener.accept()
                with connection, target.open("wb", buffering=0) as file:
                    buffer = memoryview(bytearray(SOCKET_BYTES))
                    begin_s = time.perf_counter()
                    while count := connection.recv_into(buffer):
                        file.write(buffer[:count])
                    return size_bytes / (time.perf_counter() - begin_s)


def give(path: str, port: str) -> None:
    """Send a file to the other end of a plain copy."""
    buffer = memoryview(bytearray(SOCKET_BYTES))
    with (
        Path(path).open("rb", buffering=0) as file,
        socket.create_connection(("127.0.0.1", int(port))) as connection,
    ):
        while count := file.readinto(buffer):
            connection.sendall(buffer[:count])


def report(case: str, target: float, found: dict[str, list[float]], **more: object) -> None:
    """Print a line: the ratio of CometMQ to the last of ``found``."""
    medians = {name: statistics.median(values) for name, values in found.items()}
    ours, theirs = medians.get("cometmq", 0.0), list(medians.values())[-1]
    line = {"case": case, **medians, "ratio": round(ours / theirs, 3), "target": target}
    print(json.dumps({**line, "rounds": found, **more}), flush=True)


async def measure(words: argparse.Namespace) -> None:
    """Measure copies with a pair of each kind."""
    tasks = Tasks()
    remoting = Remoting(clock=SystemClock(), tasks=tasks)
    with tempfile.TemporaryDirectory(prefix="cometmq-pairs-") as folder:
        home = Path(folder)
        pairs = [make(home, "ASYNC_MASTER") for make in MAKERS if make.name in words.only]
        targets = [RocketTarget(pair.name, home, pair, remoting) for pair in pairs]
        bench = Bench(home, 1.0, targets)
        try:
            for pair in pairs:
                pair.start()
            await copies(bench, remoting, targets, pairs, words)
        finally:
            await remoting.close()
            await tasks.close()
            for pair in pairs:
                pair.kill()


def main() -> int:
    """Run the command line."""
    if sys.argv[1:2] == ["give"]:
        give(*sys.argv[2:])
        return 0
    parser = argparse.ArgumentParser(prog="benchmarks.replication")
    parser.add_argument("case", choices=("copies", "sockets"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", default=("cometmq", "java"), help="pairs that run")
    parser.add_argument("--body", type=int, default=1024, help="bytes a message of copies")
    parser.add_argument("--mebibytes", type=int, default=512)
    words = parser.parse_args()
    if words.case == "sockets":
        rates = [socket_copy(words.mebibytes << 20) for _ in range(words.rounds)]
        print(json.dumps({"case": "socket copy", "bytes_per_s": rates}), flush=True)
        return 0
    if (problem := anchor.missing_tool()) is not None:
        print(f"the comparison needs the Java broker: {problem}", file=sys.stderr)
        return 2
    run(measure(words))
    return 0


if __name__ == "__main__":
    sys.exit(main())
