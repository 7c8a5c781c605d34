"""Differences between a slave and its master are found."""

from collections.abc import Iterator

import pytest

from tests.simulation.cluster.copies import differences, log_files, parting
from tests.simulation.cluster.world import World, events


@pytest.fixture
def world() -> Iterator[World]:
    made = World(slaves=1)
    yield made
    assert made.watch.violation is None
    made.loop.dispose()


def unlike(world: World) -> list[str]:
    slave = world.cluster.slaves[0].broker
    assert slave is not None
    return world.loop.run_until_complete(differences(world.master, slave))


def parted_at(world: World) -> int:
    master, slave = world.cluster.brokers
    return parting(master.disk, slave.disk, min(master.log_end, slave.log_end))


def test_a_slave_is_alike_after_a_while(world: World) -> None:
    world.produce(*events(40))
    world.wait(lambda: world.history.acknowledged == 40)
    world.sleep(15_000)
    assert unlike(world) == []
    assert parted_at(world) == -1


def test_a_byte_of_the_log(world: World) -> None:
    world.produce(*events(10))
    world.wait(lambda: world.history.acknowledged == 10)
    world.sleep(15_000)
    base, file = next(log_files(world.cluster.slaves[0].disk))
    file.data[77] ^= 1
    assert parted_at(world) == base + 77
    file.data[77] ^= 1


def test_tables_queues_and_ends(world: World) -> None:
    world.produce(*events(10))
    world.wait(lambda: world.history.acknowledged == 10)
    world.sleep(15_000)
    world.master.consumers.offsets.commit("workers", "events", 0, 1)
    assert [problem.split(" are")[0] for problem in unlike(world)] == ["consumer offsets"]
    world.cluster.kill_broker(world.cluster.slaves[0])
    world.produce(*events(1))
    world.sleep(2_000)
    found = unlike(world)
    assert found[0].startswith("logs end at ")
    assert found[1].startswith("queues are not the same, as ")
