"""What an operator does once a master is gone: the slave whose log is the longest becomes the
master, and the others follow it. The machine that was lost may come back as a slave: with an empty
disk, or with its old log, which it cuts.
"""

from __future__ import annotations

from contextvars import Context
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from cometmq.broker.config import BrokerRole, HaRejoin
from cometmq.testing.sim.copies import stored
from cometmq.testing.sim.machines import until

if TYPE_CHECKING:
    import asyncio

    from cometmq.testing.sim.cluster import Cluster
    from cometmq.testing.sim.copies import Stored
    from cometmq.testing.sim.invariants import Watch
    from cometmq.testing.sim.loop import SimLoop
    from cometmq.testing.sim.machines import BrokerMachine

_TRIES: Final = 6
_START_MS: Final = 20_000
_STOP_MS: Final = 30_000
_COMES_BACK: Final = 0.6
_KEEPS_DISK: Final = 0.5


class Operator:
    """``lost`` is the machine whose disk was lost, as long as no slave is in its place."""

    def __init__(self, loop: SimLoop, cluster: Cluster, watch: Watch) -> None:
        self.lost: BrokerMachine | None = None
        #: Whether a master was lost at all.
        self.was_needed = False
        self._loop = loop
        self._cluster = cluster
        self._watch = watch
        #: The machine that came back with its old log, until that is its master's.
        self.rejoining: BrokerMachine | None = None
        self._keeps_disk = False
        self._log: list[Stored] = []
        self._task: asyncio.Task[None] | None = None

    def lose_master(self) -> None:
        """The master, which runs, is gone with its disk."""
        cluster = self._cluster
        self.lost, self.was_needed = cluster.broker, True
        self._log = stored(cluster.broker)
        self._keeps_disk = cluster.chance.random() < _KEEPS_DISK
        if self._keeps_disk:
            cluster.broker.go_dark()
        else:
            cluster.broker.destroy()

    def begin(self) -> None:
        """Go about it, unless that is under way."""
        if self._task is None:
            self._task = self._loop.create_task(self._promote(), context=Context())

    async def done(self) -> None:
        """Wait until a slave is the master."""
        if self.lost is not None:
            self.begin()
        if self._task is not None:
            await self._task

    async def _promote(self) -> None:
        cluster, lost = self._cluster, self.lost
        assert lost is not None
        for _ in range(_TRIES):
            if await self._all_serve():
                break
        chosen = max(cluster.slaves, key=lambda slave: slave.log_end)
        if chosen.is_serving:
            cluster.stop_broker(chosen)
        await until(cluster.clock, lambda: not chosen.is_up, _STOP_MS)
        self._look_at_losses(chosen, lost)
        if not chosen.log_end:
            # A log that has nothing in common with its master's is never cut.
            lost.destroy()
        others = [slave for slave in cluster.slaves if slave is not chosen]
        comes_back = cluster.chance.random() < _COMES_BACK
        number = chosen.config.broker_id
        role = lost.config.broker_role
        if len(others) + comes_back < lost.config.copies - 1:
            role = BrokerRole.ASYNC_MASTER
        chosen.config = replace(chosen.config, broker_role=role, broker_id=0)
        cluster.brokers[:] = [chosen, *others]
        self.lost = None
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
            self.rejoining = lost if self._keeps_disk else None
            cluster.brokers.append(lost)
            cluster.start_broker(lost)

    async def _all_serve(self) -> bool:
        slaves = self._cluster.slaves
        for slave in slaves:
            if not slave.is_up:
                self._cluster.start_broker(slave)
        return await until(
            self._cluster.clock, lambda: all(slave.is_serving for slave in slaves), _START_MS
        )

    def _look_at_losses(self, chosen: BrokerMachine, lost: BrokerMachine) -> None:
        """What a SYNC_MASTER acknowledged is in the log of the slave that had it, if that had to
        keep it; everything else behind its end is gone."""
        end = chosen.log_end
        is_safe = lost.config.broker_role is BrokerRole.SYNC_MASTER and not any(
            slave.may_lack for slave in self._cluster.slaves
        )
        gone = [each for each in self._log if each.physical_offset >= end]
        kept = {each.body for each in stored(chosen)}
        self._watch.lost(gone, kept, self._cluster.clock.monotonic_ms(), is_safe=is_safe)
