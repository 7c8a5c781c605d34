"""Broker locks on queues: an ordered consumer reads a queue only while it holds the queue's lock.

A lock lasts 60 s on its broker. The client trusts it for less time, so that two members never both
believe that they hold it (upstream: RebalanceImpl.lock, RebalanceLockManager.java). A broker with
several threads may process a renewal and a release in either order, so only one of them is in
flight at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from cometmq.core.errors import ClientError
from cometmq.message.model import MessageQueue
from cometmq.protocol.bodies import QueueKey, QueueLockRequest, QueueLockResponse
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.fastjson import encode_json, parse_json

if TYPE_CHECKING:
    from cometmq.client.session import Session

log = logging.getLogger(__name__)


class QueueLocks:
    """Locks on the queues of one group that brokers granted to this client."""

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group
        self._until_ms: dict[MessageQueue, int] = {}
        self._epochs: dict[MessageQueue, int] = {}
        self._released: set[MessageQueue] = set()
        self._calls: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def held(self, queue: MessageQueue) -> bool:
        """Return whether this client may process the queue now."""
        return self._until_ms.get(queue, 0) > self._session.clock.monotonic_ms()

    def epoch(self, queue: MessageQueue) -> int:
        """Return the number of times that the lock was newly acquired.

        State from a lower epoch may be outdated.
        """
        return self._epochs.get(queue, 0)

    async def acquire(self, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        """Acquire or renew locks; return the queues whose lock is held now.

        If a broker cannot be reached, its queues keep their locks until these expire.
        """
        wanted = set(queues)
        self._released -= wanted
        await self.renew(wanted)
        return {queue for queue in wanted if self.held(queue)}

    async def renew(self, queues: Iterable[MessageQueue]) -> bool:
        """Renew locks like :meth:`acquire`, but skip queues that were released.

        Returns False when a broker could not be reached.
        """
        by_broker: dict[str, list[MessageQueue]] = {}
        for queue in sorted(queues):
            by_broker.setdefault(queue.broker_name, []).append(queue)
        return all(await asyncio.gather(*(self._lock(*each) for each in by_broker.items())))

    async def release(self, queue: MessageQueue) -> None:
        """Release a queue for another member.

        A failure is logged only, because the lock expires.
        """
        self._released.add(queue)
        async with self._calls[queue.broker_name]:
            if self._until_ms.pop(queue, None) is None:
                return
            try:
                await self._call(RequestCode.UNLOCK_BATCH_MQ, [queue])
            except ClientError as error:
                log.warning("unlock_failed queue=%s error=%s", queue, error)

    async def _lock(self, broker_name: str, wanted: list[MessageQueue]) -> bool:
        async with self._calls[broker_name]:
            queues = [queue for queue in wanted if queue not in self._released]
            if not queues:
                return True
            try:
                body = await self._call(RequestCode.LOCK_BATCH_MQ, queues)
                granted = {
                    MessageQueue(key.topic, key.broker_name, key.queue_id)
                    for key in parse_json(body, QueueLockResponse).lock_ok_mq_set
                }
            except ClientError as error:
                log.warning("lock_failed broker=%s error=%s", broker_name, error)
                return False
            self._note(queues, granted)
            return True

    def _note(self, queues: list[MessageQueue], granted: set[MessageQueue]) -> None:
        until_ms = self._session.clock.monotonic_ms() + self._session.config.lock_expiry_ms
        for queue in queues:
            if queue not in granted:
                self._until_ms.pop(queue, None)
                continue
            # Another member may have held the lock since it lapsed here.
            if not self.held(queue):
                self._epochs[queue] = self.epoch(queue) + 1
            self._until_ms[queue] = until_ms

    async def _call(self, code: RequestCode, queues: list[MessageQueue]) -> bytes:
        keys = [
            QueueKey(topic=each.topic, broker_name=each.broker_name, queue_id=each.queue_id)
            for each in queues
        ]
        body = QueueLockRequest(
            consumer_group=self._group, client_id=self._session.client_id, mq_set=keys
        )
        response = await self._session.remoting.call(
            await self._session.master_of(queues[0]),
            code,
            None,
            encode_json(body),
            timeout_ms=self._session.config.request_timeout_ms,
        )
        return response.body
