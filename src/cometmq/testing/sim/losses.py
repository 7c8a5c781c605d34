"""What logs lose, whose they are, and who must not have it: a master's with its power, a slave's
that differs from its master's.

A master with ASYNC_FLUSH may lose its last records in a power cut, or with a disk that fails. Its
slaves may have them still: such a slave is ``parted`` from its master, until its log is the
master's again. It must say so, and copy nothing meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.testing.sim.copies import parting, stored

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cometmq.testing.sim.cluster import Cluster
    from cometmq.testing.sim.copies import Stored
    from cometmq.testing.sim.invariants import Watch
    from cometmq.testing.sim.machines import BrokerMachine

_NOTHING: Final[frozenset[Stored]] = frozenset()


class Losses:
    """``parted`` are the slaves whose log may be another than their master's."""

    def __init__(self, cluster: Cluster, watch: Watch) -> None:
        self.parted: dict[BrokerMachine, None] = {}
        self._cluster = cluster
        self._watch = watch
        #: What the log of a master had and lost.
        self._gone: dict[BrokerMachine, frozenset[Stored]] = {}

    def opened(self, machine: BrokerMachine) -> None:
        """A broker has its store open, after whatever befell its machine; nobody knows yet."""
        before, machine.before = machine.before, None
        if machine is not self._cluster.broker:
            self.compare(machine)
            return
        if before is None and machine not in self._gone:
            return
        now = stored(machine)
        present = frozenset(now)
        if back := self._gone.get(machine, _NOTHING) & present:
            first = min(back, key=lambda each: each.physical_offset)
            self._watch.violate("gone", f"{first} is in the log of {machine.name} again")
        gone = [each for each in before or () if each not in present]
        if gone:
            bodies = {each.body for each in now}
            self._watch.lost(gone, bodies, is_safe=machine.is_synced)
            self._gone[machine] = self._gone.get(machine, _NOTHING).union(gone)
            self.parted.update(dict.fromkeys(self._cluster.slaves))

    def promoted(
        self, chosen: BrokerMachine, log: Sequence[Stored], *, is_safe: bool, now_ms: int
    ) -> None:
        """A slave takes the place of a master that had these records. ``is_safe`` says that it had
        to have all that was acknowledged."""
        now = stored(chosen)
        present = frozenset(now)
        gone = [each for each in log if each not in present]
        self._watch.lost(gone, {each.body for each in now}, is_safe=is_safe)
        self._watch.locks_lost_ms = now_ms
        # Delays go by the wall clock of another machine.
        self._watch.clock_jumped(now_ms)
        self._gone[chosen] = frozenset(gone)

    def compare_all(self) -> None:
        """See to it that every slave has its master's log."""
        for slave in self._cluster.slaves:
            if slave.is_serving:
                self.compare(slave)

    def compare(self, slave: BrokerMachine) -> None:
        """As far as both go a slave has its master's log, and it goes no further."""
        master = self._cluster.broker
        if not master.is_serving:
            return
        at = parting(master, slave)
        if at < 0 and slave.log_end > master.log_end:
            at = master.log_end
        if at < 0:
            self.parted.pop(slave, None)
        elif slave not in self.parted:
            self._watch.violate("same log", f"{slave.name} differs from offset {at} on")
