"""Latency of one client beside crowds of clients that misbehave, and without them.

    python -m benchmarks.crowds [--kind slow|idle|unread|flood ...] [--rounds 5] [--seconds 5]

``slow`` are 1 000 connections that send a request a byte a second, ``idle`` 10 000 that send
nothing, ``unread`` 1 000 that ask for 32 messages of 1 KiB each second and never read an answer,
``flood`` the same with 25 requests a second, far beyond what the broker can answer. A connection
that the broker closes is opened again. The crowd is a process of its own, so that its descriptors
are not the broker's. The client sends 1 KiB messages, one at a time. Rounds with and without the
crowd take turns on one broker; the table has the medians, the ratio of the p99, the broker's memory
(RssAnon) and how often its limits were reached (docs/limits.md).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import resource
import select
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.loading import BUILD, build_load, end_cleanly, run_program
from benchmarks.servers import anonymous_mib
from cometmq.admin.node import NodeProcess
from cometmq.core.clock import SystemClock
from cometmq.net.client import Remoting
from cometmq.net.eventloop import run
from cometmq.net.tasks import Tasks
from cometmq.protocol import headers as h
from cometmq.protocol.bodies import KvTable
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.fastjson import parse_json
from cometmq.protocol.fields import to_ext
from cometmq.protocol.frame import encode_head

COUNTS: Final[Mapping[str, int]] = {
    "slow": 1_000, "idle": 10_000, "unread": 1_000, "flood": 1_000,
}  # fmt: skip
#: Requests a second of a connection that does not read.
ASKS: Final[Mapping[str, int]] = {"unread": 1, "flood": 25}
TOPIC: Final = "crowd"
FILLED: Final = "filled"
#: Number of ticks in a second; each connection has its turn in one of them.
TICKS: Final = 20
RECEIVE_BUFFER_BYTES: Final = 64 << 10
_BEAT: Final = encode_head(code=RequestCode.HEART_BEAT, opaque=1, flag=0, ext={"text": "x" * 500})
_TIMEOUT_MS: Final = 30_000


def pull() -> bytes:
    """Return a request for the first 32 messages of FILLED."""
    header = h.PullMessage(
        consumer_group="crowd", topic=FILLED, queue_id=0, queue_offset=0, max_msg_nums=32,
        sys_flag=4, commit_offset=0, suspend_timeout_millis=0, sub_version=0, subscription="*",
        expression_type="TAG",
    )  # fmt: skip
    return encode_head(code=RequestCode.PULL_MESSAGE, opaque=2, flag=0, ext=to_ext(header))


class Crowd:
    """Connections of one kind to a port; :meth:`tick` lets a part of them act."""

    def __init__(self, kind: str, count: int, port: int) -> None:
        self._kind = kind
        self._port = port
        #: What a connection sends in its turn, and what is left of it for the next one.
        self._asks = pull() * ASKS.get(kind, 0)
        self._left = [b""] * count
        self._sockets: list[socket.socket | None] = [None] * count
        self._sent = [0] * count
        self.opened = 0

    def open_all(self) -> None:
        """Open all connections; wait for each, so that none is refused for want of a backlog."""
        for number in range(len(self._sockets)):
            self._open(number)

    def close(self) -> None:
        """Close all connections."""
        for number in range(len(self._sockets)):
            self._close(number)

    def tick(self, turn: int) -> None:
        """Let the connections act whose turn it is."""
        for number in range(turn % TICKS, len(self._sockets), TICKS):
            one = self._sockets[number]
            try:
                if one is None or self._is_closed(one):
                    self._open(number)
                elif self._kind == "slow":
                    at = self._sent[number]
                    one.send(_BEAT[at % len(_BEAT) : at % len(_BEAT) + 1])
                    self._sent[number] = at + 1
                elif self._asks:
                    asks = self._left[number] or self._asks
                    self._left[number] = asks[one.send(asks) :]
            except BlockingIOError:
                pass  # the broker does not read it for now
            except OSError:
                self._close(number)

    def _is_closed(self, one: socket.socket) -> bool:
        if self._asks:
            return False  # a send fails
        try:
            return one.recv(4096) == b""
        except BlockingIOError:
            return False

    def _open(self, number: int) -> None:
        self._close(number)
        one = socket.socket()
        if self._asks:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        one.connect(("127.0.0.1", self._port))
        one.setblocking(False)
        self._sockets[number] = one
        self._sent[number] = 0
        self._left[number] = b""
        self.opened += 1

    def _close(self, number: int) -> None:
        one = self._sockets[number]
        if one is not None:
            one.close()
            self._sockets[number] = None


def act(kind: str, count: int, port: int) -> None:
    """Be the crowd: print a line when all are connected, and stay until standard input ends."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    crowd = Crowd(kind, count, port)
    crowd.open_all()
    print("ready", flush=True)
    turn = 0
    while not select.select([sys.stdin], [], [], 1 / TICKS)[0]:
        crowd.tick(turn)
        turn += 1
    print(crowd.opened, flush=True)


