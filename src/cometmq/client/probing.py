"""Probes unreachable brokers, so that they are avoided no longer than they are down (upstream:
LatencyFaultToleranceImpl.detectByOneRound).
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from cometmq.core.errors import ClientError
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers import TopicQueue

if TYPE_CHECKING:
    from cometmq.client.latency import FaultScores
    from cometmq.client.session import Session
    from cometmq.message.model import MessageQueue

log = logging.getLogger(__name__)


class Prober:
    """Probes for one producer, as long as there are brokers to probe."""

    def __init__(self, session: Session, faults: FaultScores) -> None:
        self._session = session
        self._faults = faults
        self._running: asyncio.Task[None] | None = None

    def wake(self) -> None:
        """Start probing, because a broker could not be reached."""
        if self._running is None or self._running.done():
            self._running = self._session.tasks.spawn(self._run(), name="probe brokers")

    async def _run(self) -> None:
        clock = self._session.clock
        while self._faults.to_probe(clock.monotonic_ms()):
            await clock.sleep_ms(self._session.config.probe_interval_ms)
            queues = self._faults.to_probe(clock.monotonic_ms())
            await asyncio.gather(*map(self._probe, queues))

    async def _probe(self, queue: MessageQueue) -> None:
        address = self._session.master_address(queue.broker_name)
        if address is None:
            return  # no route names it, so no send goes there
        try:
            await self._session.remoting.request(
                address,
                RequestCode.GET_MAX_OFFSET,
                TopicQueue(topic=queue.topic, queue_id=queue.queue_id),
                timeout_ms=self._session.config.probe_timeout_ms,
            )
        except ClientError as error:
            log.info("broker_still_away broker=%s error=%s", queue.broker_name, error)
        else:  # any response shows that it is up
            log.info("broker_back broker=%s", queue.broker_name)
            self._faults.is_back(queue.broker_name)
