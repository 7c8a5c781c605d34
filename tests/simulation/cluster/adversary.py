"""Faults of a simulated cluster: one after the other, most of them repaired after a while.

Faults of brokers and their machines are in brokerfaults.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.simulation.cluster.brokerfaults import BrokerFaults
from tests.simulation.cluster.repairs import Repairs

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from tests.simulation.cluster.cluster import Cluster
    from tests.simulation.cluster.history import Group
    from tests.simulation.cluster.loop import SimLoop
    from tests.simulation.cluster.operator import Operator
    from tests.simulation.cluster.workload import Workload

_SILENT: Final = 0.2
_MEMBERS_MAX: Final = 4
_JUMPS_MS: Final = (-7_200_000, -3_000, 3_000, 3_700_000, 9_000_000)


class Adversary:
    """Faults of one run. After :meth:`rest` no fault and no repair happens."""

    def __init__(
        self,
        loop: SimLoop,
        chance: Random,
        cluster: Cluster,
        operator: Operator,
        groups: tuple[Group, ...],
        workload: Workload,
    ) -> None:
        self._chance = chance
        self._cluster = cluster
        self._groups = groups
        self._workload = workload
        self._repairs = Repairs(loop, chance)
        self.brokers = BrokerFaults(chance, cluster, operator, groups, self._repairs)
        faults: list[tuple[int, Callable[[], None]]] = [
            *self.brokers.weighted(),
            (1, self._kill_namesrv),
            (4, self._kill_member),
            (1, self._silence_member),
            (2, self._add_member),
            (2, self._let_member_leave),
            (2, self._kill_producer),
            (3, self._cut_off),
            (2, cluster.break_connections),
            (1, cluster.change_weather),
        ]
        if chance.random() < 0.4:
            faults.append((3, self._jump_clock))
        self._weights = [weight for weight, _ in faults]
        self._faults = [fault for _, fault in faults]

    def strike(self) -> None:
        """Cause one fault."""
        self._chance.choices(self._faults, self._weights)[0]()

    def rest(self) -> None:
        """Stop all faults and repairs."""
        self._repairs.rests = True

    def start_producer(self) -> None:
        """Start a new producer, at the beginning or in place of one that ended."""
        workload = self._workload
        self._cluster.add_producer().start(workload.next_message, workload.pauses_ms())

    # --- name servers and clients ----------------------------------------------------------------

    def _kill_namesrv(self) -> None:
        machine = self._chance.choice(self._cluster.namesrvs)

        def revive() -> None:
            if not machine.is_up:
                self._cluster.start_namesrv(machine)

        if machine.is_up:
            self._cluster.kill_namesrv(machine)
            self._repairs.soon(revive)

    def _kill_member(self, *, silently: bool = False) -> None:
        group = self._chance.choice(self._groups)
        alive = self._cluster.alive(group.name)
        if alive:
            self._cluster.kill(self._chance.choice(alive), silently=silently)
            self._repairs.soon(lambda: self._replace(group))

    def _silence_member(self) -> None:
        self._kill_member(silently=True)

    def _replace(self, group: Group) -> None:
        if not self._cluster.alive(group.name) or self._chance.random() < 0.5:
            self._cluster.add_member(group)

    def _add_member(self) -> None:
        group = self._chance.choice(self._groups)
        if len(self._cluster.alive(group.name)) < _MEMBERS_MAX:
            self._cluster.add_member(group)

    def _let_member_leave(self) -> None:
        group = self._chance.choice(self._groups)
        alive = self._cluster.alive(group.name)
        if alive:
            self._cluster.leave(self._chance.choice(alive))
            self._repairs.soon(lambda: self._replace(group))

    def _kill_producer(self) -> None:
        alive = [producer for producer in self._cluster.producers if producer.is_up]
        if alive:
            silently = self._chance.random() < _SILENT
            self._cluster.kill(self._chance.choice(alive), silently=silently)
            self._repairs.soon(self.start_producer)

    def _cut_off(self) -> None:
        cluster = self._cluster
        brokers = [machine.host for machine in cluster.brokers]
        namesrvs = [machine.host for machine in cluster.namesrvs]
        clients = [client.host for client in cluster.clients() if client.is_up]
        one = self._chance.choice(brokers)
        others = [host for host in brokers if host != one]
        if others and self._chance.random() < 0.4:
            two = self._chance.choice(others)
        else:
            two = self._chance.choice([*clients, *namesrvs])
        cluster.cut_off(one, two)
        self._repairs.soon(cluster.join_network)

    def _jump_clock(self) -> None:
        """Set the wall clock of a machine, mostly a broker's."""
        cluster = self._cluster
        clients = [client for client in cluster.clients() if client.is_up]
        chosen = self._chance.choice(
            [*cluster.brokers, *cluster.brokers, *cluster.namesrvs, *clients[:1]]
        )
        cluster.jump_clock(chosen.name, chosen.clock, self._chance.choice(_JUMPS_MS))
