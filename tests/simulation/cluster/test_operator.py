"""A slave replaces a master that was lost with its disk."""

from collections.abc import Iterator

import pytest

from cometmq.broker.config import BrokerRole
from tests.simulation.cluster.workload import WORKERS
from tests.simulation.cluster.world import World, events


@pytest.fixture
def world() -> Iterator[World]:
    made = World(slaves=2)
    yield made
    assert made.watch.violation is None
    made.loop.dispose()


def test_the_slave_with_the_longest_log_becomes_the_master(world: World) -> None:
    cluster = world.cluster
    master, short, long = cluster.brokers
    world.produce(*events(5))
    world.wait(lambda: world.history.acknowledged == 5)
    world.sleep(2_000)
    cluster.kill_broker(short)
    world.produce(*events(8)[5:])
    world.sleep(5_000)
    world.operator.lose_master()
    assert not master.is_up
    world.loop.run_until_complete(world.operator.done())
    assert cluster.broker is long
    assert cluster.slaves[0] is short
    assert not world.operator.lost
    world.loop.run_until_complete(world.operator.heal())
    assert not long.config.is_slave
    assert all(machine.config.is_slave for machine in cluster.slaves)
    assert {each.body for each in long.stored()} >= {f"e{number}" for number in range(5)}
    cluster.add_member(WORKERS)
    world.wait(lambda: not any(world.history.owed()))


def test_heal_waits_for_the_successor(world: World) -> None:
    world.operator.lose_master()
    lost = world.cluster.broker
    world.loop.run_until_complete(world.operator.heal())
    assert world.cluster.broker is not lost
    assert world.cluster.broker.is_serving
    assert world.cluster.broker.config.broker_role in (
        BrokerRole.ASYNC_MASTER,
        BrokerRole.SYNC_MASTER,
    )
