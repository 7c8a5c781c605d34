"""Records that logs lose, and which brokers must not have them.

A master with ASYNC_FLUSH may lose its last records in a power cut or on a failing disk. Its slaves
may still have them: such a slave is ``parted`` from its master, until their logs are equal again.
It must report that, and copy nothing meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.simulation.cluster.copies import parting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.simulation.cluster.copies import Stored
    from tests.simulation.cluster.invariants import Watch
    from tests.simulation.cluster.machines import BrokerMachine

_NOTHING: Final[frozenset[Stored]] = frozenset()


class Losses:
    """Checks the logs of ``brokers``, a list that begins with the master, for losses.

    ``parted`` are the slaves whose log may differ from their master's.
    """

    def __init__(self, brokers: Sequence[BrokerMachine], watch: Watch) -> None:
        self.parted: dict[BrokerMachine, None] = {}
        self._brokers = brokers
        self._watch = watch
        #: Records that the log of each master lost.
        self._gone: dict[BrokerMachine, frozenset[Stored]] = {}

    def opened(self, machine: BrokerMachine) -> None:
        """Check a broker's log when its store is open after a fault, before it serves."""
        before, machine.before = machine.before, None
        if machine is not self._brokers[0]:
            self.compare(machine)
            return
        if before is None and machine not in self._gone:
            return
        now = machine.stored()
        present = frozenset(now)
        if back := self._gone.get(machine, _NOTHING) & present:
            first = min(back, key=lambda each: each.physical_offset)
            self._watch.violate("gone", f"{first} is in the log of {machine.name} again")
        gone = [each for each in before or () if each not in present]
        if gone:
            bodies = {each.body for each in now}
            self._watch.lost(gone, bodies, is_safe=machine.is_synced)
            self._gone[machine] = self._gone.get(machine, _NOTHING).union(gone)
            self.parted.update(dict.fromkeys(self._brokers[1:]))

    def promoted(
        self, chosen: BrokerMachine, log: Sequence[Stored], *, is_safe: bool, now_ms: int
    ) -> None:
        """Check the log of a slave that replaces a master whose log had the records ``log``.

        With ``is_safe`` it must have all acknowledged ones.
        """
        now = chosen.stored()
        present = frozenset(now)
        gone = [each for each in log if each not in present]
        self._watch.lost(gone, {each.body for each in now}, is_safe=is_safe)
        self._watch.locks_lost_ms = now_ms
        # Delays are measured by the wall clock of another machine from now on.
        self._watch.clock_jumped(now_ms)
        self._gone[chosen] = frozenset(gone)

    def compare_all(self) -> None:
        """Compare every slave's log with its master's."""
        for slave in self._brokers[1:]:
            if slave.is_serving:
                self.compare(slave)

    def compare(self, slave: BrokerMachine) -> None:
        """Check that a slave's log is a prefix of its master's, or that the slave is parted."""
        master = self._brokers[0]
        if not master.is_serving:
            return
        at = parting(master.disk, slave.disk, min(master.log_end, slave.log_end))
        if at < 0 and slave.log_end > master.log_end:
            at = master.log_end
        if at < 0:
            self.parted.pop(slave, None)
        elif slave not in self.parted:
            self._watch.violate("same log", f"{slave.name} differs from offset {at} on")
