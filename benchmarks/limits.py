"""The limits of the machine that the table compares CometMQ with.

    python -m benchmarks.limits echo | core

runs a server on a free port, which it prints, until its standard input ends. ``echo`` returns what
it receives, on the same event loop as the broker's. ``core`` splits sends, packs their records and
answers them with the core's own functions, and stores nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast
from zlib import crc32

from benchmarks.figures import LIMIT, OURS, Row
from benchmarks.loading import BUILD, build_program, run_program
from cometmq.net.eventloop import run
from cometmq.protocol.frame import DONE_HEAD, send_pieces
from cometmq.speedups import KnownQueues, QueueState, SendBatch

QUEUES: Final = 8
TOPIC: Final = "limit"
#: Size of a stored record of a 128 B message from the load generator.
RECORD_BYTES: Final = 330
BATCH_BYTES: Final = 64 * (128 + 63)
#: Time that a broker may take in addition to the sync.
SYNC_BESIDE_US: Final = 60.0
_SYNCS: Final = 200
_FILE_MAX_BYTES: Final = 1 << 30
_HEAD, *_REST = send_pieces("DefaultRegion", trace_on=True)
_PIECES: Final = (_HEAD + b"7F00000100002A9F", *_REST, DONE_HEAD)


class Echo(asyncio.Protocol):
    """Returns what it receives."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport is no subclass of asyncio's classes.
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class Core(Echo):
    """Splits, packs and answers plain sends to TOPIC. Any other request ends the connection."""

    def __init__(self) -> None:
        self._rest = b""
        self._queues = KnownQueues()
        for number in range(QUEUES):
            queue = QueueState()
            queue.queue_id = number
            queue.topic_tail = bytes([len(TOPIC)]) + TOPIC.encode()
            self._queues.add(queue)

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        batch = SendBatch(bytes(8), 1 << 30)
        taken, at, state, _ = batch.append(
            data, 0, self._queues, bytes(8), b"", 1 << 22, 0, 1 << 30,
            0, 1 << 20, 1 << 30,
        )  # fmt: skip
        if state:
            self.transport.abort()
            return
        self._rest = data[at:]
        self.transport.write(batch.answers(0, taken, _PIECES))


async def serve(kind: str) -> None:
    """Run the server ``kind``, and print its port, until standard input ends."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server({"echo": Echo, "core": Core}[kind], "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.close()


@contextlib.asynccontextmanager
async def serving(kind: str) -> AsyncIterator[str]:
    """Run such a server in a separate process and provide its port."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.limits", kind),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield (await process.stdout.readline()).decode().strip()
    finally:
        process.stdin.close()
        await process.wait()


def append_rate(folder: Path, seconds: float) -> float:
    """Return the records per second that plain writes of 64 at a time append to a file."""
    block = os.urandom(64 * RECORD_BYTES)
    with (folder / "append").open("wb", buffering=0) as file:
        begin, count = time.perf_counter(), 0
        while (took_s := time.perf_counter() - begin) < seconds:
            if file.write(block) and (count := count + 1) * len(block) % _FILE_MAX_BYTES == 0:
                file.truncate(0)
                file.seek(0)
    (folder / "append").unlink()
    return 64 * count / took_s


def sync_us(folder: Path) -> float:
    """Return the median time of an append of 1 KiB and its fdatasync, in a preallocated file."""
    times = []
    path = folder / "sync"
    with path.open("wb", buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, 1 << 20)
        for _ in range(_SYNCS):
            begin = time.perf_counter()
            file.write(bytes(1024))
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - begin)
    path.unlink()
    return statistics.median(times) * 1e6


def copy_rate(seconds: float) -> float:
    """Return the messages per second of batches of 64 x 128 B that are only copied once and summed
    by CRC-32."""
    body, target = os.urandom(BATCH_BYTES), bytearray(BATCH_BYTES)
    begin, count = time.perf_counter(), 0
    while (took_s := time.perf_counter() - begin) < seconds:
        for _ in range(100):
            target[:] = body
            crc32(target)
        count += 100
    return 64 * count / took_s


