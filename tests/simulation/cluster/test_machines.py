"""Brokers on machines that fail."""

import errno
from collections.abc import Iterator
from random import Random

import pytest

from tests.simulation.cluster import settings
from tests.simulation.cluster.clock import SimClock
from tests.simulation.cluster.loop import SimLoop
from tests.simulation.cluster.machines import BrokerMachine, until
from tests.simulation.cluster.nameservers import NameServerMachine
from tests.simulation.cluster.network import Network
from tests.simulation.cluster.trace import Trace
from tests.simulation.faults.files import Fault, Moment


class World:
    """A name server and a broker."""

    def __init__(self) -> None:
        chance = Random(3)
        self.loop = SimLoop()
        self.clock = SimClock(self.loop)
        chosen = settings.choose(chance)
        network = Network(self.loop, chance, Trace(self.loop))
        self.namesrv = NameServerMachine(
            self.loop, network, settings.NAMESRV_HOSTS[0], settings.NAMESRV_PORT
        )
        self.broker = BrokerMachine(self.loop, network, chance, chosen.broker, chosen.store)

    def wait(self, *, serving: bool) -> bool:
        """Wait until the broker serves, or is down."""
        broker = self.broker
        return self.loop.run_until_complete(
            until(self.clock, lambda: broker.is_serving if serving else not broker.is_up, 60_000)
        )


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    made.namesrv.start()
    made.broker.start()
    assert made.wait(serving=True)
    yield made
    made.loop.dispose()


def test_a_stopped_broker_starts_without_recovery(world: World) -> None:
    world.broker.stop()
    assert not world.broker.is_serving
    assert world.wait(serving=False)
    world.broker.start()
    assert world.wait(serving=True)
    assert world.broker.broker is not None
    report = world.broker.broker.store.report
    assert report is not None
    assert not report.crashed
    assert world.broker.failures == []


@pytest.mark.parametrize("power", [False, True])
def test_a_killed_broker_recovers(world: World, power: bool) -> None:
    boots = world.broker.disk.boots
    if power:
        world.broker.cut_power()
    else:
        world.broker.kill()
    assert not world.broker.is_up
    assert world.broker.disk.boots == boots + power
    world.broker.start()
    assert world.wait(serving=True)
    assert world.broker.broker is not None
    report = world.broker.broker.store.report
    assert report is not None
    assert report.crashed


def test_a_broker_that_ends_at_a_file_operation(world: World) -> None:
    ended: list[int] = []
    world.broker.on_end = lambda: ended.append(1)
    world.broker.end_soon(0, Moment.WITHIN)
    world.broker.stop()
    assert world.wait(serving=False)
    assert ended == [1]
    world.broker.start(ends_in=3, moment=Moment.AFTER)
    assert world.wait(serving=False)
    assert ended == [1, 1]
    world.broker.start()
    assert world.wait(serving=True)
    assert world.broker.failures == []


def test_what_keeps_a_broker_from_starting_is_noted(world: World) -> None:
    world.broker.kill()
    world.broker.disk.root.names.clear()
    world.broker.disk.root.device.clear()
    world.broker.start()
    # The machine was not notified.
    world.broker.disk.full = True
    assert not world.wait(serving=True)
    assert len(world.broker.failures) == 1


def test_a_disk_that_fails_keeps_a_broker_from_starting_until_it_is_mended(world: World) -> None:
    world.broker.kill()
    ended: list[int] = []
    world.broker.on_end = lambda: ended.append(1)
    world.broker.fail(Fault("sync_directory", errno.EIO, 1_000))
    world.broker.start()
    assert world.wait(serving=False)
    world.broker.mend_disk()
    world.broker.fill_disk()
    world.broker.disk.root.names.clear()
    world.broker.start()
    assert world.wait(serving=False)
    assert (ended, world.broker.failures) == ([1, 1], [])
    world.broker.mend_disk()
    world.broker.start()
    assert world.wait(serving=True)


def test_a_sync_that_fails_ends_the_log_until_a_restart(world: World) -> None:
    world.broker.fail(Fault("datasync", errno.EIO, 1, "commitlog"))
    assert not world.broker.log_failed
    broker = world.broker.broker
    assert broker is not None
    broker.store.append(
        broker.store.queue("t", 0), b"x", b"", flag=0, sys_flag=0, born_ms=1, born_host=bytes(8)
    )
    broker.store.commit()
    assert world.loop.run_until_complete(
        until(world.clock, lambda: world.broker.log_failed, 60_000)
    )
    end = world.broker.log_end
    world.broker.kill()
    assert world.broker.log_end == end
    assert [each.body for each in world.broker.before or ()] == ["x"]
    world.broker.start()
    assert world.wait(serving=True)
    assert not world.broker.log_failed


def test_what_a_power_cut_may_take_is_noted_until_the_broker_serves(world: World) -> None:
    machine = world.broker
    machine.cut_power()
    assert machine.before == []
    assert machine.may_lack == (not machine.is_synced)
    machine.destroy()
    assert not machine.log_end
    assert not machine.problem
