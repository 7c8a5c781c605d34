"""Lookers for tests: stores to look at, how one is started, what it says of itself."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random

from cometmq.broker.looker import COMMAND, Looker
from cometmq.core.clock import Clock, SystemClock
from cometmq.filter.sql92 import SqlFilter
from cometmq.net.tasks import Tasks
from cometmq.store.engine import MessageStore
from cometmq.store.lookahead import STEADY_READS
from tests.store.stores import put

LENGTH = 6_000
WAIT_S = 20


async def until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < deadline, f"waited too long: {what}"
        await asyncio.sleep(0.005)


def is_alive(pid: int) -> bool:
    """Whether a process is there and did not end."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state[0] not in "ZX"


def fill(store: MessageStore, topic: str, count: int, seed: int = 0) -> list[dict[str, str]]:
    """Messages of queue 1 with properties of any kind; gives these."""
    chance = Random(seed)
    made = []
    for number in range(count):
        more = {
            "a": chance.choice(["1", "20", "300", "x", "eu", ""]),
            "b": chance.choice(["eu", "europe", "us", "1.5", ""]),
            "n": str(number),
        }
        made.append({name: value for name, value in more.items() if value})
        put(store, topic, 1, b"body", more=made[-1])
        put(store, topic, 0, b"between")
        if not number % 100:
            store.commit()
    store.commit()
    return made


@asynccontextmanager
async def looking(
    store: MessageStore, clock: Clock | None = None, command: Sequence[str] = COMMAND
) -> AsyncIterator[Looker]:
    tasks = Tasks()
    try:
        yield Looker(store.log, clock=clock or SystemClock(), tasks=tasks, command=command)
    finally:
        await tasks.close()


def open_files() -> set[str]:
    """What this process has open, by its names."""
    found = set()
    for handle in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the listing itself
            found.add(os.readlink(f"/proc/self/fd/{handle}"))
    return found


def running_tasks() -> set[str]:
    return {task.get_name() for task in asyncio.all_tasks()}


def pid_of(looker: Looker) -> int:
    return int(looker.facts()["lookerPid"])


def looked_at(looker: Looker) -> int:
    return int(looker.facts()["lookerLookedAt"])


def held(looker: Looker) -> int:
    return int(looker.facts()["lookerHeldBytes"])


def read_on(looker: Looker, store: MessageStore, wanted: SqlFilter, *positions: int) -> None:
    queue = store.queue("t", 1)
    for start, position in pairwise(positions):
        looker.read_on(queue, wanted, start, position)


class Steady:
    """A consumer that read on for so long that records are gathered for it."""

    def __init__(self, looker: Looker, store: MessageStore, wanted: SqlFilter) -> None:
        self._read_on = partial(read_on, looker, store, wanted)
        self._position = STEADY_READS
        self._read_on(0, *range(STEADY_READS + 1))

    def read_on(self) -> None:
        """Go on by one message."""
        self._read_on(self._position, self._position + 1)
        self._position += 1


async def started(looker: Looker, store: MessageStore, wanted: SqlFilter) -> int:
    """Have a consumer come that it can help, and wait until it did; gives its pid."""
    before, position = looked_at(looker), 0

    def was_helped() -> bool:
        nonlocal position
        read_on(looker, store, wanted, position, position + 1)
        position += 1
        return looked_at(looker) > before

    await until(was_helped, "an answer of the looker")
    return pid_of(looker)
