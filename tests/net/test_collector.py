"""Garbage goes on idle turns and within bounds on busy ones; what lives is looked at once."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cometmq.core.clock import VirtualClock
from cometmq.net.collector import (
    BUSY_INTERVAL_MS,
    FREEZE_OBJECTS,
    IDLE_INTERVAL_MS,
    OBJECTS_BOUND,
    YOUNG_OBJECTS,
    Collector,
)
from cometmq.net.eventloop import STALL_NS, Watchdog
from cometmq.net.tasks import Tasks
from tests.store.stores import opened


class WorkClock(VirtualClock):
    """Every reading of this clock comes ``work_ms`` of somebody's work after the one before."""

    work_ms = 0

    def monotonic_ns(self) -> int:
        self._monotonic_ms += self.work_ms
        return super().monotonic_ns()


class Ring:
    """Garbage that only the collector finds, once nobody has it."""

    def __init__(self) -> None:
        self.itself = self


def dropped_ring() -> weakref.ref[Ring]:
    return weakref.ref(Ring())


@contextmanager
def observed(callback: Callable[[str, dict[str, int]], None]) -> Iterator[None]:
    """Call back round every collection."""
    gc.callbacks.append(callback)
    try:
        yield
    finally:
        gc.callbacks.remove(callback)


class Collecting:
    """A collector that runs, on a clock that the test moves."""

    def __init__(self, clock: WorkClock, watchdog: Watchdog) -> None:
        self.clock = clock
        self.watchdog = watchdog
        self.collector = Collector(clock, watchdog)

    async def passes(self, duration_ms: int) -> None:
        self.clock.advance(duration_ms)
        for _ in range(5):
            await asyncio.sleep(0)


@pytest.fixture
async def collecting() -> AsyncIterator[Collecting]:
    before = gc.isenabled(), gc.get_threshold()
    tasks = Tasks()
    found = Collecting(WorkClock(), Watchdog())
    found.collector.start(tasks)
    await asyncio.sleep(0)
    yield found
    found.collector.stop()
    await tasks.close()
    assert (gc.isenabled(), gc.get_threshold()) == before
    gc.unfreeze()


async def test_a_cycle_dies_when_the_loop_is_idle(collecting: Collecting) -> None:
    ring = dropped_ring()
    await collecting.passes(IDLE_INTERVAL_MS - 1)
    assert ring() is not None
    await collecting.passes(1)
    assert ring() is None


async def test_a_busy_loop_collects_too_but_seldom(collecting: Collecting) -> None:
    collecting.clock.work_ms = 1
    ring = dropped_ring()
    for _ in range(BUSY_INTERVAL_MS // IDLE_INTERVAL_MS // 2):
        await collecting.passes(IDLE_INTERVAL_MS)
        assert ring() is not None
    for _ in range(BUSY_INTERVAL_MS // IDLE_INTERVAL_MS):
        await collecting.passes(IDLE_INTERVAL_MS)
    assert ring() is None


async def test_much_garbage_does_not_wait_for_time_to_pass(collecting: Collecting) -> None:
    ring = Ring()
    gc.collect(1)  # what is older than that, the interpreter leaves to us
    old = weakref.ref(ring)
    del ring
    lives = [[number] for number in range(OBJECTS_BOUND + YOUNG_OBJECTS)]
    assert old() is not None
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert old() is None
    assert len(lives) > OBJECTS_BOUND


async def test_garbage_made_in_one_turn_is_bounded(collecting: Collecting) -> None:
    rings = [dropped_ring() for _ in range(4 * YOUNG_OBJECTS)]
    alive = sum(ring() is not None for ring in rings)
    assert alive <= YOUNG_OBJECTS


async def test_what_lived_is_not_looked_at_again(collecting: Collecting) -> None:
    before = gc.get_freeze_count()
    few = [[number] for number in range(FREEZE_OBJECTS // 2)]
    await collecting.passes(IDLE_INTERVAL_MS)
    assert gc.get_freeze_count() <= before
    many = [[number] for number in range(FREEZE_OBJECTS)]
    await collecting.passes(IDLE_INTERVAL_MS)
    assert gc.get_freeze_count() >= before + len(few) + len(many)


async def test_100_000_queues_come_in_bounded_collections(
    collecting: Collecting, tmp_path: Path
) -> None:
    sizes: list[int] = []

    def measure(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            young = (gc.get_objects(generation=age) for age in range(info["generation"] + 1))
            sizes.append(sum(map(len, young)))

    with observed(measure):
        store = opened(tmp_path)
        for topic in range(12_500):
            for queue_id in range(8):
                store.queue(f"topic-{topic}", queue_id)
            if not topic % 100:
                await collecting.passes(0)
        await collecting.passes(IDLE_INTERVAL_MS)
        store.close()
    assert len(store.queues) == 100_000
    assert len(sizes) > 10
    assert max(sizes) < OBJECTS_BOUND + 2 * YOUNG_OBJECTS


async def test_a_long_collection_is_told(
    collecting: Collecting, caplog: pytest.LogCaptureFixture
) -> None:
    collecting.clock.work_ms = STALL_NS // 1_000_000 + 1
    collecting.collector.collect()
    assert collecting.watchdog.stalls == {"garbage collection": 1}
    assert "handler=garbage collection" in caplog.text


async def test_a_stop_without_a_start_changes_nothing() -> None:
    before = gc.isenabled(), gc.get_threshold(), list(gc.callbacks)
    Collector(VirtualClock(), Watchdog()).stop()
    assert (gc.isenabled(), gc.get_threshold(), list(gc.callbacks)) == before
