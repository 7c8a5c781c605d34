"""Settling messages whose order does not matter: a failed one goes back to the broker.

The broker stores it again in the group's retry topic, delayed; when it cannot be reached the
message stays here and is given again after a pause (upstream:
ConsumeMessageConcurrentlyService.java).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from cometmq.client.consumer.options import RETRY_PREFIX
from cometmq.core.errors import ClientError
from cometmq.message import properties as props
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers import ConsumerSendMsgBack

if TYPE_CHECKING:
    from cometmq.client.consumer.dispatch import Dispatch
    from cometmq.client.consumer.inflight import InFlight
    from cometmq.client.consumer.offsets import OffsetStore
    from cometmq.client.consumer.options import SubscribeOptions
    from cometmq.client.session import Session
    from cometmq.message.model import StoredMessage

log = logging.getLogger(__name__)

DEFAULT_MAX_RECONSUME_TIMES: Final = 16


class ConcurrentSettler:
    """Settles for one consumer; see received.Settler."""

    def __init__(
        self,
        session: Session,
        options: SubscribeOptions,
        offsets: OffsetStore,
        dispatch: Dispatch,
    ) -> None:
        self.working = 0
        self._session = session
        self._options = options
        self._offsets = offsets
        self._dispatch = dispatch

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
                return  # not committed, so its next owner gets it
            if self._options.broadcasting:
                log.warning("broadcast_dropped message=%s: there is no retry", message.message_id)
                self._done(inflight, message)
                return
            try:
                await self.send_back(inflight, message, delay_level)
            except ClientError as error:
                log.warning("send_back_failed message=%s error=%s", message.message_id, error)
                name = f"retry {message.message_id}"
                self._session.tasks.spawn(self._retry_here(inflight, message), name=name)
            else:
                self._done(inflight, message)
        finally:
            self._dispatch.release(inflight)

    async def send_back(self, inflight: InFlight, message: StoredMessage, delay_level: int) -> None:
        """Hand a message to its broker, to be retried. Raises ClientError."""
        most = self._options.max_reconsume_times
        header = ConsumerSendMsgBack(
            offset=message.physical_offset,
            group=self._options.group,
            delay_level=delay_level,
            origin_msg_id=message.offset_id,
            origin_topic=message.properties.get(props.RETRY_TOPIC) or message.topic,
            unit_mode=False,
            max_reconsume_times=DEFAULT_MAX_RECONSUME_TIMES if most < 0 else most,
        )
        await self._session.remoting.call(
            await self._session.master_of(inflight.queue),
            RequestCode.CONSUMER_SEND_MSG_BACK,
            header,
            timeout_ms=self._session.config.request_timeout_ms,
        )

    async def send_back_stuck(self, inflight: InFlight, message: StoredMessage) -> None:
        """Give a message to somebody else that its holder did not finish in time."""
        level = 3
        log.warning(
            "consume_timeout topic=%s message=%s: sent back to be retried",
            inflight.queue.topic.removeprefix(RETRY_PREFIX),
            message.message_id,
        )
        try:
            await self.send_back(inflight, message, level)
        except ClientError as error:
            log.warning("send_back_failed message=%s error=%s", message.message_id, error)
        else:
            self._done(inflight, message)

    def _done(self, inflight: InFlight, message: StoredMessage) -> None:
        if inflight.settle(message) and not inflight.dropped:
            self._offsets.update(inflight.queue, inflight.committable)

    async def _retry_here(self, inflight: InFlight, message: StoredMessage) -> None:
        await self._session.clock.sleep_ms(self._session.config.local_retry_pause_ms)
        if inflight.give_back(message, failed=True):
            self._dispatch.offer(inflight)
