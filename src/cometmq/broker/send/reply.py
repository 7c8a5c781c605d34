"""Request-reply: the reply to a request message is pushed to the producer that sent the request.

    asker     sends a message with CORRELATION_ID, REPLY_TO_CLIENT (its client id) and TTL
    replier   consumes it, and sends its answer with these properties to <cluster>_REPLY_TOPIC
    broker    pushes the answer to the asker's connection, then answers the replier

With storeReplyMessageEnable the reply is stored too, whether it was pushed or not, so that it can
be found later (upstream: ReplyMessageProcessor.java).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from cometmq.broker.acknowledgement import OutgoingRecord
from cometmq.broker.send.admission import (
    Admission,
    check_no_transaction,
    check_properties,
    choose_queue,
)
from cometmq.core.errors import BadRequest, ClientError
from cometmq.message import properties as props
from cometmq.protocol.bodies import writable
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.frame import Reply
from cometmq.protocol.headers import PushReply, SendMessageResponse

if TYPE_CHECKING:
    from cometmq.broker.context import BrokerContext
    from cometmq.net.peer import Peer
    from cometmq.net.router import Handler
    from cometmq.protocol.frame import Request
    from cometmq.protocol.headers import SendMessage

log = logging.getLogger(__name__)

PUSH_TIMEOUT_MS: Final = 10_000


class ReplyHandler:
    """Serves SEND_REPLY_MESSAGE and SEND_REPLY_MESSAGE_V2."""

    def __init__(self, context: BrokerContext) -> None:
        self._admission = Admission(context.config, context.tables.topics, context.clock)
        self._config = context.config
        self._appender = context.appender
        self._members = context.tables.members
        self._clock = context.clock
        self._store_address = context.store_address

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {
            RequestCode.SEND_REPLY_MESSAGE: self.reply,
            RequestCode.SEND_REPLY_MESSAGE_V2: self.reply,
        }

    async def reply(self, peer: Peer, request: Request[SendMessage]) -> Reply:
        """Push a reply to the client that sent the request, and store it if configured.

        The response is SYSTEM_ERROR if that client did not get the reply.
        """
        header, body = request.header, request.body
        self._admission.check_load(peer, self._appender.waiting_sends)
        config = self._admission.find_topic(header.topic)
        if config is None:
            raise BadRequest(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{header.topic}] not exist: replies go to "
                f"{self._config.broker_cluster_name}_REPLY_TOPIC",
            )
        if not writable(self._config.broker_permission):
            raise BadRequest(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._config.broker_name}] sending message is forbidden",
            )
        queue_id = choose_queue(header.queue_id, config)
        check_no_transaction(header.sys_flag, "a reply")
        properties = props.decode_text(header.properties or "")
        stored_properties = properties | {props.CLUSTER: self._config.broker_cluster_name}
        raw_properties = props.encode(stored_properties)
        check_properties(raw_properties)
        self._admission.check_body(body)
        problem = await self._push(peer, header, queue_id, properties, body)
        response = SendMessageResponse(msg_id="0", queue_id=queue_id, queue_offset=0)
        if self._config.store_reply_message_enable:
            stored = await self._appender.put(
                OutgoingRecord(
                    topic=header.topic,
                    queue_id=queue_id,
                    body=body,
                    properties=stored_properties,
                    raw_properties=raw_properties,
                    born_ms=header.born_timestamp,
                    born_host=peer.host_bytes,
                    flag=header.flag,
                    sys_flag=header.sys_flag,
                    reconsume_times=header.reconsume_times or 0,
                )
            )
            response = SendMessageResponse(
                msg_id=stored.message_id, queue_id=queue_id, queue_offset=stored.queue_offset
            )
        if problem:
            log.warning("reply not pushed topic=%s reason=%s", header.topic, problem)
            return Reply(ResponseCode.SYSTEM_ERROR, header=response, remark=problem)
        return Reply(header=response)

    async def _push(
        self,
        peer: Peer,
        header: SendMessage,
        queue_id: int,
        properties: dict[str, str],
        body: bytes,
    ) -> str:
        """Push the reply; return a description of the problem, "" on success."""
        asker_id = properties.get(props.REPLY_TO_CLIENT)
        if not asker_id:
            return "REPLY_TO_CLIENT is null, can not reply message"
        asker = self._members.producer(asker_id)
        if asker is None:
            return f"push reply message to {asker_id} fail, channel of {asker_id} not found."
        now_ms = self._clock.wall_ms()
        pushed = PushReply(
            producer_group=header.producer_group,
            topic=header.topic,
            default_topic=header.default_topic,
            default_topic_queue_nums=header.default_topic_queue_nums,
            queue_id=queue_id,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            flag=header.flag,
            properties=props.encode_text(properties | {props.PUSH_REPLY_TIME: str(now_ms)}),
            reconsume_times=header.reconsume_times or 0,
            unit_mode=header.unit_mode,
            born_host=peer.address,
            store_host=self._store_address,
            store_timestamp=now_ms,
        )
        try:
            answer = await asker.request(
                RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, pushed, body, timeout_ms=PUSH_TIMEOUT_MS
            )
        except ClientError as error:
            return f"push reply message to {asker_id} fail: {error}"
        if answer.code != ResponseCode.SUCCESS:
            return f"push reply message to {asker_id} fail: it answered {answer.code}"
        return ""
