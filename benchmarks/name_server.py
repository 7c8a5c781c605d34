"""A name server under many brokers with many topics, while clients poll routes.

    .venv/bin/python -m benchmarks.name_server [--brokers 50] [--topics 10000] [--pollers 1000]
                                               [--steady] [--server "WORDS THAT START ANOTHER ONE"]

Prints one JSON line per case. ``answer_ms`` are the times that pollers, each asking once a second,
wait for a route. ``register_ms`` is the time that a broker waits, ``cpu_ms`` the processor time
that the name server uses in the case. With --steady all brokers register once, and only the case
without registrations is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final, cast

from cometmq.net.eventloop import run
from cometmq.protocol import headers as h
from cometmq.protocol.bodies import DataVersion, TopicConfig
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.connection import Connection
from cometmq.protocol.registerbody import body_crc32, register_body_pieces

#: A poller that asks once a second represents 30 clients, which ask every 30 s.
POLL_S: Final = 1.0
CLOCK_TICKS: Final = os.sysconf("SC_CLK_TCK")


def frame(code: int, header: h.Header, body: bytes = b"") -> bytes:
    """Return an encoded request."""
    connection: Connection[None] = Connection()
    _, head = connection.encode_request(code, header, None, 0, body_bytes=len(body))
    return head + body


def registration(broker: int, topics: int, *, version: int, compressed: bool) -> bytes:
    """Return the request of a broker that registers all its topics."""
    names = [topic_name(number) for number in range(topics)]
    table = {name: TopicConfig(name, 8, 8) for name in names}
    pieces = register_body_pieces(DataVersion(version, 1), table, [], compressed=compressed)
    body = b"".join(pieces)
    header = h.RegisterBroker(
        f"broker-{broker:03d}",
        f"10.0.0.{broker}:10911",
        "cluster",
        f"10.0.0.{broker}:10912",
        0,
        compressed=compressed,
        body_crc32=body_crc32(body),
    )
    return frame(RequestCode.REGISTER_BROKER, header, body)


def topic_name(number: int) -> str:
    return f"topic-of-some-service-{number:05d}"


class Client(asyncio.Protocol):
    """A connection with one request at a time."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._answer: asyncio.Future[int] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        size = 4 + int.from_bytes(self._buffer[:4], "big")
        if len(self._buffer) >= size > 4:
            del self._buffer[:size]
            if self._answer is not None and not self._answer.done():
                self._answer.set_result(size)

    async def ask(self, request: bytes) -> float:
        """Send a request. Return the milliseconds until its response."""
        self._answer = asyncio.get_running_loop().create_future()
        started = time.perf_counter()
        self.transport.write(request)
        await self._answer
        return (time.perf_counter() - started) * 1000


