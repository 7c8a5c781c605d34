"""Recall of waiting messages (upstream: RecallMessageProcessor.java).

The handle identifies a message and the second in which it waits. A recall is a message itself: it
waits in the same second, and suppresses the delivery of the message it names. Whether that message
exists is not checked before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.broker.acknowledgement import OutgoingRecord
from cometmq.broker.scheduled.timers.rules import SECOND_MS, recall_key
from cometmq.core.errors import BadRequest
from cometmq.message import properties as props
from cometmq.message.ids import decode_recall
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.frame import Reply
from cometmq.protocol.headers import RecallMessageResponse

if TYPE_CHECKING:
    from cometmq.broker.acknowledgement import Appender
    from cometmq.broker.config import BrokerConfig
    from cometmq.broker.scheduled.timers.rules import TimerRules
    from cometmq.broker.topics.table import TopicTable
    from cometmq.core.clock import Clock
    from cometmq.net.peer import Peer
    from cometmq.net.router import Handler
    from cometmq.protocol.frame import Request
    from cometmq.protocol.headers import RecallMessage

_TAG: Final = "_RECALL_TAG_"
_BODY: Final = b"0"


class RecallHandler:
    """Serves RECALL_MESSAGE."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        rules: TimerRules,
        topics: TopicTable,
        appender: Appender,
        clock: Clock,
    ) -> None:
        self._config = config
        self._rules = rules
        self._topics = topics
        self._appender = appender
        self._clock = clock

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {RequestCode.RECALL_MESSAGE: self.recall}

    async def recall(self, peer: Peer, request: Request[RecallMessage]) -> Reply:
        """Store a recall. Once it is answered, the message it names will not be delivered."""
        header, config = request.header, self._config
        if not config.recall_message_enable:
            raise BadRequest(
                ResponseCode.NO_PERMISSION,
                "recall failed, operation is forbidden (recallMessageEnable)",
            )
        if self._topics.get(header.topic) is None:
            raise BadRequest(
                ResponseCode.TOPIC_NOT_EXIST, f"recall failed, the topic[{header.topic}] not exist"
            )
        try:
            handle = decode_recall(header.recall_handle)
        except ValueError as error:
            raise BadRequest(ResponseCode.ILLEGAL_OPERATION, str(error)) from None
        if handle.topic != header.topic:
            raise BadRequest(ResponseCode.ILLEGAL_OPERATION, "recall failed, topic not match")
        if handle.broker_name != config.broker_name:
            raise BadRequest(
                ResponseCode.ILLEGAL_OPERATION,
                f"recall failed, broker service not available: the message is on broker "
                f"{handle.broker_name}, this is {config.broker_name}",
            )
        now_ms = self._clock.wall_ms()
        left_ms = handle.deliver_ms - now_ms
        if not SECOND_MS < left_ms + SECOND_MS < (config.timer_max_delay_sec + 1) * SECOND_MS:
            raise BadRequest(
                ResponseCode.ILLEGAL_OPERATION,
                f"recall failed, timestamp invalid: it is due {left_ms} ms from now",
            )
        properties = {
            props.TAGS: _TAG,
            props.TIMER_DEL_UNIQKEY: recall_key(handle.topic, handle.unique_key),
            props.UNIQ_KEY: handle.unique_key,
            props.TIMER_DELIVER_MS: str(handle.deliver_ms),
        }
        if header.producer_group:
            properties[props.PRODUCER_GROUP] = header.producer_group
        parked = self._rules.place_for(handle.topic, 0, properties, now_ms)
        assert parked is not None, "the delivery time is in the future"
        topic, queue_id, waiting = parked
        await self._appender.put(
            OutgoingRecord(topic, queue_id, _BODY, waiting, now_ms, peer.host_bytes)
        )
        return Reply(header=RecallMessageResponse(msg_id=handle.unique_key))
