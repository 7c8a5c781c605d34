"""SYNC_FLUSH: syncing on the loop compared with a flusher thread, without network.

A closed loop represents the broker: a fixed number of sends is in flight, each appended again one
turn after its acknowledgement, at most 64 per turn. Prints one JSON line per case.
Run: ``.venv/bin/python benchmarks/store_sync.py``
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
import time
from typing import TYPE_CHECKING

import uvloop

from cometmq.core.clock import SystemClock
from cometmq.message.ids import pack_host
from cometmq.store.config import FlushDiskType, StoreConfig
from cometmq.store.log import flush
from cometmq.store.log.flush import Latency
from cometmq.store.recovery.opening import open_store

if TYPE_CHECKING:
    from cometmq.store.messagestore import MessageStore

BODY = b"x" * 1024
HOST = pack_host("127.0.0.1", 10911)
SECONDS = 2.0


class Fixed(Latency):
    """A latency that always returns the same value."""

    def __init__(self, *, quick: bool) -> None:
        super().__init__()
        self.quick = quick

    @property
    def is_quick(self) -> bool:
        return self.quick


class Load:
    """Keeps ``in_flight`` sends waiting for the device."""

    def __init__(self, store: MessageStore, in_flight: int, work_us: float) -> None:
        self.store = store
        self.ready = in_flight
        self.work_us = work_us
        self.latencies: list[float] = []
        self.stop_at = time.perf_counter() + SECONDS
        self.loop = asyncio.get_running_loop()
        self.done: asyncio.Future[None] = self.loop.create_future()
        self.queue = store.queue("sync", 0)
        self.scheduled = False
        store.on_durable.append(self.released)

    def turn(self) -> None:
        self.scheduled = False
        if time.perf_counter() >= self.stop_at:
            if not self.done.done():
                self.done.set_result(None)
            return
        count, store = min(self.ready, 64), self.store
        self.ready -= count
        for _ in range(count):
            begin = time.perf_counter()
            # The loop's cost of parsing and answering a send.
            while (time.perf_counter() - begin) * 1e6 < self.work_us:
                pass
            phys, _ = store.append(
                self.queue, BODY, b"", flag=0, sys_flag=0, born_ms=1, born_host=HOST
            )
            store.sync_waiters.park(phys + 1, 1 << 60, begin)
        if count:
            store.commit()
            store.sync()
        if self.ready:
            self.schedule()

    def schedule(self) -> None:
        if not self.scheduled:
            self.scheduled = True
            self.loop.call_soon(self.turn)

    def released(self, tokens: list[object]) -> None:
        now = time.perf_counter()
        self.latencies += [now - token for token in tokens if isinstance(token, float)]
        self.ready += len(tokens)
        self.schedule()


async def run(case: str, in_flight: int, work_us: float, latency: Latency) -> None:
    with tempfile.TemporaryDirectory(dir=".") as root:
        config = StoreConfig(store_path_root_dir=root, flush_disk_type=FlushDiskType.SYNC_FLUSH)
        store = open_store(config, SystemClock())
        store.flusher.latency = latency
        load = Load(store, in_flight, work_us)
        load.schedule()
        await load.done
        found = sorted(load.latencies)
        flusher = store.flusher
        line = {
            "benchmark": "store_sync",
            "case": case,
            "in_flight": in_flight,
            "per_second": round(len(found) / SECONDS),
            "p50_us": round(found[len(found) // 2] * 1e6),
            "p99_us": round(found[len(found) * 99 // 100] * 1e6),
            "inline_syncs": flusher.inline_count,
            "threaded_syncs": flusher.threaded_count,
        }
        print(json.dumps(line), flush=True)
        with contextlib.suppress(OSError):
            store.close()


async def main() -> None:
    as_built = flush.INLINE_MESSAGES
    for _ in range(2):
        for in_flight in (1, 8, 512):
            flush.INLINE_MESSAGES = 1 << 30
            await run("inline", in_flight, 8, Fixed(quick=True))
            await run("thread", in_flight, 8, Fixed(quick=False))
            flush.INLINE_MESSAGES = as_built
            await run("as built", in_flight, 8, Latency())


if __name__ == "__main__":
    uvloop.run(main())
