"""Settling messages in order, and the broker's locks that make a queue one member's own.

A failed message is given again after a pause, before anything behind it; after its last attempt it
is sent to the group's retry topic, from where the broker moves it to the dead letters (upstream:
ConsumeMessageOrderlyService.java).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from cometmq.core.errors import ClientError
from cometmq.message.model import MessageQueue
from cometmq.protocol.bodies import QueueKey, QueueLockRequest, QueueLockResponse
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.fastjson import encode_json, parse_json

if TYPE_CHECKING:
    from cometmq.client.consumer.dispatch import Dispatch
    from cometmq.client.consumer.inflight import InFlight
    from cometmq.client.consumer.offsets import OffsetStore
    from cometmq.client.consumer.options import SubscribeOptions
    from cometmq.client.producer import Producer
    from cometmq.client.session import Session
    from cometmq.message.model import StoredMessage

log = logging.getLogger(__name__)

_FIRST_RETRY_LEVEL: Final = 3


class QueueLocks:
    """Locks of one group's queues, as their brokers gave them to this client."""

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group
        self._until_ms: dict[MessageQueue, int] = {}
        self._epochs: dict[MessageQueue, int] = {}

    def held(self, queue: MessageQueue) -> bool:
        """Whether this client may process the queue now."""
        return self._until_ms.get(queue, 0) > self._session.clock.monotonic_ms()

    def epoch(self, queue: MessageQueue) -> int:
        """Counts how often the lock was got anew: what was known before an increase may be old."""
        return self._epochs.get(queue, 0)

    async def acquire(self, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        """Get or renew locks; gives the queues whose lock is held now. A broker that cannot be
        reached leaves its queues as they are until their time is up."""
        wanted = set(queues)
        by_broker: dict[str, list[MessageQueue]] = {}
        for queue in sorted(wanted):
            by_broker.setdefault(queue.broker_name, []).append(queue)
        await asyncio.gather(*(self._lock(own) for own in by_broker.values()))
        return {queue for queue in wanted if self.held(queue)}

    async def release(self, queue: MessageQueue) -> None:
        """Let another member have the queue; a failure is logged, for the lock expires anyway."""
        if self._until_ms.pop(queue, None) is None:
            return
        try:
            await self._call(RequestCode.UNLOCK_BATCH_MQ, [queue])
        except ClientError as error:
            log.warning("unlock_failed queue=%s error=%s", queue, error)

    async def _lock(self, queues: list[MessageQueue]) -> None:
        try:
            body = await self._call(RequestCode.LOCK_BATCH_MQ, queues)
            granted = {
                MessageQueue(key.topic, key.broker_name, key.queue_id)
                for key in parse_json(body, QueueLockResponse).lock_ok_mq_set
            }
        except ClientError as error:
            log.warning("lock_failed broker=%s error=%s", queues[0].broker_name, error)
            return
        until_ms = self._session.clock.monotonic_ms() + self._session.config.lock_expiry_ms
        for queue in queues:
            if queue not in granted:
                self._until_ms.pop(queue, None)
                continue
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


class OrderlySettler:
    """Settles for one ordered consumer; see received.Settler."""

    def __init__(
        self,
        session: Session,
        options: SubscribeOptions,
        offsets: OffsetStore,
        dispatch: Dispatch,
        producer: Producer,
    ) -> None:
        self.working = 0
        self._session = session
        self._options = options
        self._offsets = offsets
        self._dispatch = dispatch
        self._producer = producer

    def begin(self) -> None:
        self.working += 1

    def end(self) -> None:
        self.working -= 1

    def succeeded(self, inflight: InFlight, message: StoredMessage) -> None:
        self._done(inflight, message)
        self._dispatch.release(inflight)

    def returned(self, inflight: InFlight, message: StoredMessage) -> None:
        inflight.give_back(message, failed=False)
        self._dispatch.release(inflight)

    async def failed(self, inflight: InFlight, message: StoredMessage, delay_level: int) -> None:
        try:
            if inflight.dropped:
                inflight.give_back(message, failed=False)  # its next owner gets it
                return
            if await self._gave_up(message, delay_level):
                self._done(inflight, message)
                return
            self._session.tasks.spawn(
                self._retry_here(inflight, message), name=f"retry {message.message_id}"
            )
        finally:
            self._dispatch.release(inflight)

    async def _gave_up(self, message: StoredMessage, delay_level: int) -> bool:
        """Send a message away that has no attempt left; False when it is to be given again."""
        most = self._options.max_reconsume_times
        if delay_level >= 0 and (most < 0 or message.reconsume_times < most):
            return False
        if self._options.broadcasting:
            log.warning("broadcast_dropped message=%s: there is no retry", message.message_id)
            return True
        try:
            await self._producer.send_to_retry(
                message,
                self._options.retry_topic,
                reconsume_times=message.reconsume_times + 1,
                max_reconsume_times=max(most, 0),
                delay_level=_FIRST_RETRY_LEVEL + message.reconsume_times,
            )
        except ClientError as error:
            log.warning("dead_letter_failed message=%s error=%s", message.message_id, error)
            return False
        return True

    def _done(self, inflight: InFlight, message: StoredMessage) -> None:
        # Also for a dropped queue: its lock is kept until the message in work is done.
        if inflight.settle(message):
            self._offsets.update(inflight.queue, inflight.committable)

    async def _retry_here(self, inflight: InFlight, message: StoredMessage) -> None:
        await self._session.clock.sleep_ms(self._session.config.ordered_retry_pause_ms)
        if inflight.give_back(message, failed=True):
            self._dispatch.offer(inflight)
