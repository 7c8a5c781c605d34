"""Sealing a log file beside a busy loop: on the loop in slices, in a thread, in a child process.

A loop that serves one request after another (8 us of work each, without pauses) is timed while a
log file of 256 MiB with small records is read, checked and summed. Prints one JSON line per case:
the time for the file, and the lateness of the loop's turns meanwhile.
Run: ``.venv/bin/python -m benchmarks.store_seal``
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from zlib import crc32

import uvloop

from benchmarks.store_verify import write_store
from cometmq.store.files import PosixFiles
from cometmq.store.log.checksums import BLOCK_BYTES
from cometmq.store.maintenance.checksumming import sums_by_child
from cometmq.store.tools.sums import read_sums

FILE_BYTES = 256 << 20
WORK_NS = 8_000
LEVELS = "1s"

Case = Callable[[str], Awaitable[object]]


async def nothing(_path: str) -> None:
    """Run only the loop, for two seconds."""
    await asyncio.sleep(2)


async def slices(path: str) -> None:
    """Sum one block in each turn of the loop, without checking records."""
    handle = os.open(path, os.O_RDONLY)
    buffer = bytearray(BLOCK_BYTES)
    for offset in range(0, FILE_BYTES, BLOCK_BYTES):
        os.preadv(handle, [buffer], offset)
        crc32(buffer)
        await asyncio.sleep(0)
    os.close(handle)


def blocks(path: str) -> None:
    """Sum only blocks. Each call releases the interpreter lock."""
    handle = os.open(path, os.O_RDONLY)
    buffer = bytearray(BLOCK_BYTES)
    for offset in range(0, FILE_BYTES, BLOCK_BYTES):
        os.preadv(handle, [buffer], offset)
        crc32(buffer)
    os.close(handle)


async def thread_of_blocks(path: str) -> None:
    """Sum blocks in a thread."""
    await asyncio.to_thread(blocks, path)


async def thread_of_records(path: str) -> None:
    """Sum blocks and check records in a thread."""
    await asyncio.to_thread(read_sums, PosixFiles(), path, 0, FILE_BYTES, 0, LEVELS)


async def child(path: str) -> None:
    """Sum blocks and check records in a child process, as the broker does."""
    await sums_by_child(path, 0, FILE_BYTES, 0, LEVELS)


@contextlib.asynccontextmanager
async def busy_loop(late_ns: list[int]) -> AsyncIterator[None]:
    """Run turns with a little work in each. Append their time beyond that work to ``late_ns``."""
    done = asyncio.Event()

    async def turns() -> None:
        before = time.perf_counter_ns()
        while not done.is_set():
            until = time.perf_counter_ns() + WORK_NS
            while time.perf_counter_ns() < until:
                pass
            await asyncio.sleep(0)
            now = time.perf_counter_ns()
            late_ns.append(now - before - WORK_NS)
            before = now

    task = asyncio.create_task(turns())
    try:
        yield
    finally:
        done.set()
        await task


async def measure(name: str, case: Case, path: str) -> None:
    late_ns: list[int] = []
    async with busy_loop(late_ns):
        begun = time.perf_counter()
        await case(path)
        seconds = time.perf_counter() - begun
    late_ns.sort()
    print(
        json.dumps(
            {
                "case": name,
                "seconds": round(seconds, 2),
                "turns": len(late_ns),
                "late_p50_us": late_ns[len(late_ns) // 2] // 1000,
                "late_p99_us": late_ns[len(late_ns) * 99 // 100] // 1000,
                "late_max_us": late_ns[-1] // 1000,
            }
        )
    )


def main() -> None:
    """Measure every case, each twice."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_store(root, FILE_BYTES, FILE_BYTES, 128)
        path = str(root / "commitlog" / f"{0:020d}")
        cases: list[Case] = [nothing, slices, thread_of_blocks, thread_of_records, child]
        for _ in range(2):
            for case in cases:
                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    runner.run(measure(case.__name__, case, path))


if __name__ == "__main__":
    main()
