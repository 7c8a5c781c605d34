"""Stores of many gigabytes for a benchmark: filled through their broker, and evicted from the page
cache."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.loading import BenchmarkFailed
from cometmq.core.clock import SystemClock
from cometmq.net.client import Remoting
from cometmq.net.eventloop import run
from cometmq.net.tasks import Tasks
from cometmq.protocol import headers as h
from cometmq.protocol.codes import RequestCode

if TYPE_CHECKING:
    from benchmarks.servers import Server

BODY_BYTES: Final = 1024
#: Approximate size of a stored record with such a body.
RECORD_BYTES: Final = 1200
_SEALED_S: Final = 300


def fill(server: Server, load_path: Path, topic: str, queues: int, size_bytes: int) -> None:
    """Create a topic and send batches until it has ``size_bytes``. Raises BenchmarkFailed."""
    run(_create_topic(f"127.0.0.1:{server.port}", topic, queues))
    stored = 0
    while stored * RECORD_BYTES < size_bytes:
        seconds = 2 if size_bytes < 4 << 30 else 10
        words = (load_path, "batch", server.port, topic, queues, 4, 4, BODY_BYTES, seconds, 32)
        command = [str(word) for word in words]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        found = json.loads(done.stdout)
        if found["errors"]:
            raise BenchmarkFailed(f"{server.name}: {found['errors']} errors")
        stored += int(found["stored"])


def wait_for_seals(server: Server) -> None:
    """Wait until all full log files have seals, if this broker makes them."""
    store = server.home / "store"
    if server.name != "cometmq":
        return
    deadline = time.monotonic() + _SEALED_S
    # The last two files are the active one and the next one, which is preallocated.
    while len(_names(store / "cometmq-seals")) < len(_names(store / "commitlog")) - 2:
        if time.monotonic() > deadline:
            raise BenchmarkFailed(f"log files without seals after {_SEALED_S} s")
        time.sleep(1)


def drop_from_memory(store: Path) -> None:
    """Evict the files of a store from the page cache. No process may have them open."""
    os.sync()
    for path in sorted(path for path in store.rglob("*") if path.is_file()):
        handle = os.open(path, os.O_RDONLY)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def _names(directory: Path) -> list[str]:
    return [path.name for path in directory.glob("[0-9]*")]


async def _create_topic(address: str, topic: str, queues: int) -> None:
    tasks = Tasks()
    remoting = Remoting(clock=SystemClock(), tasks=tasks)
    header = h.CreateTopic(topic, "TBW102", queues, queues, 6, "SINGLE_TAG", 0, "false")
    try:
        code = RequestCode.UPDATE_AND_CREATE_TOPIC
        await remoting.call(address, code, header, timeout_ms=10_000)
    finally:
        await remoting.close()
        await tasks.close()
