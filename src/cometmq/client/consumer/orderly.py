"""Failure policy of ordered consumers: a failed message is delivered again before its successors.

After its last attempt it is sent to the group's retry topic; the broker moves it from there to the
dead-letter queue (upstream: ConsumeMessageOrderlyService.java).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cometmq.client.consumer.options import SubscribeOptions
    from cometmq.client.producer import Producer
    from cometmq.client.session import Session
    from cometmq.message.model import MessageQueue, StoredMessage

_FIRST_RETRY_LEVEL: Final = 3


class RetryInPlace:
    """Failure policy of one ordered consumer; see settling.FailurePolicy."""

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
        await self._producer.send_to_retry(
            message,
            self._options.retry_topic,
            reconsume_times=message.reconsume_times + 1,
            max_reconsume_times=max(self._options.max_reconsume_times, 0),
            delay_level=_FIRST_RETRY_LEVEL + message.reconsume_times,
        )
