"""A cluster recovers from each fault."""

from collections.abc import Callable, Iterator

import pytest

from tests.simulation.cluster.cluster import FELT_MS, SILENCE_FELT_MS, Cluster
from tests.simulation.cluster.history import Sent
from tests.simulation.cluster.workload import WORKERS
from tests.simulation.cluster.world import World, events


@pytest.fixture
def world() -> Iterator[World]:
    made = World(slaves=1)
    yield made
    assert made.watch.violation is None
    made.loop.dispose()


@pytest.mark.parametrize("silently", [False, True])
def test_a_member_that_ends_is_replaced(world: World, silently: bool) -> None:
    first = world.cluster.add_member(WORKERS)
    world.produce(*events(30))
    world.wait(lambda: len(world.history.attempts) >= 5)
    world.cluster.kill(first, silently=silently)
    felt_ms = world.history.calm_ms - world.cluster.clock.monotonic_ms()
    assert felt_ms == (SILENCE_FELT_MS if silently else FELT_MS)
    world.cluster.add_member(WORKERS)
    world.wait(lambda: len(world.history.sent) == 30 and world.is_through())
    assert world.cluster.crashes == 1


@pytest.mark.parametrize(
    "strike",
    [
        Cluster.kill_broker,
        Cluster.cut_broker_power,
        Cluster.stop_broker,
        Cluster.end_broker_soon,
        lambda cluster: cluster.kill_namesrv(cluster.namesrvs[0]),
        lambda cluster: cluster.kill_broker(cluster.slaves[0]),
        lambda cluster: cluster.cut_broker_power(cluster.slaves[0]),
        lambda cluster: cluster.cut_off(cluster.broker.host, cluster.slaves[0].host),
        Cluster.break_connections,
        Cluster.change_weather,
        lambda cluster: cluster.cut_off(cluster.broker.host, cluster.producers[0].host),
    ],
)
def test_the_cluster_gets_well_after_a_fault(
    world: World, strike: Callable[[Cluster], None]
) -> None:
    cluster = world.cluster
    cluster.add_member(WORKERS)
    world.produce(*events(5))
    world.wait(lambda: len(world.history.sent) == 5 and world.is_through())
    strike(cluster)
    world.sleep(500)
    world.loop.run_until_complete(world.operator.heal())
    assert all(machine.is_serving for machine in cluster.brokers)
    assert all(machine.is_up for machine in cluster.namesrvs)
    world.produce(*(Sent(f"after{number}", "events") for number in range(5)))
    world.wait(lambda: len(world.history.sent) == 10 and not any(world.history.owed()))


def test_a_start_may_end_early_and_heals(world: World) -> None:
    world.cluster.kill_broker()
    ended: list[int] = []
    world.cluster.on_broker_end = lambda machine: ended.append(1)
    world.cluster.start_broker(likely_early=1.0)
    world.sleep(5_000)
    world.loop.run_until_complete(world.operator.heal())
    assert world.cluster.broker.is_serving
    assert world.cluster.crashes == 1 + len(ended)
