"""The gain of answering before the write: processor time of the whole broker, without sockets.

    .venv/bin/python -m benchmarks.transient_pool [--turns 8] [--rounds 60]

Brokers with and without transientStorePoolEnable take turns in one process. A turn includes all of
its work, until its last message is written, dispatched and can be consumed. Prints one JSON line
per setting: microseconds of processor time per send, user and system: lowest, lower quartile and
median of the turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.requests import CONNECTIONS, IN_FLIGHT, STORE, WARM_UP, Load
from cometmq.net.eventloop import run
from tests.broker.serving import running_broker

if TYPE_CHECKING:
    from cometmq.store.messagestore import MessageStore

ON = {"transientStorePoolEnable": "true"}
SETTINGS = {
    "off": {},
    "on, 4 pages": ON,
    "on, 64 pages": ON | {"commitCommitLogLeastPages": "64"},
    "on, by time and bound": ON | {"commitCommitLogLeastPages": "1000000"},
}


async def turn(load: Load, store: MessageStore, rounds: int) -> float:
    """Return microseconds of processor time per send, until the last message can be consumed."""
    made = [load.data(load.send("single")) for _ in range(rounds)]
    begin_ns = time.process_time_ns()
    for data in made:
        await load.serve(data)
    if store.transient is not None:
        store.transient.write()
    call_soon = store.backlog.call_soon
    store.backlog.close(store.state.last_ms)
    assert call_soon is not None
    store.backlog.start(call_soon)
    took_ns = time.process_time_ns() - begin_ns
    return took_ns / 1_000 / (rounds * CONNECTIONS * IN_FLIGHT)


async def measure(turns: int, rounds: int) -> None:
    """Print the cost of each setting."""
    found: dict[str, list[float]] = {name: [] for name in SETTINGS}
    async with AsyncExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cometmq-pool-")))
        brokers = {}
        for name, settings in SETTINGS.items():
            store = STORE | settings
            running = await stack.enter_async_context(running_broker(home / name, **store))
            load = Load(running.broker.server)
            stack.callback(load.close)
            await turn(load, running.broker.store, WARM_UP)
            brokers[name] = load, running.broker.store
        for _ in range(turns):
            for name, (load, messages) in brokers.items():
                found[name].append(await turn(load, messages, rounds))
    for name, times in found.items():
        sums = sorted(times)
        shown = sums[0], sums[len(sums) // 4], statistics.median(sums)
        print(json.dumps({"setting": name, "us": [round(each, 2) for each in shown]}))


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.transient_pool")
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=60)
    asked = parser.parse_args()
    run(measure(asked.turns, asked.rounds))


if __name__ == "__main__":
    main()
