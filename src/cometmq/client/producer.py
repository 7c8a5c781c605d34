"""Sending: to a chosen queue, with attempts on other brokers, one by one, one-way or in batches.

A message keeps its unique key over all attempts, so that what a retry stored twice can be told
apart. With an order key every attempt goes to the key's own queue (upstream:
DefaultMQProducerImpl.java, MQClientAPIImpl.java).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from cometmq.client import outgoing
from cometmq.client.hooks import SendAttempt, SendHook
from cometmq.client.latency import FAILURE_LATENCY_MS, FaultScores
from cometmq.client.selection import RoundRobin, by_key
from cometmq.core.errors import (
    BrokerRefused,
    ClientError,
    CometError,
    NotConnected,
    RequestTimedOut,
)
from cometmq.message.model import MessageQueue
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.fields import from_ext
from cometmq.protocol.headers import SendMessageResponse

if TYPE_CHECKING:
    from cometmq.client.outgoing import Packed
    from cometmq.client.session import Session
    from cometmq.message.model import Message, StoredMessage
    from cometmq.protocol.frame import Response

log = logging.getLogger(__name__)

#: Refusals after which another broker may take the message; any other is final.
RETRY_CODES: Final = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.NO_PERMISSION,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
    }
)
#: Pause before the same broker is asked again, for each attempt made.
_SAME_BROKER_PAUSE_MS: Final = 100

OrderKey = str | Callable[["Message"], str] | None


class SendStatus(Enum):
    """How safely a message was stored; each of them means that it was."""

    OK = ResponseCode.SUCCESS.value
    FLUSH_DISK_TIMEOUT = ResponseCode.FLUSH_DISK_TIMEOUT.value
    FLUSH_SLAVE_TIMEOUT = ResponseCode.FLUSH_SLAVE_TIMEOUT.value
    SLAVE_NOT_AVAILABLE = ResponseCode.SLAVE_NOT_AVAILABLE.value


_STATUS: Final = {status.value: status for status in SendStatus}


@dataclass(frozen=True, slots=True)
class SendResult:
    """Where a message is stored. ``message_id`` is its unique key, ``offset_id`` the broker's."""

    status: SendStatus
    message_id: str
    offset_id: str
    queue: MessageQueue
    queue_offset: int
    transaction_id: str = ""


