"""Faults of brokers, and their repair."""

from collections import Counter
from random import Random

import pytest

from tests.simulation.cluster.brokerfaults import BrokerFaults
from tests.simulation.cluster.machines import BrokerMachine
from tests.simulation.cluster.operator import Loss
from tests.simulation.cluster.repairs import Repairs
from tests.simulation.cluster.workload import WORKERS
from tests.simulation.cluster.world import World, events


def faults_of(world: World, seed: int = 1) -> BrokerFaults:
    chance = Random(seed)
    return BrokerFaults(
        chance, world.cluster, world.operator, (WORKERS,), Repairs(world.loop, chance)
    )


def was_lost(world: World) -> int:
    return int(world.operator.was_needed)


def words_of(world: World) -> Counter[str]:
    return Counter(" ".join(line.split()[1:4]).rstrip(":") for line in world.watch.trace.lines)


@pytest.mark.parametrize("seed", range(6))
def test_a_disk_fails_and_is_mended(seed: int) -> None:
    world = World()
    faults = faults_of(world, seed)
    world.produce(*events(10))
    faults.fail_disk()
    faults.fill_disk()
    world.sleep(10_000)
    assert words_of(world)["disk of broker"] == 4
    world.loop.run_until_complete(world.operator.heal())
    assert world.cluster.broker.is_serving
    assert world.watch.violation is None
    world.loop.dispose()


def test_a_master_is_lost_only_while_slaves_can_take_its_place() -> None:
    world = World(slaves=2)
    faults = faults_of(world)
    world.cluster.losses.parted[world.cluster.slaves[0]] = None
    faults.lose_master()
    world.produce(*events(5))
    world.wait(lambda: world.history.acknowledged == 5)
    world.sleep(9_000)
    seen = [faults.plans_loss]
    world.sleep(4_000)
    assert [*seen, faults.plans_loss] == [True, False]
    assert was_lost(world) == 0
    world.cluster.losses.compare_all()
    faults.lose_master()
    world.sleep(4_000)
    assert was_lost(world) == 1
    world.loop.run_until_complete(world.operator.heal())
    assert world.watch.violation is None
    world.loop.dispose()


def test_one_that_comes_back_is_struck_again() -> None:
    world = World(slaves=1)
    faults_of(world)
    returned: list[BrokerMachine] = []
    strike = world.operator.on_return

    def came_back(machine: BrokerMachine) -> None:
        returned.append(machine)
        strike(machine)

    world.operator.on_return = came_back
    world.cluster.chance = Random(2)
    world.produce(*events(5))
    world.wait(lambda: world.history.acknowledged == 5)
    world.sleep(2_000)
    crashes = world.cluster.crashes
    world.operator.lose_master(Loss.POWER)
    world.loop.run_until_complete(world.operator.done())
    world.sleep(60_000)
    assert len(returned) == 1
    said = " ".join(world.watch.trace.lines)
    assert world.cluster.crashes > crashes + 1 or f"stop {returned[0].name}" in said
    world.loop.dispose()
