"""Restarts of a broker within its process, on the same ports.

    the log of a slave differs from its master's    ->  its log is cut, and it follows again
    an operator promotes a slave                    ->  it becomes the master

Apart from that, a restart is an ordinary stop and an ordinary start: recovery adjusts queues,
index, offsets, timers and transactions to the end of the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from cometmq.broker.app import Broker
from cometmq.broker.metrics import shared_labels, start_series
from cometmq.broker.replication.roles import keep_role, role_to_begin_in
from cometmq.core.errors import CometError
from cometmq.monitoring.readiness import Readiness
from cometmq.net.server import Reserve, reserve
from cometmq.net.tasks import Tasks
from cometmq.store.files import PosixFiles
from cometmq.store.recovery.divergence import truncate_diverged_log

if TYPE_CHECKING:
    from cometmq.broker.config import BrokerConfig, BrokerRole
    from cometmq.core.clock import Clock, Slices
    from cometmq.monitoring.series import Series
    from cometmq.replication.slave import LogsDiffer
    from cometmq.store.config import StoreConfig
    from cometmq.store.files import Files

log = logging.getLogger(__name__)


class Supervisor:
    """Runs a broker, and restarts it when it asks for that; :meth:`start` and :meth:`stop` it once
    each. ``broker`` is the current one.

    ``on_failed`` is called if a restart fails. Then ``failure`` holds the error, no request is
    served, and the process should end.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store_config: StoreConfig,
        clock: Clock,
        *,
        files: Files | None = None,
        reserve: Reserve = reserve,
        on_failed: Callable[[], None] = lambda: None,
    ) -> None:
        self._store_config = store_config
        self._clock = clock
        self._files = files or PosixFiles()
        self._reserve = reserve
        self._tasks = Tasks()
        self._turning: asyncio.Task[None] | None = None
        self._stopping = False
        self._may_cut = True
        self.failure: Exception | None = None
        self.on_failed = on_failed
        config = role_to_begin_in(config, store_config.store_path_root_dir, self._files)
        self.broker = self._make(config)

    def _make(self, config: BrokerConfig) -> Broker:
        return Broker(
            config,
            self._store_config,
            self._clock,
            files=self._files,
            reserve=self._reserve,
            rejoin=self._rejoin,
            promote=self.promote,
        )

    async def start(self) -> int:
        """Start the broker, as :meth:`Broker.start` does."""
        return await self.broker.start()

    async def stop(self) -> None:
        """Stop the broker, as :meth:`Broker.stop` does, once no restart is under way."""
        self._stopping = True
        if self._turning is not None:
            await asyncio.wait([self._turning])
        if self.failure is None:
            await self.broker.stop()
        await self._tasks.close()

    def raise_failure(self) -> None:
        """Raise the error that made a restart fail, if any."""
        if self.failure is not None:
            raise self.failure

    # ------------------------------------------------------------------------------------ changes

    def _rejoin(self, problem: LogsDiffer) -> None:
        if self._may_cut:
            self._turn(lambda config: self._cut(config, problem), "cut")

    def promote(self, role: BrokerRole) -> None:
        """Restart the broker as a master in ``role``, unless a restart is under way."""
        self._turn(lambda config: self._raise_to(config, role), "promote")

    def _turn(self, change: Callable[[BrokerConfig], BrokerConfig], name: str) -> None:
        """Restart with the settings that ``change`` returns, unless a restart is under way."""
        if self._stopping or self._turning is not None:
            return
        self._turning = self._tasks.spawn(self._restart(change), name=f"{name} the broker")

    async def _restart(self, change: Callable[[BrokerConfig], BrokerConfig]) -> None:
        before, begun_ms = self.broker, self._clock.monotonic_ms()
        try:
            await before.stop()
            config = change(replace(before.config, listen_port=before.port))
            broker = self.broker = self._make(config)
            broker.send_hooks, broker.consume_hooks = before.send_hooks, before.consume_hooks
            await broker.start()
        except Exception as error:  # after any error no broker is running
            is_known = isinstance(error, CometError | OSError)
            log.critical("broker_restart_failed reason=%r", str(error), exc_info=not is_known)
            self.failure = error
            self.on_failed()
        finally:
            self._turning = None
        duration_ms = self._clock.monotonic_ms() - begun_ms
        role = self.broker.config.broker_role.name
        log.warning("broker_restarted role=%s duration_ms=%d", role, duration_ms)

    def _cut(self, config: BrokerConfig, problem: LogsDiffer) -> BrokerConfig:
        """Cut the log of the stopped broker; return the unchanged settings."""
        try:
            truncate_diverged_log(
                self._store_config, self._clock, self._files, problem.offset, str(problem)
            )
        except (CometError, OSError) as error:
            # Do not try again: it would fail each time. The broker keeps reporting the problem.
            self._may_cut = False
            log.error("log_not_cut offset=%d reason=%r", problem.offset, str(error))
        return config

    def _raise_to(self, config: BrokerConfig, role: BrokerRole) -> BrokerConfig:
        """Keep ``role`` for later starts, too; return the settings with it."""
        keep_role(role, self._store_config.store_path_root_dir, self._files, self._clock)
        return replace(config, broker_role=role, broker_id=0)


class CurrentBroker:
    """Metrics and readiness of a supervisor's current broker."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    @property
    def shared_labels(self) -> Mapping[str, str]:
        """Labels of every series."""
        return shared_labels(self._supervisor.broker.config)

    def readiness(self) -> Readiness:
        """Return whether the broker serves and is registered, if it has name servers."""
        broker = self._supervisor.broker
        progress, config = broker.progress, broker.config
        name = f"broker {config.broker_name}"
        if not progress.is_serving:
            return Readiness(name, False, progress.text, progress.is_starting)
        if not config.name_servers and not config.address_server:
            return Readiness(name, True, "serves; it has no name server")
        registered = broker.registered
        if not registered:
            tried = ", ".join(broker.name_servers) or config.address_server
            return Readiness(name, False, f"serves; no name server has it: {tried}")
        return Readiness(name, True, f"serves, registered with {', '.join(registered)}")

    def start_series(self) -> list[Series]:
        """Return the metrics that a broker has even while it starts."""
        return start_series(self._supervisor.broker.progress)

    async def series(self, slices: Slices) -> AsyncIterator[Series]:
        """Return the metrics of the broker."""
        broker = self._supervisor.broker
        for each in start_series(broker.progress):
            yield each
        if broker.metrics is not None and broker.progress.is_serving:
            async for each in broker.metrics.series(slices):
                yield each