class Producer:
    """Sends for one session. ``hooks`` may be added to at any time."""

    def __init__(self, session: Session, group: str = "") -> None:
        self.group = group or session.config.producer_group
        self.hooks: list[SendHook] = []
        self._session = session
        self._config = session.config
        self._clock = session.clock
        self._round_robin = RoundRobin()
        self._faults = FaultScores() if session.config.send_latency_fault else None

    async def send(
        self,
        message: Message,
        *,
        order_key: str | None = None,
        queue: MessageQueue | None = None,
        timeout_ms: int = 0,
    ) -> SendResult:
        """Send one message and wait until a broker has stored it.

        ``queue`` or ``order_key`` choose its queue, else queues take turns. ``timeout_ms`` (the
        configured one when 0) bounds all attempts together. Raises MessageIllegal for a message
        over a limit, RouteNotFound, and the last attempt's NotConnected, RequestTimedOut or
        BrokerRefused.
        """
        packed = await self._pack_one(message)
        results = await self._deliver(packed, order_key, queue, timeout_ms)
        return results[0]

    async def send_oneway(
        self,
        message: Message,
        *,
        order_key: str | None = None,
        queue: MessageQueue | None = None,
    ) -> None:
        """Send one message without waiting for an answer: it may be lost. Raises MessageIllegal,
        RouteNotFound and NotConnected."""
        packed = await self._pack_one(message)
        chosen = queue or await self._choose(message.topic, order_key, None)
        address = await self._session.master_of(chosen)
        attempt = self._begin(packed, chosen, address, 1, oneway=True)
        try:
            await self._session.remoting.oneway(
                address,
                packed.code,
                packed.header(self.group, chosen, self._config.default_topic_queues),
                packed.body,
                timeout_ms=self._config.send_timeout_ms,
            )
        except ClientError as error:
            attempt.error = error
            raise
        finally:
            self._end(attempt)

    async def send_many(
        self, messages: Iterable[Message], *, order_key: OrderKey = None, timeout_ms: int = 0
    ) -> list[SendResult]:
        """Send messages in batches, as few as the limits allow; results in the given order.

        Messages of one topic and one order key (a text for all, or a function of each message) stay
        in order. Raises as :meth:`send`; what was sent before the failing batch stays sent.
        """
        given = list(messages)
        results: list[SendResult | None] = [None] * len(given)
        for positions, key in outgoing.plan_batches(
            given, _key_function(order_key), self._config.max_batch_bytes
        ):
            part = [given[at] for at in positions]
            if len(part) == 1:
                sent = [await self.send(part[0], order_key=key, timeout_ms=timeout_ms)]
            else:
                sent = await self._deliver(self._pack_many(part), key, None, timeout_ms)
            for at, result in zip(positions, sent, strict=True):
                results[at] = result
        return [result for result in results if result is not None]

    async def send_to_retry(
        self,
        message: StoredMessage,
        retry_topic: str,
        *,
        reconsume_times: int,
        max_reconsume_times: int,
        delay_level: int,
    ) -> SendResult:
        """Store a consumed message again in its group's retry topic; with no attempt left the
        broker makes it a dead letter. Raises as :meth:`send`."""
        key = self._session.unique_keys.next(self._clock.wall_ms())
        packed = outgoing.pack_retry(
            message,
            retry_topic,
            key,
            self._config,
            self._clock.wall_ms(),
            reconsume_times=reconsume_times,
            max_reconsume_times=max_reconsume_times,
            delay_level=delay_level,
        )
        return (await self._deliver(packed, None, None, 0))[0]

    # ------------------------------------------------------------------ attempts

    async def _pack_one(self, message: Message) -> Packed:
        now_ms = self._clock.wall_ms()
        key = self._session.unique_keys.next(now_ms)
        if len(message.body) > outgoing.INLINE_COMPRESS_BYTES:
            return await asyncio.to_thread(outgoing.pack_single, message, key, self._config, now_ms)
        return outgoing.pack_single(message, key, self._config, now_ms)

    def _pack_many(self, messages: list[Message]) -> Packed:
        now_ms = self._clock.wall_ms()
        keys = [self._session.unique_keys.next(now_ms) for _ in messages]
        return outgoing.pack_batch(messages, keys, self._config, now_ms)

    async def _deliver(
        self,
        packed: Packed,
        order_key: str | None,
        queue: MessageQueue | None,
        timeout_ms: int,
    ) -> list[SendResult]:
        self._session.add_producer(self.group)
        budget_ms = timeout_ms or self._config.send_timeout_ms
        deadline_ms = self._clock.monotonic_ms() + budget_ms
        last: str | None = None
        error: ClientError | None = None
        for number in range(1, self._config.send_retries + 2):
            chosen = queue or await self._choose(packed.topic, order_key, last)
            if chosen.broker_name == last:
                await self._clock.sleep_ms(_SAME_BROKER_PAUSE_MS * (number - 1))
            left_ms = deadline_ms - self._clock.monotonic_ms()
            if left_ms <= 0:
                break
            last = chosen.broker_name
            try:
                return await self._attempt(packed, chosen, number, left_ms)
            except BrokerRefused as failure:
                if failure.code not in RETRY_CODES:
                    raise
                error = failure
            except (NotConnected, RequestTimedOut) as failure:
                error = failure
            log.warning("send_failed topic=%s attempt=%d error=%s", packed.topic, number, error)
            await self._refresh(packed.topic, deadline_ms)
        raise error or RequestTimedOut(last or packed.topic, packed.code, budget_ms)

    async def _attempt(
        self, packed: Packed, queue: MessageQueue, number: int, timeout_ms: int
    ) -> list[SendResult]:
        address = self._session.master_address(queue.broker_name)
        if address is None:
            address = await self._session.master_of(queue)
        if not self.hooks and self._faults is None:
            return await self._request(packed, queue, address, timeout_ms)
        attempt = self._begin(packed, queue, address, number, oneway=False)
        try:
            results = await self._request(packed, queue, address, timeout_ms)
            attempt.result = results[0]
            return results
        except Exception as error:
            attempt.error = error
            raise
        finally:
            self._end(attempt)
            if self._faults is not None:
                self._faults.report(
                    queue.broker_name,
                    FAILURE_LATENCY_MS
                    if attempt.result is None
                    else attempt.ended_ms - attempt.started_ms,
                    self._clock.monotonic_ms(),
                )

    async def _refresh(self, topic: str, deadline_ms: int) -> None:
        """Ask where the topic lives now, as long as the send has time."""
        left_ms = deadline_ms - self._clock.monotonic_ms()
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0, left_ms) / 1000):
                await self._session.refresh(topic)

    async def _request(
        self, packed: Packed, queue: MessageQueue, address: str, timeout_ms: int
    ) -> list[SendResult]:
        header = packed.header(self.group, queue, self._config.default_topic_queues)
        response = await self._session.remoting.request(
            address, packed.code, header, packed.body, timeout_ms=timeout_ms
        )
        return _read_results(address, packed, queue, response)

    async def _choose(
        self, topic: str, order_key: str | None, avoid_broker: str | None
    ) -> MessageQueue:
        queues: Sequence[MessageQueue] = self._session.known_publish_queues(topic)
        if not queues:
            queues = await self._session.publish_queues(topic)
        if order_key is not None:
            return by_key(queues, order_key)
        return self._round_robin.pick(
            queues,
            avoid_broker=avoid_broker,
            faults=self._faults,
            now_ms=self._clock.monotonic_ms(),
        )

    # ------------------------------------------------------------------ hooks

    def _begin(
        self, packed: Packed, queue: MessageQueue, address: str, number: int, *, oneway: bool
    ) -> SendAttempt:
        attempt = SendAttempt(
            packed.messages,
            packed.unique_keys,
            self.group,
            queue,
            address,
            number,
            oneway,
            self._clock.wall_ms(),
        )
        for hook in self.hooks:
            hook.before(attempt)
        return attempt

    def _end(self, attempt: SendAttempt) -> None:
        attempt.ended_ms = self._clock.wall_ms()
        for hook in self.hooks:
            try:
                hook.after(attempt)
            except Exception:
                log.exception("send_hook_failed hook=%r", hook)


