"""Composition of a broker: store, tables, handlers, sockets and background work.

Start: reserve the ports, open the store (which recovers it), read the tables, serve, register.
Stop, in reverse: stop accepting connections, unregister, end background work, answer pending
requests, write the tables, close the store. No port answers before recovery is complete.
"""

from __future__ import annotations

import logging
import os
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING

from cometmq.acl.control import AccessControl
from cometmq.acl.files import AclFiles
from cometmq.broker.acknowledgement import Appender
from cometmq.broker.admin.handlers import admin_parts
from cometmq.broker.config import resolve
from cometmq.broker.consumers.groups import GroupTable
from cometmq.broker.consumers.members import Members
from cometmq.broker.consumers.offsets import ConsumerOffsets, OffsetHandler
from cometmq.broker.consumers.queuelocks import QueueLockHandler
from cometmq.broker.consumers.retry import SendBackHandler
from cometmq.broker.context import BrokerContext, BrokerTables
from cometmq.broker.dedup.guard import RepeatGuard
from cometmq.broker.hooks import ConsumeHooks, SendHooks
from cometmq.broker.pull.filterdata import FilterTable
from cometmq.broker.pull.filtering import Filters
from cometmq.broker.pull.handler import PullHandler
from cometmq.broker.replication.addresstakeover import AddressAdmin, Addresses, join, reserve_ha
from cometmq.broker.replication.metadatasync import MasterTables
from cometmq.broker.replication.promotion import PromotionAdmin, Rivals
from cometmq.broker.replication.roles import MasterPart, SlavePart, as_slave, forget_notes
from cometmq.broker.scheduled.delaylevels import DelayDelivery, DelayLevels
from cometmq.broker.scheduled.timers.recall import RecallHandler
from cometmq.broker.scheduled.timers.rules import TimerRules
from cometmq.broker.scheduled.timers.service import Timers
from cometmq.broker.send.answers import SendAnswers
from cometmq.broker.send.handler import SendHandler
from cometmq.broker.send.reply import ReplyHandler
from cometmq.broker.stats import BrokerStats
from cometmq.broker.tables import warn_of_missing
from cometmq.broker.topics.registration import BrokerPlace, Registration
from cometmq.broker.topics.table import TopicTable
from cometmq.broker.transactions.checkback import CheckBack
from cometmq.broker.transactions.endtransaction import Transactions
from cometmq.core.errors import StoreError
from cometmq.message.ids import pack_host
from cometmq.net.busypoll import BusyPoll
from cometmq.net.client import Remoting
from cometmq.net.router import Router, handlers_of
from cometmq.net.server import Reserve, Server, reserve
from cometmq.net.tasks import Tasks
from cometmq.net.watchdog import Watchdog
from cometmq.protocol.registry import Side
from cometmq.speedups import CORE, DESCRIPTION
from cometmq.store.recovery.opening import open_store

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from cometmq.broker.config import BrokerConfig, BrokerRole
    from cometmq.core.clock import Clock
    from cometmq.net.peer import Peer
    from cometmq.net.router import Handler, HandlerPart
    from cometmq.protocol.framer import TakeFrames
    from cometmq.replication.slave import LogsDiffer
    from cometmq.store.config import StoreConfig
    from cometmq.store.files import Files

log = logging.getLogger(__name__)


