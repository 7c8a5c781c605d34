"""A broker's part in replication: as a master it serves slaves, as a slave it follows its master.

A slave finds its master's replication address in ``haMasterAddress``, or in the name servers'
response to its registration. That response also has the address from which it copies tables.

Only a master accepts sends, changes tables, and delivers delayed messages and transactions. A slave
refuses such requests, and removes notes about this work that it kept as a master. It serves pulls,
heartbeats, offsets and locks, so that consumers continue while the master is gone.

A slave copies its master's tables every 10 s: topics, groups, consumer offsets and positions of
delay levels (upstream: SlaveSynchronize.java). Topics come first, because a queue without its topic
cannot be read. A copy that is a little old does no harm: a consumer that continues at the slave may
receive the messages of the last seconds again. Positions of delay levels and of transactions are
applied only once this log is as long as the master's was. They mark the messages that the master
has delivered. If they were ahead of this log, a promoted slave would never deliver some messages.

Deleted topics are removed from the slave's disk too, so that a new topic with the same name starts
empty. A CometMQ master reports the log offset at which the messages of a deleted topic end. A Java
master does not; then the end of the slave's log at the time of the request is used. In both cases
the queues stay until the slave has dispatched its log up to that offset.

The role of a promoted slave and the address that it took over are kept in
``config/cometmq-role.json`` beside the tables, so that the broker does not become a slave again if
it is later started with its old settings. Java brokers ignore the file.

    {"role":"ASYNC_MASTER","sinceMs":1700000000000,"address":"10.0.0.1:10911"}

It overrides settings that say SLAVE, or that lack the address, with a warning in the log. Once the
settings agree with it, the file is removed, and the settings alone count.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import UNSET

from cometmq.broker.config import BrokerRole, HaRejoin
from cometmq.broker.scheduled.timers.snapshot import STATE_FILE
from cometmq.broker.topics.table import UNLISTED
from cometmq.broker.transactions.checkback import GROUP as TRANSACTION_GROUP
from cometmq.core.errors import BadRequest, CometError, StoreCorrupt
from cometmq.net.outgoing import ClientTls
from cometmq.protocol.bodies import KvTable, SubscriptionGroupTable, TopicConfigTable
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.fastjson import parse_json
from cometmq.protocol.headers import AllTopics
from cometmq.replication.master import Master, MasterSettings
from cometmq.replication.slave import Slave
from cometmq.store.files import make_durable_directory, read_file, write_file_atomically
from cometmq.store.log.scan import first_record
from cometmq.store.replica import Replica
from cometmq.store.timerfiles import TIMER_DIRECTORY

if TYPE_CHECKING:
    import socket

    from cometmq.broker.config import BrokerConfig
    from cometmq.broker.context import BrokerContext
    from cometmq.broker.scheduled.delaylevels import DelayDelivery
    from cometmq.core.clock import Clock
    from cometmq.net.client import Remoting
    from cometmq.net.peer import Peer
    from cometmq.net.router import Handler
    from cometmq.net.tls import ServerTls
    from cometmq.protocol.frame import Reply, Request
    from cometmq.protocol.headers import Header
    from cometmq.replication.slave import LogsDiffer
    from cometmq.store.files import Files

log = logging.getLogger(__name__)

ROLE_FILE: Final = "cometmq-role.json"
#: Interval between two copies of the tables, and the time that the master has for each answer.
TABLES_INTERVAL_MS: Final = 10_000
TABLES_TIMEOUT_MS: Final = 5_000
#: Maximum time for which a copy of the tables waits for the log, and the interval of its checks.
REACH_MS: Final = 1_000
_REACH_STEP_MS: Final = 10
#: Asks for a restart that cuts a slave's log, because the log differs from its master's.
Rejoin = Callable[["LogsDiffer"], None]

_SENDS: Final = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.CONSUMER_SEND_MSG_BACK,
    RequestCode.SEND_REPLY_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2,
    RequestCode.RECALL_MESSAGE,
)
_CHANGES: Final = (
    RequestCode.UPDATE_AND_CREATE_TOPIC,
    RequestCode.DELETE_TOPIC_IN_BROKER,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.DELETE_SUBSCRIPTIONGROUP,
    RequestCode.CLEAN_UNUSED_TOPIC,
)
#: Files, relative to the store's root, in which a master keeps notes for its next start.
_NOTES: Final = (
    os.path.join("config", "transactions.json"),
    os.path.join(TIMER_DIRECTORY, STATE_FILE),
)


class _Kept(msgspec.Struct, rename="camel"):
    """Content of the role file."""

    role: BrokerRole
    since_ms: int
    address: str = ""


def role_path(root: str) -> str:
    """Return the path of the role file in a store directory."""
    return os.path.join(root, "config", ROLE_FILE)


def keep_role(
    role: BrokerRole, root: str, files: Files, clock: Clock, *, address: str = ""
) -> None:
    """Store the role in which the broker starts from now on, whatever its settings say.

    ``address`` is an address that it took over, if any. The file is durable on return. Raises
    OSError if it cannot be written.
    """
    path = role_path(root)
    make_durable_directory(files, os.path.dirname(path))
    kept = msgspec.json.encode(_Kept(role, clock.wall_ms(), address))
    write_file_atomically(files, path, kept, durable=True)


def put_back_role(former: bytes | None, root: str, files: Files) -> None:
    """Restore the former content of the role file; None if there was no file.

    The change is durable on return. Raises OSError if it fails.
    """
    path = role_path(root)
    if read_file(files, path) == former:
        return
    if former is None:
        files.unlink(path)
        files.sync_directory(os.path.dirname(path))
    else:
        write_file_atomically(files, path, former, durable=True)


def role_to_begin_in(config: BrokerConfig, root: str, files: Files) -> BrokerConfig:
    """Return the settings to start with: ``config``, with the role and address of the role file.

    Raises StoreCorrupt if the file is malformed, and OSError if it cannot be read.
    """
    path = role_path(root)
    raw = read_file(files, path)
    if raw is None:
        return config
    try:
        kept = msgspec.json.decode(raw, type=_Kept)
    except (ValueError, RecursionError) as error:
        raise StoreCorrupt(
            path,
            -1,
            f"it does not contain the kept role ({error}): remove the file to use the setting "
            "brokerRole",
        ) from None
    if kept.address and kept.address != config.taken_address:
        log.warning(
            "kept_address_overrides_settings address=%s reason=%r",
            kept.address,
            f"this broker took over the address: set takenAddress={kept.address} in its settings, "
            f"or remove {path} to use the settings",
        )
        config = replace(config, taken_address=kept.address)
    elif not config.is_slave:
        log.info("kept_role_removed path=%s settings=%s", path, config.broker_role.name)
        files.unlink(path)
        files.sync_directory(os.path.dirname(path))
        return config
    if not config.is_slave:
        return config
    log.warning(
        "kept_role_overrides_settings role=%s settings=SLAVE reason=%r",
        kept.role.name,
        f"this broker was promoted: set brokerRole={kept.role.name} and brokerId=0 in its "
        f"settings, or remove {path} to make it a slave again",
    )
    return replace(config, broker_role=kept.role, broker_id=0)


def as_slave(handlers: Mapping[int, Handler], master: Callable[[], str]) -> dict[int, Handler]:
    """Return the handlers of a slave: ``handlers``, but requests that only a master serves are
    refused.

    ``master`` returns the master's address, "" while it is unknown.
    """

    def refusing(code: int, problem: str) -> Callable[[Handler], Handler]:
        def instead_of(handler: Handler) -> Handler:
            def refuse(_peer: Peer, _request: Request[Any]) -> Reply:
                at = master()
                raise BadRequest(code, f"{problem}: ask the master{f' {at}' if at else ''}")

            async def refuse_in_task(peer: Peer, request: Request[Any]) -> Reply:
                return refuse(peer, request)

            return refuse_in_task if inspect.iscoroutinefunction(handler) else refuse

        return instead_of

    send = refusing(
        ResponseCode.SERVICE_NOT_AVAILABLE, "this broker is a slave and accepts no sends"
    )
    end = refusing(ResponseCode.SLAVE_NOT_AVAILABLE, "a slave cannot end or resume transactions")
    change = refusing(ResponseCode.SYSTEM_ERROR, "a slave cannot change topics and groups")
    refusals = {
        **dict.fromkeys(_SENDS, send),
        **dict.fromkeys(_CHANGES, change),
        RequestCode.END_TRANSACTION: end,
        RequestCode.RESUME_CHECK_HALF_MESSAGE: end,
    }
    return {
        code: refusals[RequestCode(code)](handler) if code in refusals else handler
        for code, handler in handlers.items()
    }


def forget_notes(files: Files, root: str) -> None:
    """Remove, durably, the notes that this broker kept as a master.

    The slave's log may continue with other records than the notes refer to. A master without notes
    finds the same facts in the log. Raises OSError if a note cannot be removed.
    """
    for note in _NOTES:
        path = os.path.join(root, note)
        found = [name for name in (path, f"{path}.bak") if files.exists(name)]
        for name in found:
            files.unlink(name)
        if found:
            files.sync_directory(os.path.dirname(path))


class MasterTables:
    """Keeps a slave's tables equal to its master's.

    ``master`` is the master's address, "" while it is unknown. :meth:`run_forever` sends no request
    while the slave copies no log from the master: the address may belong to a slave or an empty
    broker by now.
    """

    def __init__(self, context: BrokerContext, delay: DelayDelivery, remoting: Remoting) -> None:
        self._store = context.store
        self._topics = context.tables.topics
        self._groups = context.tables.groups
        self._offsets = context.tables.offsets
        self._delay = delay
        self._remoting = remoting
        self._clock = context.clock
        self.master = ""
        self._due = asyncio.Event()
        self.synced_ms = -1
        self._has_compared = False
        #: Deleted topics whose queues may still hold messages, and the log offset at which these
        #: end.
        self._former: dict[str, int] = {}
        #: End of the master's log, reported at ``master_end_ms``; -1 before the first report.
        self.master_end = -1
        self.master_end_ms = 0

    @property
    def age_ms(self) -> int:
        """Age of the copies in ms; -1 before the first complete copy."""
        return -1 if self.synced_ms < 0 else self._clock.monotonic_ms() - self.synced_ms

    def soon(self) -> None:
        """Copy the tables at once, because the master is connected or has a new address."""
        self._due.set()

    async def run_forever(self, follows: Callable[[], bool]) -> None:
        """Copy the tables every TABLES_INTERVAL_MS, or at once after :meth:`soon`, until cancelled.

        Nothing is copied while ``follows`` returns False.
        """
        failing = False
        while True:
            address = self.master
            if address and follows():
                try:
                    await self.copy(address)
                    failing = False
                except (CometError, ValueError, OSError) as error:
                    if not failing:
                        log.warning("tables_not_copied master=%s reason=%s", address, error)
                    failing = True
            self._due.clear()
            try:
                async with asyncio.timeout(TABLES_INTERVAL_MS / 1000):
                    await self._due.wait()
            except TimeoutError:
                continue

    async def copy(self, address: str) -> None:
        """Copy all tables once, and ask for the length of the master's log.

        Raise CometError, or ValueError for a malformed answer.
        """
        # Records that arrive later may belong to a topic that the master creates after its answer.
        asked_at = self._store.written_offset
        topics = parse_json(
            await self._ask(address, RequestCode.GET_ALL_TOPIC_CONFIG, AllTopics("true")),
            TopicConfigTable,
        )
        if topics.data_version != self._topics.data_version or not self._has_compared:
            await self._take_topics(topics, asked_at)
        await self._drop_former()
        offsets = await self._ask(address, RequestCode.GET_ALL_CONSUMER_OFFSET)
        delays = await self._ask(address, RequestCode.GET_ALL_DELAY_OFFSET)
        await self._ask_for_end(address)
        if await self._has_reached(self.master_end):
            self._offsets.replace(offsets)
            self._delay.replace(delays)
        else:
            self._offsets.replace(offsets, but=TRANSACTION_GROUP)
        groups = parse_json(
            await self._ask(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG),
            SubscriptionGroupTable,
        )
        if groups.data_version != self._groups.data_version:
            self._groups.replace(groups.subscription_group_table, groups.data_version)
        self.synced_ms = self._clock.monotonic_ms()

    async def _ask_for_end(self, address: str) -> None:
        runtime = await self._ask(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        end = parse_json(runtime, KvTable).table.get("commitLogMaxOffset", "")
        if end.isdecimal() and len(end) < 20:
            self.master_end, self.master_end_ms = int(end), self._clock.monotonic_ms()

    async def _has_reached(self, end: int) -> bool:
        """Wait until this log is as long as the master's was, at most REACH_MS."""
        deadline_ms = self._clock.monotonic_ms() + REACH_MS
        while self._store.written_offset < end:
            if self._clock.monotonic_ms() >= deadline_ms:
                return False
            await self._clock.sleep_ms(_REACH_STEP_MS)
        return True

    async def _take_topics(self, table: TopicConfigTable, asked_at: int) -> None:
        """Replace the topics by the master's; note the deleted ones for :meth:`_drop_former`."""
        store, topics = self._store, self._topics
        gone = topics.replace(table.topic_config_table, table.data_version)
        if table.cometmq_deleted is not UNSET:
            # A topic in neither list was never known to this master, for example because it was
            # promoted before it copied the topic. Its queues stay.
            ends = table.cometmq_deleted
        else:
            # The broker's own topics are left out: not every master lists them.
            known = store.queues.known
            deleted = [topic for topic in gone if topic in known and topic not in UNLISTED]
            ends = dict.fromkeys(deleted, asked_at)
        for topic, end in sorted(ends.items(), key=lambda item: item[1]):
            if topics.life_begin(topic) < end:
                topics.remember_deletion(topic, end=end, log_start=store.log.segments.start)
            self._former[topic] = end
        # Saved before any queue is deleted: after a crash, the next start finishes the deletion.
        await topics.saved()
        self._has_compared = True

    async def _drop_former(self) -> None:
        """Delete queues that hold only messages from before the deletion of their topic."""
        store, dropped = self._store, False
        for topic, end in list(self._former.items()):
            # Records that wait for dispatch may belong to the new topic.
            if store.dispatched_offset >= end and store.dispatched_offset == store.written_offset:
                del self._former[topic]
                if topic in store.queues.known:
                    store.deletions.drop_former(topic, end)
                    dropped = True
                    log.info("former_queues_dropped topic=%s end=%d", topic, end)
        if dropped:
            await store.maintenance.note_soon()

    async def _ask(self, address: str, code: RequestCode, header: Header | None = None) -> bytes:
        response = await self._remoting.call(address, code, header, timeout_ms=TABLES_TIMEOUT_MS)
        return response.body