def _read_results(
    address: str, packed: Packed, queue: MessageQueue, response: Response
) -> list[SendResult]:
    status = _STATUS.get(response.code)
    if status is None:
        raise BrokerRefused(address, packed.code, response.code, response.remark or "")
    header = _stored_at(response)
    stored = (
        queue
        if header.queue_id == queue.queue_id
        else MessageQueue(queue.topic, queue.broker_name, header.queue_id)
    )
    if packed.code != RequestCode.SEND_BATCH_MESSAGE:
        key = packed.unique_keys[0]
        transaction_id = response.ext.get("transactionId", "")
        offset = header.queue_offset
        return [SendResult(status, key, header.msg_id, stored, offset, transaction_id)]
    offset_ids = header.msg_id.split(",")
    if len(offset_ids) != len(packed.unique_keys):
        problem = f"{len(offset_ids)} ids for {len(packed.unique_keys)} messages"
        raise CometError(f"{address}: bad answer to a batch: {problem}")
    return [
        SendResult(status, key, offset_id, stored, header.queue_offset + at)
        for at, (key, offset_id) in enumerate(zip(packed.unique_keys, offset_ids, strict=True))
    ]


def _stored_at(response: Response) -> SendMessageResponse:
    ext = response.ext
    try:
        # What every broker answers; from_ext costs three times as much.
        return SendMessageResponse(ext["msgId"], int(ext["queueId"]), int(ext["queueOffset"]))
    except (KeyError, ValueError):
        return from_ext(SendMessageResponse, ext)  # says what is wrong


def _key_function(order_key: OrderKey) -> Callable[[Message], str | None]:
    if callable(order_key):
        return order_key
    return lambda _: order_key
