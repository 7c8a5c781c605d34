"""Failed messages whose order does not matter: each goes back to the broker.

The broker stores it again in the group's retry topic, delayed, or makes it a dead letter; when it
cannot be reached the message stays here and is given again after a pause (upstream:
ConsumeMessageConcurrentlyService.java).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.message import properties as props
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers import ConsumerSendMsgBack

if TYPE_CHECKING:
    from cometmq.client.consumer.options import SubscribeOptions
    from cometmq.client.session import Session
    from cometmq.message.model import MessageQueue, StoredMessage

DEFAULT_MAX_RECONSUME_TIMES: Final = 16


class SendBack:
    """Failures of one consumer; see settling.FailurePolicy."""

    def __init__(self, session: Session, options: SubscribeOptions) -> None:
        self.pause_ms = session.config.local_retry_pause_ms
        self._session = session
        self._options = options

    def is_final(self, message: StoredMessage, delay_level: int) -> bool:
        return True

    async def send_away(
        self, queue: MessageQueue, message: StoredMessage, delay_level: int
    ) -> None:
        most = self._options.max_reconsume_times
        origin = message.properties.get(props.RETRY_TOPIC) or message.topic
        header = ConsumerSendMsgBack(
            offset=message.physical_offset,
            group=self._options.group,
            delay_level=delay_level,
            origin_msg_id=message.offset_id,
            origin_topic=self._session.namespace.wrap(origin),
            unit_mode=False,
            max_reconsume_times=DEFAULT_MAX_RECONSUME_TIMES if most < 0 else most,
        )
        await self._session.remoting.call(
            await self._session.master_of(queue),
            RequestCode.CONSUMER_SEND_MSG_BACK,
            header,
            timeout_ms=self._session.config.request_timeout_ms,
        )