def master_settings(config: BrokerConfig) -> MasterSettings:
    """Return the settings of a master's replication."""
    return MasterSettings(
        copies=config.copies,
        transfer_bytes=config.ha_transfer_batch_size,
        fall_behind_max_bytes=config.ha_slave_fallbehind_max,
        whole_history=config.ha_whole_history,
        rate_bytes_per_s=config.max_ha_transfer_byte_in_second,
    )


class MasterPart:
    """The master's part: replication to its slaves."""

    def __init__(self, context: BrokerContext) -> None:
        self._config = context.config
        self._appender = context.appender
        self.master = Master(
            context.store,
            master_settings(context.config),
            clock=context.clock,
            tasks=context.tasks,
            limits=context.stats.limits,
        )
        self.relieved = self.master.has_a_near_slave

    def settings_changed(self) -> None:
        """Apply changed sizes and rates."""
        self.master.settings = master_settings(self._config)

    def serves(self) -> bool:
        """Return True: a master may always be read."""
        return True

    def is_alone(self) -> bool:
        """Return False: a master has no master to be connected to."""
        return False

    async def start(self, listener: socket.socket | None, tls: ServerTls | None) -> None:
        """Accept slaves; as a SYNC_MASTER, make sends wait for them from now on."""
        assert listener is not None
        if self._config.broker_role is BrokerRole.SYNC_MASTER:
            self._appender.wait_for_slaves(self.master, self._config)
        await self.master.start(listener, tls)

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
            "slavesNeeded": str(self._config.copies - 1),
            "slaveStates": ",".join(
                f"{slave.address}={slave.acked}(-{slave.behind_bytes})" for slave in slaves
            ),
        }


