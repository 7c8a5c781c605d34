"""Composition of a broker: store, services, sockets and background work.

Start: reserve the ports, open the store (which recovers it), build the services, read the tables,
recover open transactions and delayed messages, serve, register. Stop, in reverse: unregister, take
no more connections and requests, answer those that were received (within DRAIN_LIMIT_MS), end
background work, write the tables, close the store. No port answers before recovery is complete.

Each folder beside this module (send, pull, consumers, ...) has one service. The service builds the
parts in its folder and returns the handlers of the requests that they serve. Most services are
built from the :class:`BrokerContext`, which holds the objects that all of them share.
"""

from __future__ import annotations

import logging
import os
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Final

from cometmq.broker.acknowledgement import Appender
from cometmq.broker.admin import AdminService
from cometmq.broker.config import apply_kept
from cometmq.broker.consumers import ConsumerService
from cometmq.broker.context import BrokerContext, BrokerTables
from cometmq.broker.dedup import make_deduplicator
from cometmq.broker.hooks import ConsumeHooks, SendHooks
from cometmq.broker.metrics import BrokerMetrics
from cometmq.broker.metrics.state import StateMetrics
from cometmq.broker.pull import PullService
from cometmq.broker.replication import Addresses, ReplicationService, forget_notes
from cometmq.broker.scheduled import ScheduleService
from cometmq.broker.send import SendAnswers, SendService
from cometmq.broker.serving import access_control, busy_poll, make_router
from cometmq.broker.stats import BrokerStats
from cometmq.broker.tables import TableDirectory, warn_of_missing
from cometmq.broker.topics import TopicService
from cometmq.broker.transactions import TransactionService
from cometmq.monitoring.readiness import StartProgress
from cometmq.net.client import Remoting
from cometmq.net.eventloop import Watchdog
from cometmq.net.limits import ServerLimits
from cometmq.net.outgoing import ClientTls, watch_credentials
from cometmq.net.server import Reserve, Server, reserve
from cometmq.net.tasks import Tasks
from cometmq.net.tls import server_tls
from cometmq.speedups import DESCRIPTION
from cometmq.store.recovery.opening import open_store

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from cometmq.broker.config import BrokerConfig, BrokerRole
    from cometmq.broker.replication import Rejoin
    from cometmq.broker.tables import Table
    from cometmq.core.clock import Clock
    from cometmq.store.config import StoreConfig
    from cometmq.store.files import Files

log = logging.getLogger(__name__)

#: Longest time that a stop waits until all sends are answered. A send may wait for the device or
#: for slaves.
DRAIN_LIMIT_MS: Final = 5_000