async def measure(programs: Path, rounds: int, seconds: float) -> dict[str, list[float]]:
    """Return the rounds of every limit, by name."""
    load = build_program("load", programs)
    found: dict[str, list[float]] = {}

    async def sends(port: str, kind: str, *words: object) -> dict[str, float]:
        command = [str(load), kind, port, TOPIC, QUEUES, *words, seconds]
        return await run_program([str(word) for word in command], f"the limit {kind}")

    for _ in range(rounds):
        async with serving("echo") as port:
            echoed = await sends(port, "echo", 8, 64, 128)
            alone = await sends(port, "echo", 1, 1, 1024)
        async with serving("core") as port:
            answered = await sends(port, "send", 8, 64, 128)
        with tempfile.TemporaryDirectory(prefix="limits-", dir=BUILD) as name:
            figures = {
                "echo": echoed["messages_per_s"],
                "echo_p50_us": alone["p50_us"],
                "core": answered["messages_per_s"],
                "append": append_rate(Path(name), min(1.0, seconds)),
                "sync_us": sync_us(Path(name)) + SYNC_BESIDE_US,
                "copy": copy_rate(min(1.0, seconds)),
            }
        for key, value in figures.items():
            found.setdefault(key, []).append(value)
    return found


@dataclass(frozen=True, slots=True)
class Held:
    """A row that compares CometMQ's rounds of another row with a limit: a figure of ``measure``, or
    the rounds of the target ``whose`` in the row ``other``."""

    name: str
    ours: str
    limit: str = ""
    other: str = ""
    whose: str = OURS
    wanted: float | None = None


HELD: Final = (
    Held("single 128 B, 8 x 64 / split, pack and answer alone", "single 128 B, 8 x 64", "core",
         wanted=0.8),
    Held("single 128 B, 8 x 64 / echo on the same loop", "single 128 B, 8 x 64", "echo"),
    Held("single 128 B, 8 x 64 / plain file append", "single 128 B, 8 x 64", "append"),
    Held("single 1 KiB, 1 x 1, p50 / echo", "single 1 KiB, 1 x 1, p50", "echo_p50_us", wanted=1.2),
    Held("batch 64 x 128 B / memory copy and CRC", "batch 64 x 128 B, 8 x 4", "copy", wanted=0.5),
    Held("SYNC_FLUSH / ASYNC_FLUSH, 8 x 64", "SYNC_FLUSH, 128 B, 8 x 64",
         other="single 128 B, 8 x 64", wanted=0.8),
    Held("SYNC_FLUSH, 1 x 1, p50 / fdatasync + 60 us", "SYNC_FLUSH, 1 KiB, 1 x 1, p50", "sync_us",
         wanted=1.0),
    Held("single sends / Kafka with its client's batches, 128 B", "single 128 B, 8 x 64",
         other="batch 96 x 128 B, 8 x 5, as Kafka's client", whose="kafka"),
)  # fmt: skip


def held_rows(rows: Sequence[Row], found: Mapping[str, Sequence[float]]) -> list[Row]:
    """Return the rows that compare CometMQ with limits, if both were measured."""
    by_name = {row.name: row for row in rows}
    made = []
    for held in HELD:
        row = by_name.get(held.ours)
        limit = found.get(held.limit, ())
        if held.other and held.other in by_name:
            limit = by_name[held.other].rounds.get(held.whose, ())
        if row is None or not row.rounds.get(OURS) or not limit:
            continue
        against = LIMIT if held.whose == OURS else held.whose
        rounds = {OURS: list(row.rounds[OURS]), against: list(limit)}
        made.append(Row(held.name, row.unit, row.better, held.wanted, against, rounds))
    return made


if __name__ == "__main__":
    run(serve(sys.argv[1]))