class Broker:
    """One broker; :meth:`start` and :meth:`stop` it once each.

    ``send_hooks``, ``consume_hooks`` and ``router.hooks`` may be filled after the start.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store_config: StoreConfig,
        clock: Clock,
        *,
        files: Files | None = None,
        reserve: Reserve = reserve,
        rejoin: Callable[[LogsDiffer], None] = lambda problem: None,
        promote: Callable[[BrokerRole], None] | None = None,
    ) -> None:
        self.config = config
        self._store_config = store_config
        self.clock = clock
        self._files = files
        self._reserve = reserve
        root = store_config.store_path_root_dir
        self.addresses = Addresses(config, root, reserve)
        self.watchdog = Watchdog(clock)
        self._tasks = Tasks(self.watchdog)
        self.send_hooks = SendHooks()
        self.consume_hooks = ConsumeHooks()
        self.port = 0
        #: Requests for a restart, which a supervisor carries out.
        self._rejoin = rejoin
        self.promote = promote
        self._stack = AsyncExitStack()

    async def start(self) -> int:
        """Recover, serve and register; return the port.

        Raise StoreError if the store cannot be opened, OSError for an address that cannot be bound.
        Everything opened before is closed again then.
        """
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        name = self.config.broker_name
        log.info("broker started name=%s port=%d core=%s", name, self.port, DESCRIPTION)
        return self.port

    async def stop(self) -> None:
        """Stop the broker; everything acknowledged is in the store's files on return."""
        await self._stack.aclose()
        log.info("broker stopped name=%s port=%d", self.config.broker_name, self.port)

    async def _start(self) -> None:
        # Callbacks on the stack run in reverse order, also if a later step fails.
        push, push_async = self._stack.callback, self._stack.push_async_callback
        listeners = self.addresses.reserve()
        for listener in listeners:
            push(listener.close)
        self.port = self.addresses.port
        self._ha_listener = self._reserve_ha()
        self.store = open_store(self._store_config, self.clock, self._files)
        push(self.store.close)
        if self.config.is_slave:
            forget_notes(self.store.files, self._store_config.store_path_root_dir)
            # Consumers may be ahead of this copy; as a master the broker must set them back.
            self.store.maintenance.shrunk = True
        self._build()
        push_async(self.remoting.close)
        # Closed in reverse: transaction checks first, because they move consumer offsets.
        for table in (
            self.groups,
            self.topics,
            self.offsets,
            self.stored_filters,
            self.queue_locks,
            self.delay,
        ):
            push_async(table.close)
        if not self.config.is_slave:
            push_async(self.checkback.close)
            push_async(self.timers.close)
        push(self.appender.close)
        push_async(self._tasks.close)
        # Before the first append, because deletions are remembered by log offsets.
        for early in (self.topics, self.queue_locks):
            with suppress(StoreError):  # a full disk, say: logged; the next change retries
                await early.saved()
        if not self.config.is_slave:
            await self.checkback.recover()
            await self.timers.recover()
            self.store.maintenance.expiry.release_with(self.timers.release)
        if self.repeats is not None:
            await self.repeats.recover()
        await self.store.start(self._tasks)
        self._spawn_background()
        await self.part.start(self._ha_listener, self.appender, self._tasks)
        push_async(self.part.close)
        push_async(self.server.close)
        for listener in listeners:
            await self.server.serve(listener)
        push_async(self.registration.stop)
        await self.registration.start(self._place(), self.topics, self.part.master_is)

    @property
    def registered(self) -> list[str]:
        """Addresses of the name servers that hold a registration of this broker."""
        return self.registration.registered_with

    def _reserve_ha(self) -> socket.socket | None:
        """Return the listening socket for slaves; None on a slave."""
        config = self.config
        if config.is_slave:
            return None
        listener = reserve_ha(self._reserve, config.bind_address, config.ha_listen_port, self.port)
        self._stack.callback(listener.close)
        return listener

    # --------------------------------------------------------------------------------- composition

    def _build(self) -> None:
        config, clock, tasks = self.config, self.clock, self._tasks
        self.stats = BrokerStats(clock, self.store.dispatcher)
        self.store.store_host = pack_host(resolve(config.broker_ip1), self.port)
        directory = os.path.join(self._store_config.store_path_root_dir, "config")
        self._build_tables(directory)
        self.store.flusher.watch(self.watchdog.watched)
        self.repeats = self._make_repeats()
        self.answers = SendAnswers(
            config=config,
            topics=self.topics,
            hooks=self.send_hooks,
            store_host=self.store.store_host,
        )
        self.appender = Appender(
            self.store,
            clock=clock,
            store_host=self.store.store_host,
            watchdog=self.watchdog,
            answers=self.answers,
            listener=self.repeats,
        )
        self.members = Members(
            topics=self.topics,
            groups=self.groups,
            clock=clock,
            log_end=lambda: self.store.written_offset,
        )
        self.context = BrokerContext(
            config,
            clock,
            tasks,
            self._files,
            self.store,
            self.appender,
            self.stats,
            BrokerTables(self.topics, self.groups, self.offsets, self.members),
        )
        self.levels = DelayLevels(config.message_delay_level)
        self.delay = DelayDelivery(
            directory,
            config=config,
            levels=self.levels,
            store=self.store,
            appender=self.appender,
            clock=clock,
            tasks=tasks,
            files=self._files,
        )
        self.timers = Timers(store=self.store, appender=self.appender, clock=clock)
        self._build_transactions(directory)
        self._load_tables(directory)
        self._build_outgoing()
        self.access = self._make_access()
        handlers = self._handlers()
        self.router = Router(
            Side.BROKER,
            handlers,
            tasks=tasks,
            remote_admin=config.remote_admin_enable,
            access=self.access,
            takers=self._takers() if CORE == "compiled" else {},
        )
        self.lookout = self._make_lookout()
        self.server = Server(
            self.router, clock=clock, tasks=tasks, watchdog=self.watchdog, lookout=self.lookout
        )

    def _build_tables(self, directory: str) -> None:
        """Build the tables, and the registration with name servers that their changes need."""
        config, clock, tasks = self.config, self.clock, self._tasks
        self.remoting = Remoting(clock=clock, tasks=tasks)
        self.registration = Registration(
            config.name_servers, remoting=self.remoting, clock=clock, tasks=tasks
        )
        self.topics = TopicTable(
            directory,
            config=config,
            clock=clock,
            tasks=tasks,
            files=self._files,
            announcer=self.registration,
        )
        self.groups = GroupTable(
            directory, config=config, clock=clock, tasks=tasks, files=self._files
        )
        self.offsets = ConsumerOffsets(
            directory, config=config, clock=clock, tasks=tasks, files=self._files
        )
        self.queue_locks = QueueLockHandler(directory, clock=clock, tasks=tasks, files=self._files)

    def _build_outgoing(self) -> None:
        """Build the part in replication, and the search for other masters of this name."""
        config, clock, tasks = self.config, self.clock, self._tasks
        self.part: MasterPart | SlavePart
        if config.is_slave:
            tables = MasterTables(
                store=self.store,
                topics=self.topics,
                groups=self.groups,
                offsets=self.offsets,
                delay=self.delay,
                remoting=self.remoting,
                clock=clock,
            )
            self.part = SlavePart(config, self.store, tables, clock=clock, rejoin=self._rejoin)
        else:
            self.part = MasterPart(config, self.store, clock=clock, tasks=tasks)
        self.rivals = Rivals(
            config.broker_name,
            {self.addresses.own, self.addresses.current},
            [] if config.is_slave else config.name_servers,
            remoting=self.remoting,
            clock=clock,
        )

    def _build_transactions(self, directory: str) -> None:
        self.transactions = Transactions(
            config=self.config,
            store=self.store,
            appender=self.appender,
            topics=self.topics,
            clock=self.clock,
            tasks=self._tasks,
        )
        self.stored_filters = FilterTable(
            directory,
            config=self.config,
            clock=self.clock,
            tasks=self._tasks,
            files=self._files,
        )
        self.members.on_subscribed.append(self.stored_filters.subscribed)
        self.members.on_group_gone.append(self.stored_filters.group_gone)
        self.checkback = CheckBack(directory, self.context, self.transactions)

    def _make_repeats(self) -> RepeatGuard | None:
        if not self.config.drop_repeated_ids_topics:
            return None
        return RepeatGuard(
            config=self.config, store=self.store, topics=self.topics, clock=self.clock
        )

    def _make_access(self) -> AccessControl | None:
        """Return access control with its files read. Raise AclDenied if one cannot be used."""
        if not self.config.acl_enable:
            return None
        home = self.config.rocketmq_home or self._store_config.store_path_root_dir
        return AccessControl(AclFiles(home, self.clock.wall_ms), self.clock)

    def _make_lookout(self) -> BusyPoll | None:
        if not self.config.lookout_micros:
            return None
        # The sync thread needs the interpreter lock to report that it is done.
        return BusyPoll(
            self.config.lookout_micros, self.clock, waits=self.store.sync_waiters.parked
        )

    def _load_tables(self, directory: str) -> None:
        if self.store.written_offset > self.store.log.segments.start:
            warn_of_missing(self.store.files, directory)
        self.topics.load()
        self.groups.load()
        self.offsets.load()
        self.queue_locks.load()
        self.stored_filters.load()
        self.topics.adopt(self.store)
        self.offsets.delete_topics(self.topics.deleted())
        self.offsets.clamp(self.store)
        self.delay.load()

    def _handlers(self) -> dict[int, Handler]:
        parts = (*self._hot_parts(), *self._group_parts(), *self._admin_parts())
        found = handlers_of(parts)
        return as_slave(found, self.part.where) if self.config.is_slave else found

    def _takers(self) -> dict[int, TakeFrames[Peer]]:
        """Return the functions that take many requests from a connection at once, by request
        code."""
        return {} if self.config.is_slave else self.pull.takers() | self.send.takers()

    def _hot_parts(self) -> tuple[HandlerPart, ...]:
        self.filters = Filters(config=self.config, members=self.members, stored=self.stored_filters)
        self.send = SendHandler(
            self.context,
            answers=self.answers,
            delay=self.levels,
            timers=TimerRules(self.config),
            transactions=self.transactions,
            hooks=self.send_hooks,
            repeats=self.repeats,
        )
        self.pull = PullHandler(
            self.context,
            filters=self.filters,
            hooks=self.consume_hooks,
            role=self.part,
            watchdog=self.watchdog,
        )
        return self.send, self.pull

    def _group_parts(self) -> tuple[HandlerPart, ...]:
        return (
            self.members,
            self.filters,
            self.transactions,
            RecallHandler(
                config=self.config,
                rules=TimerRules(self.config),
                topics=self.topics,
                appender=self.appender,
                clock=self.clock,
            ),
            OffsetHandler(
                config=self.config,
                offsets=self.offsets,
                topics=self.topics,
                members=self.members,
                store=self.store,
            ),
            self.queue_locks,
            ReplyHandler(
                config=self.config,
                appender=self.appender,
                topics=self.topics,
                members=self.members,
                clock=self.clock,
                store_address=join(resolve(self.config.broker_ip1), self.port),
            ),
            SendBackHandler(
                config=self.config,
                store=self.store,
                appender=self.appender,
                topics=self.topics,
                groups=self.groups,
                levels=self.levels,
                stats=self.stats,
                hooks=self.send_hooks,
            ),
        )

    def _admin_parts(self) -> tuple[HandlerPart, ...]:
        return (
            *admin_parts(
                self.context,
                delivery=self.delay,
                facts=self._facts,
                access=self.access,
                store_address=join(resolve(self.config.broker_ip1), self.port),
            ),
            PromotionAdmin(
                config=self.config,
                part=self.part,
                promote=lambda: self.promote,
                remoting=self.remoting,
                clock=self.clock,
            ),
            AddressAdmin(
                self.addresses,
                config=self.config,
                files=self.store.files,
                clock=self.clock,
                serve=lambda listener: self.server.serve(listener),
                moved=self.moved,
            ),
        )

    def _facts(self) -> dict[str, str]:
        """Return the entries of the parts for the broker's runtime information."""
        return {
            **self.checkback.facts(),
            **self.members.facts(),
            **self.timers.facts(),
            **(self.repeats.facts() if self.repeats else {}),
            **self.part.facts(),
            "otherMasters": ",".join(self.rivals.found),
        }

    def _spawn_background(self) -> None:
        keep, clock = self._tasks.keep, self.clock
        keep(self.appender.expire_forever, name="expire waiting sends", clock=clock)
        keep(self.pull.longpoll.expire_forever, name="expire held pulls", clock=clock)
        keep(self.members.expire_forever, name="expire clients", clock=clock)
        keep(self.offsets.persist_forever, name="persist consumer offsets", clock=clock)
        keep(self.stored_filters.clean_forever, name="clean consumer filters", clock=clock)
        keep(self.stats.sample_forever, name="sample statistics", clock=clock)
        if self.access is not None:
            keep(self.access.watch, name="watch acl files", clock=clock)
        if not self.config.is_slave:
            keep(self.delay.run_forever, name="deliver delayed messages", clock=clock)
            self.timers.start(self._tasks)
            keep(self.checkback.run_forever, name="check transactions", clock=clock)
            keep(self.rivals.run_forever, name="look for other masters", clock=clock)

    def _place(self) -> BrokerPlace:
        config, listener = self.config, self._ha_listener
        ha_port = listener.getsockname()[1] if listener is not None else config.ha_listen_port
        return BrokerPlace(
            cluster_name=config.broker_cluster_name,
            broker_name=config.broker_name,
            broker_id=config.broker_id,
            broker_addr=self.addresses.current,
            ha_server_addr=join(config.broker_ip2 or config.broker_ip1, ha_port),
        )

    async def moved(self) -> None:
        """Register the current address with name servers."""
        self.rivals.own.add(self.addresses.current)
        await self.registration.move(self._place())