class SlavePart:
    """The slave's part: copies of its master's log and tables.

    ``rejoin`` is called when the logs differ and the slave may cut its own to join its master.
    """

    def __init__(self, context: BrokerContext, tables: MasterTables, rejoin: Rejoin) -> None:
        config, store, clock = context.config, context.store, context.clock
        self._config = config
        self._clock = clock
        self._tasks = context.tasks
        self.ha_address = config.ha_master_address
        self.tables = tables
        self.slave = Slave(
            store,
            Replica(store),
            clock=clock,
            master=lambda: self.ha_address,
            whole_history=config.ha_whole_history,
            on_differ=self._differs,
            tls=ClientTls(config.client_tls) if config.ha_tls_enable else None,
        )
        self.slave.on_change.append(tables.soon)
        self._rejoin = rejoin

    async def start(self, _listener: socket.socket | None, _tls: ServerTls | None) -> None:
        """Follow the master from now on."""
        self._tasks.keep(self.slave.run_forever, name="copy the log", clock=self._clock)
        self._tasks.keep(self._copy_tables, name="copy the tables", clock=self._clock)

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

    def settings_changed(self) -> None:
        """Do nothing: a slave reads its settings at each use."""

    def serves(self) -> bool:
        """Return True with slaveReadEnable, or while the master is not connected."""
        return self._config.slave_read_enable or not self.slave.is_connected

    def is_alone(self) -> bool:
        """Return True while the master is not connected."""
        return not self.slave.is_connected

    def _differs(self, problem: LogsDiffer) -> None:
        """Ask for a restart that cuts the log, if haRejoin allows it and the logs share records."""
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