@contextlib.asynccontextmanager
async def crowd_of(kind: str, count: int, port: int) -> AsyncIterator[None]:
    """Run a crowd in a process of its own inside the block."""
    words = ["-m", "benchmarks.crowds", "--crowd", kind, str(count), str(port)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *words, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert await process.stdout.readline() == b"ready\n", "the crowd did not connect"
        yield
    finally:
        process.stdin.close()
        await process.wait()


@dataclass(slots=True)
class Rounds:
    """Waits of the client in us, without and with a crowd, and the broker's memory at its most."""

    kind: str
    without: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)
    memory_mib: float = 0.0
    hits: dict[str, int] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        """The p99 with the crowd against that without."""
        return statistics.median(self.beside) / statistics.median(self.without)

    def line(self) -> str:
        """Return a row of the table."""
        hits = ", ".join(f"{name} {count}" for name, count in self.hits.items()) or "none"
        return (
            f"| {COUNTS[self.kind]} {self.kind} | {statistics.median(self.without):.0f} | "
            f"{statistics.median(self.beside):.0f} | {self.ratio:.2f} | {self.memory_mib:.0f} | "
            f"{hits} |"
        )


async def measure(
    node: NodeProcess, kind: str, count: int, rounds: int, seconds: float, load: Path
) -> Rounds:
    """Measure rounds without and with a crowd by turns."""
    port = int(node.broker.rpartition(":")[2])
    found = Rounds(kind)
    before = await limit_hits(node.broker)

    async def p99_us() -> float:
        words = ["send", str(port), TOPIC, "4", "1", "1", "1024", str(seconds)]
        return (await run_program([str(load), *words], "the client"))["p99_us"]

    for _ in range(rounds):
        found.without.append(await p99_us())
        async with crowd_of(kind, count, port):
            watch = asyncio.ensure_future(_watch_memory(node, found))
            try:
                await asyncio.sleep(2)  # the first turns of the crowd
                found.beside.append(await p99_us())
            finally:
                watch.cancel()
        await asyncio.sleep(2)  # the crowd's connections end
    after = await limit_hits(node.broker)
    found.hits = {name: after[name] - before[name] for name in after if after[name] > before[name]}
    return found


async def _watch_memory(node: NodeProcess, found: Rounds) -> None:
    assert node.process is not None
    while True:
        found.memory_mib = max(found.memory_mib, anonymous_mib(node.process.pid))
        await asyncio.sleep(0.2)


async def limit_hits(broker: str) -> dict[str, int]:
    """Return how often each limit of a broker was reached."""
    tasks = Tasks()
    remoting = Remoting(clock=SystemClock(), tasks=tasks)
    try:
        code = RequestCode.GET_BROKER_RUNTIME_INFO
        answer = await remoting.request(broker, code, None, timeout_ms=_TIMEOUT_MS)
        table = parse_json(answer.body, KvTable).table
        prefix = "limitHits_"
        return {
            key.removeprefix(prefix): int(text)
            for key, text in table.items()
            if key.startswith(prefix)
        }
    finally:
        await remoting.close()
        await tasks.close()


async def fill(node: NodeProcess, load: Path) -> None:
    """Store messages for the pulls, and run the client once."""
    port = node.broker.rpartition(":")[2]
    for topic, queues in ((FILLED, "1"), (TOPIC, "4")):
        words = ["send", port, topic, queues, "1", "1", "1024", "1"]
        await run_program([str(load), *words], "the messages to pull")


async def compare(kinds: Sequence[str], rounds: int, seconds: float) -> int:
    """Measure all kinds and print the table; return 1 if a ratio is over 2."""
    BUILD.mkdir(parents=True, exist_ok=True)
    load, bad = build_load(BUILD), False
    print("| crowd | p99 without, us | p99 beside it, us | ratio | RssAnon, MiB | limits reached |")
    print("|---|---|---|---|---|---|")
    for kind in kinds:
        with tempfile.TemporaryDirectory(prefix="crowds-", dir=BUILD) as name:
            node = NodeProcess(Path(name) / "store")
            node.start()
            try:
                await fill(node, load)
                found = await measure(node, kind, COUNTS[kind], rounds, seconds, load)
            finally:
                node.terminate()
        print(found.line(), flush=True)
        bad = bad or found.ratio > 2
    return int(bad)


def main(words: Sequence[str]) -> int:
    """Compare, or be a crowd."""
    parser = argparse.ArgumentParser(prog="benchmarks.crowds")
    parser.add_argument("--kind", action="append", choices=COUNTS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--crowd", nargs=3, metavar=("KIND", "COUNT", "PORT"))
    options = parser.parse_args(words)
    if options.crowd:
        kind, count, port = options.crowd
        act(kind, int(count), int(port))
        return 0
    end_cleanly()
    return run(compare(options.kind or list(COUNTS), options.rounds, options.seconds))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