class Load:
    """One name server, and the load on it."""

    def __init__(self, address: tuple[str, int], pid: int, options: argparse.Namespace) -> None:
        self._address = address
        self._pid = pid
        self._options = options
        self._waits_ms: list[float] = []

    async def connect(self) -> Client:
        loop = asyncio.get_running_loop()
        _, client = await loop.create_connection(Client, *self._address)
        return client

    def cpu_ms(self) -> float:
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * 1000 / CLOCK_TICKS

    def memory_mb(self) -> int:
        for line in Path(f"/proc/{self._pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) // 1024
        raise AssertionError("no RssAnon")

    async def poll(self, number: int) -> None:
        client = await self.connect()
        chance = random.Random(number)
        # Each poller keeps its own phase within the second, even after a delay.
        due = time.perf_counter() + chance.random() * POLL_S
        while True:
            await asyncio.sleep(max(0, due - time.perf_counter()))
            due += POLL_S
            topic = topic_name(chance.randrange(self._options.topics))
            request = frame(RequestCode.GET_ROUTEINFO_BY_TOPIC, h.Topic(topic))
            self._waits_ms.append(await client.ask(request))

    @asynccontextmanager
    async def case(self, name: str) -> AsyncIterator[dict[str, object]]:
        """Collect the pollers' times while the block runs, and print them."""
        self._waits_ms.clear()
        result: dict[str, object] = {}
        cpu_ms = self.cpu_ms()
        yield result
        cpu_ms = self.cpu_ms() - cpu_ms
        waits = sorted(self._waits_ms)
        result["cpu_ms"] = round(cpu_ms)
        result["memory_mb"] = self.memory_mb()
        if len(waits) > 1:
            result["answer_ms"] = {
                "p50": round(statistics.median(waits), 2),
                "p99": round(waits[len(waits) * 99 // 100], 2),
                "max": round(waits[-1], 2),
                "count": len(waits),
            }
        print(json.dumps({"benchmark": "name_server", "case": name, **result}), flush=True)

    async def register_all(self, brokers: list[Client], requests: list[bytes]) -> dict[str, float]:
        waits = sorted(await asyncio.gather(*map(Client.ask, brokers, requests)))
        return {"p50": round(statistics.median(waits), 1), "max": round(waits[-1], 1)}

    async def _steady(self, pollers: list[asyncio.Task[None]]) -> None:
        await asyncio.sleep(POLL_S)
        async with self.case("nobody registers"):
            await asyncio.sleep(10 * POLL_S)
        for task in pollers:
            task.cancel()

    async def measure(self) -> None:
        options = self._options
        brokers = [await self.connect() for _ in range(options.brokers)]

        def requests(version: int, *, compressed: bool = False) -> list[bytes]:
            return [
                registration(number, options.topics, version=version, compressed=compressed)
                for number in range(options.brokers)
            ]

        pollers = [asyncio.create_task(self.poll(number)) for number in range(options.pollers)]
        await asyncio.sleep(2 * POLL_S)
        if options.steady:
            await self.register_all(brokers, requests(1))
            await self._steady(pollers)
            return
        sets = {
            "new": requests(1),
            "the same again": requests(1),
            "changed": requests(2),
            "changed, compressed": requests(3, compressed=True),
            "the same again, compressed": requests(3, compressed=True),
        }
        async with self.case("one broker registers, new") as result:
            result["register_ms"] = await self.register_all(brokers[:1], sets["new"][:1])
            await asyncio.sleep(POLL_S)
        for name, some in sets.items():
            async with self.case(f"all brokers register at once, {name}") as result:
                result["register_ms"] = await self.register_all(brokers, some)
                await asyncio.sleep(POLL_S)
        await self._steady(pollers)
        async with self.case("one client asks again and again") as result:
            client, waits = await self.connect(), []
            for number in range(5_000):
                topic = topic_name(number % options.topics)
                waits.append(
                    await client.ask(frame(RequestCode.GET_ROUTEINFO_BY_TOPIC, h.Topic(topic)))
                )
            result["ask_ms_p50"] = round(statistics.median(waits), 3)


@contextmanager
def server(words: list[str]) -> Iterator[tuple[tuple[str, int], int]]:
    """Run a name server as a child process. Provide its address and its process id."""
    with subprocess.Popen(words, stdout=subprocess.PIPE, stdin=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            ready = process.stdout.readline().decode().strip()
            host, _, port = ready.rpartition("=")[2].rpartition(":")
            yield (host, int(port)), process.pid
        finally:
            process.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.name_server")
    parser.add_argument("--brokers", type=int, default=50)
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--pollers", type=int, default=1_000)
    parser.add_argument("--server", type=shlex.split, default=[sys.executable, "-m", "cometmq.cli"])
    parser.add_argument("--steady", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        words = [*options.server, "namesrv", "--log-level", "error", "-p", "0"]
        words += ["--set", f"kvConfigPath={folder}/kv.json"]
        with server(words) as (address, pid):
            run(Load(address, pid, options).measure())


if __name__ == "__main__":
    main()
