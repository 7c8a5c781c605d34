"""Strikes a cluster: one fault after the other, each repaired after a while, or not."""

from __future__ import annotations

from contextvars import Context
from typing import TYPE_CHECKING, Any, Final

from cometmq.testing.sim.machines import until

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine
    from random import Random

    from cometmq.testing.sim.cluster import Cluster
    from cometmq.testing.sim.history import Group
    from cometmq.testing.sim.loop import SimLoop
    from cometmq.testing.sim.machines import BrokerMachine
    from cometmq.testing.sim.workload import Workload

_DOWNTIMES_MS: Final = (10, 500, 1_500, 4_000)
_STOP_MS: Final = 30_000
#: How likely a start of the broker ends before it serves.
_EARLY: Final = 0.2
_SILENT: Final = 0.2
_MEMBERS_MAX: Final = 4


class Adversary:
    """Faults of one run. ``power`` says that the master's machine may lose power. Once it ``rests``
    nothing more happens, also no repair."""

    def __init__(
        self,
        loop: SimLoop,
        chance: Random,
        cluster: Cluster,
        groups: tuple[Group, ...],
        workload: Workload,
        *,
        power: bool,
    ) -> None:
        self.rests = False
        self._loop = loop
        self._chance = chance
        self._cluster = cluster
        self._groups = groups
        self._workload = workload
        self._power = power
        self._repairs: list[asyncio.Task[None]] = []
        faults: list[tuple[int, Callable[[], None]]] = [
            (4, self._kill_broker),
            (4, self._end_broker),
            (1, self._stop_broker),
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
        if cluster.slaves:
            faults.append((5, self._lose_master))
        if power or cluster.slaves:
            faults.append((6, self._cut_power))
        self._weights = [weight for weight, _ in faults]
        self._faults = [fault for _, fault in faults]
        cluster.on_broker_end = self._revive_soon

    def strike(self) -> None:
        """One fault."""
        self._chance.choices(self._faults, self._weights)[0]()

    def start_producer(self) -> None:
        """A new producer, as those that ended are replaced by."""
        workload = self._workload
        self._cluster.add_producer().start(workload.next_message, workload.pauses_ms())

    def _soon(self, repair: Callable[[], None]) -> None:
        """Repair something after a downtime."""

        async def wait() -> None:
            await self._cluster.clock.sleep_ms(self._chance.choice(_DOWNTIMES_MS))
            if not self.rests:
                repair()

        self._spawn(wait())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        # Not in the context of who calls: with its process this work would end too.
        self._repairs.append(self._loop.create_task(work, context=Context()))

    # --- the broker ------------------------------------------------------------------------------

    def _revive_soon(self, machine: BrokerMachine) -> None:
        def revive() -> None:
            if not machine.is_up and machine is not self._cluster.operator.lost:
                self._cluster.start_broker(machine, likely_early=_EARLY)

        self._soon(revive)

    def _some_broker(self) -> BrokerMachine:
        """The master, or as often one of the slaves, if there are any."""
        slaves = self._cluster.slaves
        if slaves and (self._cluster.operator.lost or self._chance.random() < 0.5):
            return self._chance.choice(slaves)
        return self._cluster.broker

    def _kill_broker(self) -> None:
        machine = self._some_broker()
        self._cluster.kill_broker(machine)
        self._revive_soon(machine)

    def _lose_master(self) -> None:
        operator = self._cluster.operator
        ready = self._cluster.broker.is_serving and self._topics_are_copied()
        if ready and not operator.was_needed:
            self._cluster.lose_master()
            self._soon(operator.begin)

    def _topics_are_copied(self) -> bool:
        """Whether every broker has the topics: one that no broker has any more is not made anew
        by producers, which go on with the route that they know."""
        return all(
            machine.is_serving and machine.broker is not None and topic in machine.broker.topics
            for machine in self._cluster.brokers
            for group in self._groups
            for topic in group.topics
        )

    def _cut_power(self) -> None:
        machine = self._some_broker()
        slaves = self._cluster.slaves
        if machine is self._cluster.broker and not self._power:
            if not slaves:
                return
            machine = self._chance.choice(slaves)
        self._cluster.cut_broker_power(machine)
        self._revive_soon(machine)

    def _end_broker(self) -> None:
        machine = self._some_broker()
        if machine.is_serving:
            self._cluster.end_broker_soon(machine)

    def _stop_broker(self) -> None:
        machine = self._some_broker()
        if not machine.is_serving:
            return

        async def start_again() -> None:
            await until(self._cluster.clock, lambda: not machine.is_up, _STOP_MS)
            self._revive_soon(machine)

        self._cluster.stop_broker(machine)
        self._spawn(start_again())

    # --- the others ------------------------------------------------------------------------------

    def _kill_namesrv(self) -> None:
        machine = self._chance.choice(self._cluster.namesrvs)

        def revive() -> None:
            if not machine.is_up:
                self._cluster.start_namesrv(machine)

        if machine.is_up:
            self._cluster.kill_namesrv(machine)
            self._soon(revive)

    def _kill_member(self, *, silently: bool = False) -> None:
        group = self._chance.choice(self._groups)
        alive = self._cluster.alive(group.name)
        if alive:
            self._cluster.kill(self._chance.choice(alive), silently=silently)
            self._soon(lambda: self._replace(group))

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
            self._soon(lambda: self._replace(group))

    def _kill_producer(self) -> None:
        alive = [producer for producer in self._cluster.producers if producer.is_up]
        if alive:
            silently = self._chance.random() < _SILENT
            self._cluster.kill(self._chance.choice(alive), silently=silently)
            self._soon(self.start_producer)

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
        self._soon(cluster.join_network)
