"""One name server, composed of tables, handlers, sockets and the scan for expired brokers."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cometmq.acl.control import AccessControl
from cometmq.acl.files import AclFiles
from cometmq.monitoring.readiness import Readiness, StartProgress
from cometmq.monitoring.series import Series
from cometmq.namesrv import metrics
from cometmq.namesrv.config import apply_kept
from cometmq.namesrv.handlers import (
    BrokerHandlers,
    ConfigHandlers,
    KvHandlers,
    RouteHandlers,
)
from cometmq.namesrv.kv import KvTables
from cometmq.namesrv.routes import RouteTable
from cometmq.net.eventloop import Watchdog
from cometmq.net.limits import ServerLimits
from cometmq.net.peer import Peer
from cometmq.net.router import Router, handlers_of
from cometmq.net.server import Reserve, Server, reserve
from cometmq.net.tasks import Tasks
from cometmq.net.tls import server_tls
from cometmq.protocol.registry import Side
from cometmq.speedups import DESCRIPTION

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from cometmq.core.clock import Clock, Slices
    from cometmq.namesrv.config import NamesrvConfig

log = logging.getLogger(__name__)


class NameServer:
    """One name server. Call :meth:`start` and :meth:`stop` once each."""

    def __init__(self, config: NamesrvConfig, clock: Clock, *, reserve: Reserve = reserve) -> None:
        self.config = config
        self.progress = StartProgress()
        self.routes = RouteTable(expiry_ms=config.broker_expiry_ms)
        self.kv = KvTables(Path(config.kv_config_path).expanduser())
        self._clock = clock
        self.watchdog = Watchdog(clock)
        self._tasks = Tasks(self.watchdog)
        routes = RouteHandlers(self.routes, self.kv, config, clock=clock)
        brokers = BrokerHandlers(self.routes, self.kv, clock=clock)
        self._access = _access_control(config, clock)
        self.router = Router(
            Side.NAMESRV,
            handlers_of((routes, brokers, KvHandlers(self.kv), ConfigHandlers(config))),
            tasks=self._tasks,
            remote_admin=config.remote_admin_enable,
            access=self._access,
            limits=ServerLimits(config, clock),
        )
        self._tls = server_tls(config.tls)
        self.server = Server(
            self.router,
            clock=clock,
            tasks=self._tasks,
            watchdog=self.watchdog,
            tls=self._tls,
            reserve=reserve,
        )

    async def start(self) -> int:
        """Read the key-value file and listen; return the bound port.

        Raise StoreCorrupt for an unreadable key-value file, SettingsError for a changed setting of
        an earlier run that cannot be used, and OSError for an address that cannot be bound.
        """
        apply_kept(self.config)
        self.kv.load()
        port = await self.server.listen(self.config.bind_address, self.config.listen_port)
        log.info("name server started port=%d core=%s", port, DESCRIPTION)
        self._tasks.keep(self._expire, name="expire brokers", clock=self._clock)
        if self._tls is not None:
            watch = partial(self._tls.watch, self._clock)
            self._tasks.keep(watch, name="watch tls files", clock=self._clock)
        if self._access is not None:
            self._tasks.keep(self._access.watch, name="watch acl files", clock=self._clock)
        self.progress.done()
        return port

    async def stop(self) -> None:
        """Close all connections and end the background work."""
        self.progress.ending()
        await self.server.close()
        await self._tasks.close()

    @property
    def shared_labels(self) -> Mapping[str, str]:
        """Labels of all series on the HTTP port."""
        return {"node_type": "nameserver"}

    def readiness(self) -> Readiness:
        """Return the state of the start, for the HTTP port."""
        progress = self.progress
        return Readiness("name server", progress.is_serving, progress.text, progress.is_starting)

    def start_series(self) -> list[Series]:
        """Return the metrics available during a start: none."""
        return []

    async def series(self, slices: Slices) -> AsyncIterator[Series]:
        """Yield the metrics of the name server."""
        for metric, value in (
            (metrics.READY, int(self.progress.is_serving)),
            (metrics.BROKERS, self.routes.broker_count),
            (metrics.CONNECTIONS, self.server.open_connections),
        ):
            series = Series(metric, 1)
            series.add(value)
            yield series
        hits = self.router.limits.hits
        series = Series(metrics.LIMIT_HITS, len(hits))
        for limit, count in hits.items():
            series.add(count, limit.value)
        yield series
        await slices.pause()

    async def _expire(self) -> None:
        while True:
            await self._clock.sleep_ms(self.config.expiry_scan_ms)
            for address, channel in self.routes.expire(self._clock.monotonic_ms()):
                log.warning(
                    "broker gone address=%s reason=silent for %d ms",
                    address,
                    self.config.broker_expiry_ms,
                )
                assert isinstance(channel, Peer)
                channel.close()


def _access_control(config: NamesrvConfig, clock: Clock) -> AccessControl | None:
    """Return access control of changes; None without ``aclEnable``.

    Raises AclDenied, which names the file, if an ACL file cannot be used.
    """
    if not config.acl_enable:
        return None
    home = config.rocketmq_home or str(Path(config.kv_config_path).expanduser().parent)
    return AccessControl(AclFiles(home, clock.wall_ms), clock, only_changes=True)
