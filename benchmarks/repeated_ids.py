"""What dropping repeated ids costs: processor time a message, memory an id, time at a start.

    python -m benchmarks.repeated_ids [--ids 1000000]

Prints one JSON line a case. ``stored`` and ``stored_guarded`` are new messages put into the store
without and with the deduplicator. ``repeat`` is the recognition of a repeat whose first message is
in memory.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from cometmq.broker.config import BrokerConfig
from cometmq.broker.dedup import Deduplicator, Stored
from cometmq.broker.tables import TableDirectory
from cometmq.broker.topics.table import TopicTable
from cometmq.core.clock import SystemClock
from cometmq.net.tasks import Tasks
from cometmq.store.config import StoreConfig
from cometmq.store.recovery.opening import open_store

TOPIC = "t"
ON_DISK = 200_000
TURN = 64


def cpu_ns(work: Callable[[], None]) -> int:
    begun_ns = time.process_time_ns()
    work()
    return time.process_time_ns() - begun_ns


def report(case: str, count: int, spent_ns: int, **more: float) -> None:
    print(json.dumps({"case": case, "count": count, "ns_each": round(spent_ns / count), **more}))


def name(number: int) -> str:
    return f"7F{number:030X}"


async def run(directory: Path, ids: int) -> None:
    clock, tasks = SystemClock(), Tasks()
    config = BrokerConfig(drop_repeated_ids_topics=TOPIC, drop_repeated_ids_max=2 * ids)
    store = open_store(
        StoreConfig(
            store_path_root_dir=str(directory),
            mapped_file_size_commit_log=1 << 28,
        ),
        clock,
    )
    topics = TopicTable(TableDirectory(str(directory / "config"), clock, tasks), config)
    queue = store.queue(TOPIC, 0)
    body = bytes(256)

    def fill(first: int, count: int, deduplicator: Deduplicator | None) -> None:
        for number in range(first, first + count):
            unique = name(number)
            if deduplicator is not None:
                assert deduplicator.covers(TOPIC)
                assert deduplicator.first(TOPIC, unique) is None
            place, offset = store.append(
                queue, body, f"UNIQ_KEY\x01{unique}".encode(), flag=0, sys_flag=0,
                born_ms=0, born_host=bytes(8), keys=(unique,),
            )  # fmt: skip
            if deduplicator is not None:
                deduplicator.remember(TOPIC, unique, Stored(0, offset, place))
            if number % TURN == TURN - 1:
                store.commit()
        store.commit()

    report("stored", ON_DISK, cpu_ns(lambda: fill(0, ON_DISK, None)))
    deduplicator = Deduplicator(config=config, store=store, topics=topics, clock=clock)
    begun_ns = time.process_time_ns()
    await deduplicator.recover()
    report("start", ON_DISK, time.process_time_ns() - begun_ns)

    def repeats() -> None:
        for number in range(0, ON_DISK, 10):
            assert isinstance(deduplicator.first(TOPIC, name(number)), Stored)

    report("repeat", ON_DISK // 10, cpu_ns(repeats))
    spent_ns = cpu_ns(lambda: fill(ON_DISK, ids, deduplicator))
    size_bytes = deduplicator.window.size_bytes / len(deduplicator.window)
    report("stored_guarded", ids, spent_ns, bytes_an_id=round(size_bytes, 1))
    store.close()
    await tasks.close()


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--ids", type=int, default=500_000)
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(run(Path(directory), arguments.parse_args().ids))


if __name__ == "__main__":
    main()
