"""Queries of a broker's messages, offsets and transactions."""

from collections.abc import Iterator

import pytest

from tests.simulation.cluster.holdings import ahead, behind, bodies, open_transactions
from tests.simulation.cluster.workload import WORKERS
from tests.simulation.cluster.world import World, events


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.loop.dispose()


def test_offsets_before_at_and_behind_the_end(world: World) -> None:
    world.produce(*events(6))
    world.wait(lambda: world.history.acknowledged == 6)
    master = world.master
    queues = master.store.topics()["events"]
    assert len(behind(master, [WORKERS])) == len(queues)
    for queue_id in queues:
        queue = master.store.find_queue("events", queue_id)
        assert queue is not None
        master.consumers.offsets.commit("workers", "events", queue_id, queue.max_offset)
    assert behind(master, [WORKERS]) == []
    assert ahead(master) == []
    master.consumers.offsets.commit("workers", "events", 0, 100)
    assert len(ahead(master)) == 1
    assert "workers events-0 at 100" in ahead(master)[0]


def test_messages_and_transactions(world: World) -> None:
    world.produce(*events(1))
    world.wait(lambda: world.history.acknowledged == 1)
    found = [name for name in world.loop.run_until_complete(bodies(world.master, "events"))]
    assert found in ([], ["e0"])  # it may lie in another queue
    assert open_transactions(world.master) == 0
