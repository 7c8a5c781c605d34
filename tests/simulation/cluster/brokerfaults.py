"""Faults of brokers' machines: ends of processes, power cuts, failing disks, the loss of a
master. A machine that failed is likely to fail again, soon after it serves."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final

from tests.simulation.cluster.machines import until
from tests.simulation.cluster.operator import Loss
from tests.simulation.faults.files import Fault

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from tests.simulation.cluster.cluster import Cluster
    from tests.simulation.cluster.history import Group
    from tests.simulation.cluster.machines import BrokerMachine
    from tests.simulation.cluster.operator import Operator
    from tests.simulation.cluster.repairs import Repairs

_STOP_MS: Final = 30_000
_START_MS: Final = 30_000
#: Probability that a start of the broker ends before it serves.
_EARLY: Final = 0.2
#: Probability that a machine fails again after a power cut or a return, and the pauses before that.
_AGAIN: Final = 0.7
_AGAIN_MS: Final = (50, 200, 700, 2_000)
#: Probability that a master is cut off from its slaves before its loss, and the durations.
_CUT_OFF: Final = 0.6
_CUT_OFF_MS: Final = (300, 1_000, 3_000)
#: Longest wait for slaves that could take the place of a master, before its loss.
_READY_MS: Final = 10_000
_FAILING: Final = (
    "pwrite", "datasync", "datasync", "allocate", "create", "rename", "sync_directory", "unlink",
)  # fmt: skip
_PLACES: Final = ("", "", "commitlog", "commitlog", "consumequeue", "index", "config")
_CODES: Final = (errno.EIO, errno.EIO, errno.ENOSPC)
_TIMES: Final = (1, 1, 3, 1_000)


class BrokerFaults:
    """Faults of the brokers of a run. ``groups`` read the topics that all brokers must have."""

    def __init__(
        self,
        chance: Random,
        cluster: Cluster,
        operator: Operator,
        groups: tuple[Group, ...],
        repairs: Repairs,
    ) -> None:
        self._chance = chance
        self._cluster = cluster
        self._operator = operator
        self._topics = [topic for group in groups for topic in group.topics]
        self._repairs = repairs
        #: True while the loss of a master is planned.
        self.plans_loss = False
        cluster.on_broker_end = self.revive_soon
        operator.on_return = self._strike_again

    def weighted(self) -> list[tuple[int, Callable[[], None]]]:
        """Return the faults with their weights."""
        faults = [
            (4, self.kill),
            (4, self.end),
            (1, self.stop),
            (12, self.cut_power),
        ]
        if self._chance.random() < 0.4:
            faults += [(3, self.fail_disk), (1, self.fill_disk)]
        if self._cluster.slaves:
            faults.append((16, self.lose_master))
        return faults

    def _some_broker(self) -> BrokerMachine:
        """Return the master or a slave, with equal probability if there are slaves."""
        slaves = self._cluster.slaves
        if slaves and (self._operator.lost or self._chance.random() < 0.5):
            return self._chance.choice(slaves)
        return self._cluster.broker

    def revive_soon(self, machine: BrokerMachine) -> None:
        """Start a broker again after a while."""

        def revive() -> None:
            cluster, operator = self._cluster, self._operator
            is_needed = machine in cluster.brokers and machine is not operator.lost
            if is_needed and not machine.is_up and machine is not operator.chosen:
                self._cluster.start_broker(machine, likely_early=_EARLY)

        self._repairs.soon(revive)

    # --- the process, and the power --------------------------------------------------------------

    def kill(self) -> None:
        """Kill the process of a broker."""
        self._kill(self._some_broker())

    def _kill(self, machine: BrokerMachine) -> None:
        self._cluster.kill_broker(machine)
        self.revive_soon(machine)

    def end(self) -> None:
        """End the process of a broker at a file operation."""
        machine = self._some_broker()
        if machine.is_serving:
            self._cluster.end_broker_soon(machine)

    def stop(self) -> None:
        """Stop a broker cleanly."""
        self._stop(self._some_broker())

    def _stop(self, machine: BrokerMachine) -> None:
        if not machine.is_serving:
            return

        async def start_again() -> None:
            await until(self._cluster.clock, lambda: not machine.is_up, _STOP_MS)
            self.revive_soon(machine)

        self._cluster.stop_broker(machine)
        self._repairs.spawn(start_again())

    def cut_power(self) -> None:
        """Cut the power of a broker's machine."""
        machine = self._some_broker()
        self._cut_power(machine)
        if self._chance.random() < _AGAIN:
            self._strike_again(machine)

    def _cut_power(self, machine: BrokerMachine) -> None:
        self._cluster.cut_broker_power(machine)
        self.revive_soon(machine)

    def _strike_again(self, machine: BrokerMachine) -> None:
        """Let a machine fail once more, soon after it serves and has cut its log if needed.

        Bytes of records that were cut off are then still on the disk, after the new records.
        """
        strikes = (self._cut_power, self._kill, self._kill, self._stop)
        losses = self._cluster.losses

        def is_well() -> bool:
            if machine.is_serving and machine in losses.parted:
                losses.compare(machine)
            return machine.is_serving and machine not in losses.parted

        async def strike() -> None:
            clock = self._cluster.clock
            if not await until(clock, is_well, _START_MS):
                return
            await clock.sleep_ms(self._chance.choice(_AGAIN_MS))
            is_there = machine in self._cluster.brokers
            if is_there and machine.is_serving and not self._repairs.rests:
                self._chance.choice(strikes)(machine)
                if self._chance.random() < _AGAIN:
                    self._strike_again(machine)

        self._repairs.spawn(strike())

    # --- the disk --------------------------------------------------------------------------------

    def fail_disk(self) -> None:
        """Make operations on a broker's disk fail."""
        chance = self._chance
        fault = Fault(
            chance.choice(_FAILING),
            chance.choice(_CODES),
            chance.choice(_TIMES),
            chance.choice(_PLACES),
        )
        machine = self._some_broker()
        self._cluster.fail_disk(machine, fault)
        self._mend_soon(machine)

    def fill_disk(self) -> None:
        """Fill a broker's disk."""
        machine = self._some_broker()
        self._cluster.fill_disk(machine)
        self._mend_soon(machine)

    def _mend_soon(self, machine: BrokerMachine) -> None:
        """Repair the disk after a while; then restart a broker whose log failed, or its machine."""
        begin_anew = (self._kill, self._stop, self._cut_power)

        def mend() -> None:
            self._cluster.mend_disk(machine)
            if machine.is_serving and machine.log_failed:
                self._chance.choice(begin_anew)(machine)

        self._repairs.soon(mend)

    # --- the loss of a master --------------------------------------------------------------------

    def lose_master(self) -> None:
        """Lose the master once a slave can replace it, in part of the runs after a cut of their
        network."""
        if not self.plans_loss and not self._operator.was_needed:
            self.plans_loss = True
            self._repairs.spawn(self._lose_master())

    async def _lose_master(self) -> None:
        cluster, clock = self._cluster, self._cluster.clock
        is_ready = await until(clock, self._may_be_lost, _READY_MS)
        if is_ready and not self._repairs.rests and self._chance.random() < _CUT_OFF:
            for slave in cluster.slaves:
                cluster.cut_off(cluster.broker.host, slave.host)
            self._repairs.soon(cluster.join_network)
            await clock.sleep_ms(self._chance.choice(_CUT_OFF_MS))
        if not self._repairs.rests and self._may_be_lost():
            self._operator.lose_master(self._chance.choice(tuple(Loss)))
            self._repairs.soon(self._operator.begin)
        self.plans_loss = False

    def _may_be_lost(self) -> bool:
        """Decide whether the master may be lost now: all brokers serve, with all topics.

        A topic that no broker has would stay missing: producers do not create it again, because
        they continue with the route that they know.
        """
        cluster = self._cluster
        if self._operator.was_needed or cluster.losses.parted:
            return False
        return all(
            machine.is_serving
            and machine.broker is not None
            and topic in machine.broker.topics.table
            for machine in cluster.brokers
            for topic in self._topics
        )
