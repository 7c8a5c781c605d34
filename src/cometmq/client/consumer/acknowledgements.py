"""Acknowledgements and retries: what happens to a message after it was processed.

A message is acknowledged, delivered again by this consumer, or sent away to a broker. A settled
message (acknowledged or sent away) advances the queue's committable offset (inflight.py), which the
consumer stores. A FailurePolicy decides what happens to failed messages.

Concurrent consumers send failed messages back to the broker, which stores them in the group's retry
topic with a delay, or makes them dead letters. If the broker cannot be reached, the message stays
with this consumer and is delivered again after a pause. A send-back contains only the message's
physical offset. If the broker does not have the message there, the consumer sends the whole message
to the retry topic (upstream: ConsumeMessageConcurrentlyService.java,
DefaultMQPushConsumerImpl.sendMessageBack).

Ordered consumers deliver a message again in place, after a pause, until it succeeds or becomes a
dead letter (upstream: ConsumeMessageOrderlyService.java).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

from cometmq.client.consumer.runninginfo import MEASURED, ConsumerStats
from cometmq.client.hooks import ConsumeAttempt, run_after, run_before
from cometmq.core.errors import BrokerRefused, ClientError
from cometmq.message import properties as props
from cometmq.message.names import RETRY_PREFIX
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers import ConsumerSendMsgBack

if TYPE_CHECKING:
    from cometmq.client.consumer.inflight import Dispatch, InFlight
    from cometmq.client.consumer.options import SubscribeOptions
    from cometmq.client.hooks import ConsumeHook, Outcome
    from cometmq.client.producer import Producer
    from cometmq.client.session import Session
    from cometmq.message.model import MessageQueue, MessageView, StoredMessage

log = logging.getLogger(__name__)

DEFAULT_MAX_RECONSUME_TIMES: Final = 16
#: Delay level of a message that was not finished in time (upstream: ProcessQueue.cleanExpiredMsg).
_STUCK_LEVEL: Final = 3


class FailurePolicy(Protocol):
    """Treatment of failed messages, for concurrent or for ordered consumers.

    ``delay_level`` is that of :meth:`ReceivedMessage.retry`; a negative one means a dead letter.
    """

    #: Pause before a failed message that stays with this consumer is delivered again.
    pause_ms: int

    def is_final(self, message: StoredMessage, delay_level: int) -> bool:
        """Return whether to send the message away; otherwise this consumer delivers it again."""
        ...

    async def send_away(
        self, queue: MessageQueue, message: StoredMessage, delay_level: int
    ) -> None:
        """Send the message to the brokers, to be retried or to become a dead letter.

        Raises ClientError.
        """
        ...


class SendBack:
    """FailurePolicy of one concurrent consumer."""

    def __init__(self, session: Session, options: SubscribeOptions, producer: Producer) -> None:
        self.pause_ms = session.config.local_retry_pause_ms
        self._session = session
        self._options = options
        self._producer = producer

    def is_final(self, message: StoredMessage, delay_level: int) -> bool:
        return True

    async def send_away(
        self, queue: MessageQueue, message: StoredMessage, delay_level: int
    ) -> None:
        most = self._options.max_reconsume_times
        most = DEFAULT_MAX_RECONSUME_TIMES if most < 0 else most
        try:
            await self._name(queue, message, delay_level, most)
        except BrokerRefused as error:
            if error.code != ResponseCode.SYSTEM_ERROR:
                raise
            await self._send_whole(message, delay_level, most)

    async def _name(
        self, queue: MessageQueue, message: StoredMessage, delay_level: int, most: int
    ) -> None:
        origin = message.properties.get(props.RETRY_TOPIC) or message.topic
        header = ConsumerSendMsgBack(
            offset=message.physical_offset,
            group=self._options.group,
            delay_level=delay_level,
            origin_msg_id=message.message_id,
            origin_topic=self._session.namespace.wrap(origin),
            unit_mode=False,
            max_reconsume_times=most,
        )
        await self._session.remoting.call(
            await self._session.master_of(queue),
            RequestCode.CONSUMER_SEND_MSG_BACK,
            header,
            timeout_ms=self._session.config.request_timeout_ms,
        )

    async def _send_whole(self, message: StoredMessage, delay_level: int, most: int) -> None:
        # In a send-back by offset the broker increments the number of attempts. A whole message has
        # the incremented number itself.
        times = message.reconsume_times + 1 if delay_level >= 0 else most + 1
        await self._producer.send_to_retry(
            message,
            self._options.retry_topic,
            reconsume_times=times,
            max_reconsume_times=most + 1,
            delay_level=max(delay_level, 0) or props.FIRST_RETRY_LEVEL + message.reconsume_times,
        )


class RetryInPlace:
    """FailurePolicy of one ordered consumer."""

    def __init__(self, session: Session, options: SubscribeOptions, producer: Producer) -> None:
        self.pause_ms = session.config.ordered_retry_pause_ms
        self._options = options
        self._producer = producer

    def is_final(self, message: StoredMessage, delay_level: int) -> bool:
        most = self._options.max_reconsume_times
        return delay_level < 0 or 0 <= most <= message.reconsume_times

    async def send_away(
        self, queue: MessageQueue, message: StoredMessage, delay_level: int
    ) -> None:
        most = max(self._options.max_reconsume_times, 0)
        await self._producer.send_to_retry(
            message,
            self._options.retry_topic,
            # More than the maximum makes it a dead letter at once.
            reconsume_times=message.reconsume_times + 1 if delay_level >= 0 else most + 1,
            max_reconsume_times=most,
            delay_level=props.FIRST_RETRY_LEVEL + message.reconsume_times,
        )


class ConsumerSettler:
    """Settles the messages of one consumer; see received.Settler."""

    def __init__(
        self,
        session: Session,
        options: SubscribeOptions,
        dispatch: Dispatch,
        policy: FailurePolicy,
        hooks: Sequence[ConsumeHook] = (),
    ) -> None:
        #: Number of messages that are being processed.
        self.working = 0
        #: Counters of processed messages by topic.
        self.stats = ConsumerStats(session.clock.monotonic_ms())
        self._session = session
        self._options = options
        self._dispatch = dispatch
        self._policy = policy
        self._hooks = hooks

    def begin(self, message: MessageView) -> ConsumeAttempt | None:
        self.working += 1
        if not self._hooks:
            return None
        group = self._session.namespace.unwrap(self._options.group)
        attempt = ConsumeAttempt(message, group, self._session.clock.wall_ms())
        run_before(self._hooks, attempt)
        return attempt

    def end(
        self, attempt: ConsumeAttempt | None, outcome: Outcome | None, error: BaseException | None
    ) -> None:
        self.working -= 1
        if attempt is not None:
            attempt.ended_ms = self._session.clock.wall_ms()
            attempt.outcome = outcome
            attempt.error = error
            run_after(self._hooks, attempt)

    def succeeded(self, inflight: InFlight, message: StoredMessage) -> None:
        counters = self.stats.of(inflight.queue.topic)
        if not counters.succeeded % MEASURED:
            taken_ms = inflight.taken_at(message)
            if taken_ms is not None:
                counters.measured += 1
                counters.consume_ms += self._session.clock.monotonic_ms() - taken_ms
        counters.succeeded += 1
        inflight.settle(message)
        self._dispatch.release(inflight)

    @property
    def is_watched(self) -> bool:
        """True if consume hooks must be called for each message."""
        return bool(self._hooks)

    def run_succeeded(self, inflight: InFlight, count: int, begun_ms: int) -> None:
        """Settle the first ``count`` messages of a run (:meth:`InFlight.run`) as succeeded.

        They were processed in sequence, from ``begun_ms`` (monotonic) until now.
        """
        now_ms = self._session.clock.monotonic_ms()
        counters = self.stats.of(inflight.queue.topic)
        counters.succeeded += count
        counters.measured += count
        counters.consume_ms += now_ms - begun_ms
        inflight.finish_run(count, now_ms)

    def returned(self, inflight: InFlight, message: StoredMessage) -> None:
        inflight.give_back(message, failed=False)
        self._dispatch.release(inflight)

    async def failed(
        self, inflight: InFlight, message: StoredMessage, delay_level: int, pause_ms: int = 0
    ) -> None:
        self.stats.of(inflight.queue.topic).failed += 1
        try:
            if inflight.dropped:
                inflight.give_back(message, failed=False)  # the queue's next owner delivers it
            elif self._policy.is_final(message, delay_level) and await self._sent_away(
                inflight, message, delay_level
            ):
                inflight.settle(message)
            else:
                retry = self._retry_here(inflight, message, pause_ms or self._policy.pause_ms)
                self._session.tasks.spawn(retry, name=f"retry {message.message_id}")
        finally:
            self._dispatch.release(inflight)

    async def expired(self, inflight: InFlight, message: StoredMessage) -> None:
        """Send back a message that the application did not finish in time, to be retried."""
        log.warning(
            "consume_timeout topic=%s message=%s: sent back to be retried",
            inflight.queue.topic.removeprefix(RETRY_PREFIX),
            message.message_id,
        )
        if await self._sent_away(inflight, message, _STUCK_LEVEL):
            inflight.settle(message)

    async def _sent_away(
        self, inflight: InFlight, message: StoredMessage, delay_level: int
    ) -> bool:
        if self._options.broadcasting:
            log.warning("broadcast_dropped message=%s: there is no retry", message.message_id)
            return True
        try:
            await self._policy.send_away(inflight.queue, message, delay_level)
        except ClientError as error:
            log.warning("send_back_failed message=%s error=%s", message.message_id, error)
            return False
        return True

    async def _retry_here(self, inflight: InFlight, message: StoredMessage, pause_ms: int) -> None:
        await self._session.clock.sleep_ms(pause_ms)
        if inflight.give_back(message, failed=True):
            self._dispatch.offer(inflight)
