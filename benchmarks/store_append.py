"""The cost of a message in the store alone, without network: appends, batches, reads.

Prints one JSON line per case: microseconds per message (or read), the best of several rounds.
Run: ``.venv/bin/python benchmarks/store_append.py``
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from cometmq.core.clock import SystemClock
from cometmq.message import batch, properties
from cometmq.message.batch import SharedFields
from cometmq.message.ids import UniqueKeys, pack_host
from cometmq.store.config import StoreConfig
from cometmq.store.recovery.opening import open_store

if TYPE_CHECKING:
    from cometmq.store.messagestore import MessageStore

ROUNDS = 7
TICKS = 200
TICK = 64
BODY = b"x" * 128
HOST = pack_host("127.0.0.1", 10911)


def made_properties(count: int) -> list[tuple[bytes, tuple[str, ...]]]:
    keys = UniqueKeys(b"\x7f\0\0\1", 1, 2)
    found: list[tuple[bytes, tuple[str, ...]]] = []
    for _ in range(count):
        key = keys.next(1_700_000_000_000)
        text = properties.encode({"UNIQ_KEY": key, "WAIT": "true", "TAGS": "a"})
        found.append((text, (key,)))
    return found


def append_ticks(store: MessageStore, ready: list[tuple[bytes, tuple[str, ...]]]) -> int:
    queues = [store.queue("append", number) for number in range(8)]
    for tick in range(TICKS):
        for at in range(tick * TICK, (tick + 1) * TICK):
            text, keys = ready[at]
            store.append(
                queues[at & 7], BODY, text, flag=0, sys_flag=0, born_ms=1, born_host=HOST,
                tag_code=97, keys=keys,
            )  # fmt: skip
        store.commit()
    return TICKS * TICK


def append_batches(store: MessageStore, bodies: list[bytes]) -> int:
    queue = store.queue("batch", 0)
    for body in bodies:
        store.append_batch(queue, body, SharedFields(0, 1, HOST, HOST, 0, b"WAIT\x01true"))
        store.commit()
    return TICK * len(bodies)


def read_all(store: MessageStore, topic: str, queue_id: int) -> int:
    end = store.queue(topic, queue_id).max_offset
    reads = 0
    for offset in range(0, min(end - 32, 32_000), 32):
        result = store.read(topic, queue_id, offset, 32)
        assert result.count == 32
        reads += 1
    return reads


def best_of(work: Callable[[], int]) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        count = work()
        best = min(best, (time.perf_counter() - begin) * 1e6 / count)
    return round(best, 3)


def report(case: str, unit: str, value: float) -> None:
    line = {"benchmark": "store_append", "case": case, unit: value}
    if unit == "us_per_message":
        line["per_second"] = round(1e6 / value)
    print(json.dumps(line), flush=True)


def batch_bodies(ready: list[tuple[bytes, tuple[str, ...]]], *, uniform: bool) -> list[bytes]:
    return [
        batch.pack(
            (0, BODY if uniform else BODY + bytes(at % 7), text)
            for at, (text, _) in enumerate(ready[first : first + TICK])
        )
        for first in range(0, len(ready), TICK)
    ]


def main() -> None:
    ready = made_properties(TICKS * TICK)
    with tempfile.TemporaryDirectory(dir=".") as root:
        store = open_store(StoreConfig(store_path_root_dir=root), SystemClock())
        store.store_host = HOST
        case = "single 128 B, 64 a turn, 8 queues"
        report(case, "us_per_message", best_of(lambda: append_ticks(store, ready)))
        for uniform in (True, False):
            bodies = batch_bodies(ready, uniform=uniform)
            case = "batch 64 x 128 B, " + ("built alike" if uniform else "of mixed lengths")
            report(case, "us_per_message", best_of(partial(append_batches, store, bodies)))
        case = "read 32, one of 8 queues"
        report(case, "us_per_read", best_of(lambda: read_all(store, "append", 3)))
        report("read 32, neighbours", "us_per_read", best_of(lambda: read_all(store, "batch", 0)))
        store.close()


if __name__ == "__main__":
    main()