class Broker:
    """One broker; :meth:`start` and :meth:`stop` it once each.

    ``send_hooks``, ``consume_hooks`` and ``router.hooks`` may be filled after the start. ``rejoin``
    asks for a restart that cuts a slave's log where it differs from the master's, ``promote`` for
    a restart in another role; a supervisor carries them out.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store_config: StoreConfig,
        clock: Clock,
        *,
        files: Files | None = None,
        reserve: Reserve = reserve,
        rejoin: Rejoin = lambda problem: None,
        promote: Callable[[BrokerRole], None] | None = None,
    ) -> None:
        self.config = config
        self._store_config = store_config
        self.clock = clock
        self._files = files
        self.addresses = Addresses(config, store_config.store_path_root_dir, reserve)
        self.watchdog = Watchdog(clock)
        self._tasks = Tasks(self.watchdog)
        self.send_hooks = SendHooks()
        self.consume_hooks = ConsumeHooks()
        self.port = 0
        #: Current step of the start.
        self.progress = StartProgress()
        #: Metrics for the HTTP port; None until the start has built the services.
        self.metrics: BrokerMetrics | None = None
        self._rejoin = rejoin
        self._promote = promote
        self._stack = AsyncExitStack()

    async def start(self) -> int:
        """Recover, serve and register; return the port.

        Raise StoreError if the store cannot be opened, OSError for an address that cannot be bound.
        On any exception, all that was opened is closed again.
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
        """Stop the broker; on return, everything acknowledged is in the store's files."""
        self.progress.ending()
        await self._stack.aclose()
        log.info("broker stopped name=%s port=%d", self.config.broker_name, self.port)

    @property
    def registered(self) -> list[str]:
        """Addresses of the name servers that hold a registration of this broker."""
        return self.topics.registration.registered_with

    @property
    def name_servers(self) -> list[str]:
        """Addresses of the name servers that this broker registers with."""
        return self.topics.registration.name_servers

    async def _start(self) -> None:
        # Callbacks on the stack run in reverse order, also if a later step fails.
        push, push_async = self._stack.callback, self._stack.push_async_callback
        is_slave = self.config.is_slave
        apply_kept(self.config, self._store_config, self._files)
        listeners = self.addresses.reserve()
        for listener in listeners:
            push(listener.close)
        self.port = self.addresses.port
        ha_listener = self.addresses.reserve_ha()
        if ha_listener is not None:
            push(ha_listener.close)
        # Load the TLS files before the recovery, which may be long: a bad file fails the start now.
        self.tls = server_tls(self.config.tls)
        self._connect = self.config.connect_options()
        if self._connect.tls is not None or self.config.ha_tls_enable:
            ClientTls(self.config.client_tls).load()
        self.progress.begin("recovers its store")
        self.store = open_store(
            self._store_config, self.clock, self._files, progress=self.progress.reading
        )
        self.progress.begin("reads its tables")
        push(self.store.close)
        if is_slave:
            forget_notes(self.store.files, self._store_config.store_path_root_dir)
            # Consumers may be ahead of this copy of the log. If this broker becomes the master, it
            # must set their offsets back.
            self.store.maintenance.shrunk = True
        self._build()
        self._load_tables()
        push_async(self.remoting.close)
        for table in (*self._tables(), self.scheduled.delay):
            push_async(table.close)
        if not is_slave:
            # Pushed after the tables, so closed before them: transaction checks still move consumer
            # offsets.
            push_async(self.transactions.close)
            push_async(self.scheduled.timers.close)
        push(self.appender.close)
        push_async(self._tasks.close)
        self.progress.begin("recovers transactions and delayed messages")
        await self.topics.save_early()
        await self.consumers.save_early()
        if not is_slave:
            await self.transactions.recover()
            await self.scheduled.recover()
        if self.deduplicator is not None:
            await self.deduplicator.recover()
        await self.store.start(self._tasks)
        self._start_background()
        await self.replication.start(ha_listener, self.tls if self.config.ha_tls_enable else None)
        push_async(self.replication.close)
        push_async(self.server.close)
        push_async(self._drain)
        for listener in listeners:
            await self.server.serve(listener)
        self.progress.done()
        push_async(self.topics.registration.stop)
        await self.topics.register(self.addresses.place(), self.replication.part.master_is)

    # --------------------------------------------------------------------------------- composition

    def _build(self) -> None:
        """Build all services, each from the context and from the services before it."""
        context = self.context = self._make_context()
        self.scheduled = ScheduleService(context)
        self.transactions = TransactionService(context)
        self.replication = ReplicationService(
            context,
            addresses=self.addresses,
            delay=self.scheduled.delay,
            registration=self.topics.registration,
            remoting=self.remoting,
            listen=self._listen,
            rejoin=self._rejoin,
            promote=self._promote,
        )
        self.send = SendService(
            context,
            scheduled=self.scheduled,
            transactions=self.transactions,
            deduplicator=self.deduplicator,
            answers=self.answers,
            hooks=self.send_hooks,
        )
        self.pull = PullService(
            context, hooks=self.consume_hooks, role=self.replication.part, watchdog=self.watchdog
        )
        self.access = access_control(context)
        self.admin = AdminService(
            context,
            access=self.access,
            delay=self.scheduled.delay,
            filters=self.pull.stored_filters,
            described=(
                self.transactions,
                self.consumers,
                self.scheduled,
                self.deduplicator,
                self.replication,
            ),
        )
        self.admin.settings.on_change += [
            self.pull.settings_changed,
            self.replication.settings_changed,
        ]
        self._build_server(context)
        state = StateMetrics(
            context,
            watchdog=self.watchdog,
            scheduled=self.scheduled,
            transactions=self.transactions,
            replication=self.replication,
        )
        self.metrics = BrokerMetrics(
            context,
            admin=self.admin.broker,
            state=state,
            registration=self.topics.registration,
        )

    def _make_context(self) -> BrokerContext:
        """Build the objects that the services share: topics, consumer groups, the appender."""
        config, clock, tasks, store = self.config, self.clock, self._tasks, self.store
        store.store_host = self.addresses.store_host
        store.flusher.watch(self.watchdog.watched)
        path = os.path.join(self._store_config.store_path_root_dir, "config")
        directory = TableDirectory(path, clock, tasks, self._files)
        self.remoting = Remoting(clock=clock, tasks=tasks, options=self._connect)
        self.topics = TopicService(directory, config, self.remoting)
        topics, limits = self.topics.table, ServerLimits(config, clock)
        self.consumers = consumers = ConsumerService(directory, config, topics, store, limits)
        self.deduplicator = make_deduplicator(config, store, topics, clock)
        self.answers = SendAnswers(
            config=config, topics=topics, hooks=self.send_hooks, store_host=store.store_host
        )
        self.stats = BrokerStats(
            clock,
            store.dispatcher,
            counts_puts=not config.is_slave,
            limits=limits,
        )
        self.appender = Appender(
            store,
            clock=clock,
            store_host=store.store_host,
            watchdog=self.watchdog,
            answers=self.answers,
            listener=self.deduplicator,
            put_times=self.stats.put_times,
        )
        tables = BrokerTables(topics, consumers.groups, consumers.offsets, consumers.members)
        return BrokerContext(
            config, clock, tasks, directory, store, self.appender, self.stats, tables
        )

    def _build_server(self, context: BrokerContext) -> None:
        """Build the server, which passes each request to the service that serves it."""
        services = (
            self.send,
            self.pull,
            self.consumers,
            self.transactions,
            self.scheduled,
            self.replication,
            self.admin,
        )
        self.router = make_router(
            context,
            services,
            bulk_handlers=self.send.bulk_handlers() | self.pull.bulk_handlers(),
            access=self.access,
            master=self.replication.part.where,
        )
        self.lookout = busy_poll(context)
        self.server = Server(
            self.router,
            clock=self.clock,
            tasks=self._tasks,
            watchdog=self.watchdog,
            tls=self.tls,
            lookout=self.lookout,
        )

    def _load_tables(self) -> None:
        """Read the tables, and make topics and offsets agree with the store."""
        store, topics, offsets = self.store, self.topics.table, self.consumers.offsets
        if store.written_offset > store.log.segments.start:
            warn_of_missing(store.files, self.context.directory.path)
        for table in self._tables():
            table.load()
        topics.adopt(store)
        offsets.delete_topics(topics.deleted())
        offsets.clamp(store)
        self.scheduled.delay.load()

    def _tables(self) -> tuple[Table, ...]:
        """Return the tables in the order in which they are read; they are closed in reverse."""
        groups, offsets = self.consumers.groups, self.consumers.offsets
        return self.topics.table, groups, offsets, self.consumers.locks, self.pull.stored_filters

    def _start_background(self) -> None:
        keep, clock = self._tasks.keep, self.clock
        keep(self.appender.expire_forever, name="expire waiting sends", clock=clock)
        keep(self.stats.sample_forever, name="sample statistics", clock=clock)
        use = self.remoting.use_credentials
        watch = partial(watch_credentials, self.config, use, clock)
        keep(watch, name="watch credentials", clock=clock)
        if self.tls is not None:
            keep(partial(self.tls.watch, clock), name="watch tls files", clock=clock)
        if self.access is not None:
            keep(self.access.watch, name="watch acl files", clock=clock)
        self.pull.start()
        self.consumers.start()
        if not self.config.is_slave:
            self.scheduled.start()
            self.transactions.start()

    async def _drain(self) -> None:
        """Answer the requests that were received, within DRAIN_LIMIT_MS, and take no more."""
        if not await self.server.drain(self._is_idle, DRAIN_LIMIT_MS):
            log.warning(
                "stops_without_answers waiting_sends=%d limit_ms=%d",
                self.appender.waiting_sends,
                DRAIN_LIMIT_MS,
            )

    def _is_idle(self) -> bool:
        """Return whether no send waits for its response."""
        return self.appender.is_idle and not self.answers.held_count

    async def _listen(self, listener: socket.socket) -> None:
        """Serve a further address, one that this broker took over."""
        await self.server.serve(listener)
