"""What becomes of a message that its consumer is done with: committed, retried, or sent away.

The rules here hold for every way of consuming; a FailurePolicy says what differs when a message
failed. Of a queue that was dropped, messages count until it is reset: whoever drops it stores its
offset after that.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, Protocol

from cometmq.client.consumer.options import RETRY_PREFIX
from cometmq.core.errors import ClientError

if TYPE_CHECKING:
    from cometmq.client.consumer.dispatch import Dispatch
    from cometmq.client.consumer.inflight import InFlight
    from cometmq.client.consumer.offsets import OffsetStore
    from cometmq.client.consumer.options import SubscribeOptions
    from cometmq.client.session import Session
    from cometmq.message.model import MessageQueue, StoredMessage

log = logging.getLogger(__name__)

#: Delay level of a message that was held for too long (upstream: ProcessQueue.cleanExpiredMsg).
_STUCK_LEVEL: Final = 3


class FailurePolicy(Protocol):
    """What one way of consuming does with messages that failed."""

    #: How long a failed message rests that is given again here.
    pause_ms: int

    def is_final(self, message: StoredMessage, delay_level: int) -> bool:
        """Whether the message leaves this consumer; else it is given again here."""
        ...

    async def send_away(
        self, queue: MessageQueue, message: StoredMessage, delay_level: int
    ) -> None:
        """Hand the message to the brokers, to be retried or to be a dead letter. Raises
        ClientError."""
        ...


class ConsumerSettler:
    """Settles for one consumer; see received.Settler."""

    def __init__(
        self,
        session: Session,
        options: SubscribeOptions,
        offsets: OffsetStore,
        dispatch: Dispatch,
        policy: FailurePolicy,
    ) -> None:
        #: Messages that somebody works on.
        self.working = 0
        self._session = session
        self._options = options
        self._offsets = offsets
        self._dispatch = dispatch
        self._policy = policy

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
            elif self._policy.is_final(message, delay_level) and await self._sent_away(
                inflight, message, delay_level
            ):
                self._done(inflight, message)
            else:
                retry = self._retry_here(inflight, message)
                self._session.tasks.spawn(retry, name=f"retry {message.message_id}")
        finally:
            self._dispatch.release(inflight)

    async def expired(self, inflight: InFlight, message: StoredMessage) -> None:
        """Its holder did not finish in time: somebody else gets it."""
        log.warning(
            "consume_timeout topic=%s message=%s: sent back to be retried",
            inflight.queue.topic.removeprefix(RETRY_PREFIX),
            message.message_id,
        )
        if await self._sent_away(inflight, message, _STUCK_LEVEL):
            self._done(inflight, message)

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

    def _done(self, inflight: InFlight, message: StoredMessage) -> None:
        if inflight.settle(message):
            self._offsets.update(inflight.queue, inflight.committable)

    async def _retry_here(self, inflight: InFlight, message: StoredMessage) -> None:
        await self._session.clock.sleep_ms(self._policy.pause_ms)
        if inflight.give_back(message, failed=True):
            self._dispatch.offer(inflight)
