"""The operator's actions after the loss of a master: the slave with the longest log becomes the
master, and the others follow it.

The lost machine may come back as a slave, with an empty disk, or with its old log, which it cuts. A
slave that has records that its master lost is set to cut them.
"""

from __future__ import annotations

from contextvars import Context
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Final

from cometmq.broker.config import BrokerRole, HaRejoin
from tests.simulation.cluster.cluster import SILENCE_FELT_MS
from tests.simulation.cluster.machines import until

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from tests.simulation.cluster.cluster import Cluster
    from tests.simulation.cluster.copies import Stored
    from tests.simulation.cluster.invariants import Watch
    from tests.simulation.cluster.loop import SimLoop
    from tests.simulation.cluster.machines import BrokerMachine

_TRIES: Final = 6
_START_MS: Final = 20_000
_STOP_MS: Final = 30_000
_COMES_BACK: Final = 0.7
_TOLD_MS: Final = 60_000


class Loss(Enum):
    """Part of a machine that is lost."""

    DISK = "disk"
    SIGHT = "sight"
    POWER = "power"


class Operator:
    """Replaces lost masters. ``lost`` is the lost machine until a slave has replaced it."""

    def __init__(self, loop: SimLoop, cluster: Cluster, watch: Watch) -> None:
        self.lost: BrokerMachine | None = None
        #: The slave that will replace it, and that is stopped before that.
        self.chosen: BrokerMachine | None = None
        #: True if a master was ever lost.
        self.was_needed = False
        #: Called when the lost machine comes back.
        self.on_return: Callable[[BrokerMachine], None] = lambda machine: None
        self._loop = loop
        self._cluster = cluster
        self._losses = cluster.losses
        self._watch = watch
        self._loss = Loss.DISK
        self._log: list[Stored] = []
        self._task: asyncio.Task[None] | None = None

    def lose_master(self, loss: Loss = Loss.DISK) -> None:
        """Lose the running master's machine, with or without its disk."""
        cluster = self._cluster
        cluster.note(f"{loss.value} of {cluster.broker.name} lost", SILENCE_FELT_MS)
        cluster.crashes += 1
        self.lost, self.was_needed, self._loss = cluster.broker, True, loss
        self._log = cluster.broker.stored()
        if loss is Loss.SIGHT:
            cluster.broker.go_dark()
        elif loss is Loss.POWER:
            cluster.broker.cut_power()
        else:
            cluster.broker.destroy()

    def begin(self) -> None:
        """Begin the promotion, unless it is under way."""
        if self._task is None:
            self._task = self._loop.create_task(self._promote(), context=Context())

    async def done(self) -> None:
        """Wait until a slave is the master."""
        if self.lost is not None:
            self.begin()
        if self._task is not None:
            await self._task

    async def heal(self) -> None:
        """Repair everything, and start every server that is down."""
        cluster = self._cluster
        cluster.mend()
        await self.done()
        for machine in cluster.brokers:
            if not await cluster.bring_up(machine):
                return
        await self.reunite()
        cluster.note("healed")

    async def _promote(self) -> None:
        cluster, lost = self._cluster, self.lost
        assert lost is not None
        for _ in range(_TRIES):
            if await self._all_serve():
                break
        chosen = max(cluster.slaves, key=lambda slave: slave.log_end)
        self.chosen = chosen
        if chosen.is_serving:
            cluster.stop_broker(chosen)
        await until(cluster.clock, lambda: not chosen.is_up, _STOP_MS)
        self._look_at_losses(chosen, lost)
        if not chosen.log_end:
            # A log that shares no record with its master's is never cut.
            lost.destroy()
        others = [slave for slave in cluster.slaves if slave is not chosen]
        comes_back = cluster.chance.random() < _COMES_BACK
        number = chosen.config.broker_id
        role = lost.config.broker_role
        if len(others) + comes_back < lost.config.copies - 1:
            role = BrokerRole.ASYNC_MASTER
        chosen.config = replace(chosen.config, broker_role=role, broker_id=0)
        cluster.brokers[:] = [chosen, *others]
        self.lost = self.chosen = None
        cluster.note_promotion(chosen)
        if not chosen.is_up:
            cluster.start_broker(chosen)
        if comes_back:
            lost.config = replace(
                lost.config,
                broker_role=BrokerRole.SLAVE,
                broker_id=number,
                ha_rejoin=HaRejoin.TRUNCATE,
            )
            if self._loss is not Loss.DISK:
                self._losses.parted[lost] = None
            cluster.brokers.append(lost)
            cluster.start_broker(lost)
            self.on_return(lost)

    async def _all_serve(self) -> bool:
        slaves = self._cluster.slaves
        for slave in slaves:
            if not slave.is_up:
                self._cluster.start_broker(slave)
        return await until(
            self._cluster.clock, lambda: all(slave.is_serving for slave in slaves), _START_MS
        )

    def _look_at_losses(self, chosen: BrokerMachine, lost: BrokerMachine) -> None:
        """Report the records that the new master lacks.

        It must have all messages that a SYNC_MASTER acknowledged, unless a slave may have lost
        some.
        """
        is_safe = lost.config.broker_role is BrokerRole.SYNC_MASTER and not any(
            slave.may_lack for slave in self._cluster.slaves
        )
        now_ms = self._cluster.clock.monotonic_ms()
        self._losses.promoted(chosen, self._log, is_safe=is_safe, now_ms=now_ms)

    # --- slaves that differ ----------------------------------------------------------------------

    async def reunite(self) -> None:
        """Give every slave its master's log: it cuts the rest of its own, or gets an empty disk.

        All slaves serve, and the network is whole.
        """
        for step in (self._let_cut, self._empty):
            if not await self._all_told():
                return
            for slave in list(self._losses.parted):
                if not await self._with_another_start(slave, step):
                    return
        await self._all_told()

    async def _all_told(self) -> bool:
        """Wait until each parted slave reports the difference; record a violation if one does
        not."""
        losses = self._losses

        def is_told() -> bool:
            losses.compare_all()
            return all(
                slave.problem and slave.config.ha_rejoin is HaRejoin.REFUSE
                for slave in losses.parted
            )

        if await until(self._cluster.clock, is_told, _TOLD_MS):
            return True
        silent = [slave.name for slave in losses.parted if not slave.problem]
        if silent:
            self._watch.violate("same log", f"{silent} differ from their master, and do not say so")
        return not silent

    async def _with_another_start(
        self, slave: BrokerMachine, step: Callable[[BrokerMachine], None]
    ) -> bool:
        cluster = self._cluster
        if slave.is_serving:
            cluster.stop_broker(slave)
        await until(cluster.clock, lambda: not slave.is_up, _STOP_MS)
        step(slave)
        return await cluster.bring_up(slave)

    def _let_cut(self, slave: BrokerMachine) -> None:
        slave.config = replace(slave.config, ha_rejoin=HaRejoin.TRUNCATE)

    def _empty(self, slave: BrokerMachine) -> None:
        self._cluster.note(f"disk of {slave.name} emptied")
        slave.destroy()
