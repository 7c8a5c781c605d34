"""Records that logs lose must not appear again, and slaves report them."""

from collections.abc import Iterator

import pytest

from cometmq.broker.config import HaRejoin
from cometmq.store.config import FlushDiskType
from tests.simulation.cluster.invariants import Violated
from tests.simulation.cluster.machines import BrokerMachine
from tests.simulation.cluster.world import World, events
from tests.simulation.faults import disk


def name_of(violation: Violated | None) -> str:
    return "" if violation is None else violation.name


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    # A power cut loses everything that was not flushed.
    monkeypatch.setattr(disk, "SURVIVAL", (0.0,))
    made = World(
        slaves=1, flush_disk_type=FlushDiskType.ASYNC_FLUSH, flush_commit_log_least_pages=4
    )
    made.produce(*events(6))
    made.wait(lambda: made.history.acknowledged == 6)
    made.sleep(20_000)
    made.produce(*events(9)[6:])
    made.wait(lambda: made.history.acknowledged == 9)
    made.sleep(200)
    yield made
    made.loop.dispose()


def test_a_slave_that_goes_on_behind_its_masters_end_says_so_and_cuts(world: World) -> None:
    master, slave = world.cluster.brokers
    master.cut_power()
    master.start()
    world.wait(lambda: master.is_serving)
    assert [each.body for each in master.stored()] == [f"e{number}" for number in range(6)]
    assert len(slave.stored()) == 9
    assert [sent.forgiven for sent in world.history.sent.values()] == 6 * [False] + 3 * [True]
    assert slave in world.cluster.losses.parted
    world.loop.run_until_complete(world.operator.heal())
    assert slave.config.ha_rejoin is HaRejoin.TRUNCATE, "the operator let it cut"
    assert not world.cluster.losses.parted
    assert slave.stored() == master.stored()
    assert world.watch.violation is None


def test_a_slave_that_is_longer_for_no_reason(world: World) -> None:
    master = world.cluster.broker
    master.cut_power()
    master.before = None
    master.start()
    world.wait(lambda: master.is_serving)
    world.cluster.losses.compare_all()
    assert name_of(world.watch.violation) == "same log"


def test_a_slave_that_differs_and_does_not_say_so(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BrokerMachine, "problem", "")
    world.cluster.broker.cut_power()
    world.loop.run_until_complete(world.operator.heal())
    assert world.watch.violation is not None
    assert "do not say so" in str(world.watch.violation)


def test_what_was_lost_must_not_come_back(world: World) -> None:
    master, losses = world.cluster.broker, world.cluster.losses
    last = master.stored()[-1]
    losses.promoted(master, [*master.stored(), last._replace(body="e9")], is_safe=False, now_ms=0)
    losses.opened(master)
    assert not name_of(world.watch.violation)
    losses._gone[master] = frozenset([last])
    losses.opened(master)
    assert name_of(world.watch.violation) == "gone"
