"""A broker's part in replication: as a master it serves slaves, as a slave it follows its master.

A slave finds its master's replication address in ``haMasterAddress``, or in the name servers'
answer to its registration. It copies tables from the master's address in that answer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from cometmq.broker.config import BrokerRole, HaRejoin
from cometmq.replication.master import Master, MasterSettings
from cometmq.replication.slave import Slave
from cometmq.store.log.scan import first_record
from cometmq.store.replica import Replica

if TYPE_CHECKING:
    import socket

    from cometmq.broker.append.acknowledgement import Appender
    from cometmq.broker.config import BrokerConfig
    from cometmq.broker.replication.metadatasync import MasterTables
    from cometmq.core.clock import Clock
    from cometmq.net.tasks import Tasks
    from cometmq.replication.slave import LogsDiffer
    from cometmq.store.messagestore import MessageStore

log = logging.getLogger(__name__)


class MasterPart:
    """The master's part: replication to its slaves."""

    def __init__(
        self, config: BrokerConfig, store: MessageStore, *, clock: Clock, tasks: Tasks
    ) -> None:
        self._config = config
        settings = MasterSettings(
            copies=config.copies,
            transfer_bytes=config.ha_transfer_batch_size,
            fall_behind_max_bytes=config.ha_slave_fallbehind_max,
            whole_history=config.ha_whole_history,
            rate_bytes_per_s=config.max_ha_transfer_byte_in_second,
        )
        self.master = Master(store, settings, clock=clock, tasks=tasks)
        self.relieved = self.master.has_a_near_slave

    def serves(self) -> bool:
        """Return True: a master may always be read."""
        return True

    def is_alone(self) -> bool:
        """Return False: a master has no master to be connected to."""
        return False

    async def start(
        self, listener: socket.socket | None, appender: Appender, _tasks: Tasks
    ) -> None:
        """Accept slaves; with SYNC_MASTER, sends wait for them from now on."""
        assert listener is not None
        if self._config.broker_role is BrokerRole.SYNC_MASTER:
            appender.wait_for_slaves(self.master, self._config.slave_timeout)
        await self.master.start(listener)

    async def close(self) -> None:
        """Disconnect the slaves."""
        await self.master.close()

    def master_is(self, _ha_address: str, _address: str) -> None:
        """Do nothing: this broker is the master."""

    def where(self) -> str:
        """Return "": only a slave refers requests to its master."""
        return ""

    def facts(self) -> dict[str, str]:
        """Return entries about the slaves for the broker's runtime information."""
        slaves = self.master.slaves()
        return {
            "brokerRole": self._config.broker_role.name,
            "slaves": str(len(slaves)),
            "slaveStates": ",".join(
                f"{slave.address}={slave.acked}(-{slave.behind_bytes})" for slave in slaves
            ),
        }


class SlavePart:
    """The slave's part: copies of its master's log and tables.

    ``rejoin`` is called when the logs differ and the slave may cut its own to join its master.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        tables: MasterTables,
        *,
        clock: Clock,
        rejoin: Callable[[LogsDiffer], None],
    ) -> None:
        self._config = config
        self._clock = clock
        self.ha_address = config.ha_master_address
        self.tables = tables
        self.slave = Slave(
            store,
            Replica(store),
            clock=clock,
            master=lambda: self.ha_address,
            whole_history=config.ha_whole_history,
            on_differ=self._differs,
        )
        self.slave.on_change.append(tables.soon)
        self._rejoin = rejoin

    async def start(
        self, _listener: socket.socket | None, _appender: Appender, tasks: Tasks
    ) -> None:
        """Follow the master from now on."""
        tasks.keep(self.slave.run_forever, name="copy the log", clock=self._clock)
        tasks.keep(self._copy_tables, name="copy the tables", clock=self._clock)

    async def _copy_tables(self) -> None:
        await self.tables.run_forever(lambda: self.slave.is_connected)

    def master_is(self, ha_address: str, address: str) -> None:
        """Take the master's addresses from a name server's answer."""
        if address != self.tables.master:
            log.info("master_known address=%s ha=%s", address, ha_address)
            self.slave.try_now()
        self.tables.master = address
        if not self._config.ha_master_address:
            self.ha_address = ha_address
        self.tables.soon()

    async def close(self) -> None:
        """Do nothing: the owner of the tasks ends them."""

    def where(self) -> str:
        """Return the master's address; "" while it is unknown."""
        return self.tables.master

    def relieved(self) -> bool:
        """Return True: a slave serves readers far from the end of the log itself."""
        return True

    def serves(self) -> bool:
        """Return True if slaves may be read, or while the master is not connected."""
        return self._config.slave_read_enable or not self.slave.is_connected

    def is_alone(self) -> bool:
        """Return True while the master is not connected."""
        return not self.slave.is_connected

    def _differs(self, problem: LogsDiffer) -> None:
        if self._config.ha_rejoin is not HaRejoin.TRUNCATE:
            return
        segments = self.slave.store.log.segments
        first = first_record(segments.files[0]) if segments.files else None
        if first is None or problem.offset < segments.start + first.size_bytes:
            log.error("rejoin_refused reason=%r", f"{problem}; the logs have no record in common")
            return
        self._rejoin(problem)

    def facts(self) -> dict[str, str]:
        """Return entries about replication for the broker's runtime information."""
        problem = self.slave.problem
        return {
            "brokerRole": self._config.broker_role.name,
            "masterAddress": self.tables.master,
            "masterHaAddress": self.ha_address,
            "masterConnected": str(self.slave.is_connected).lower(),
            "masterLogEnd": str(self.tables.master_end),
            "tablesAgeMs": str(self.tables.age_ms),
            "replicationProblem": "" if problem is None else str(problem),
        }
