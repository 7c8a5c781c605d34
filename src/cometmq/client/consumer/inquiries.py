"""Serves brokers' requests about running consumers, on behalf of administrators (upstream:
ClientRemotingProcessor.java).

    220 RESET_CONSUMER_CLIENT_OFFSET      drop prefetched messages, continue at other offsets
    221 GET_CONSUMER_STATUS_FROM_CLIENT   the consumer's offsets
    307 GET_CONSUMER_RUNNING_INFO         the consumer's queues, settings and statistics
    309 CONSUME_MESSAGE_DIRECTLY          process this message now and return the result
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from cometmq.client.queuekeys import key_of, queue_of
from cometmq.core.errors import BadRequest
from cometmq.message.model import from_record
from cometmq.message.record import BadRecord, decode_one
from cometmq.net.reply import Reply
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.consumerbodies import ClientStatus, read_offsets
from cometmq.protocol.fastjson import encode_json, object_map
from cometmq.protocol.fields import truth

if TYPE_CHECKING:
    from cometmq.client.session import Session
    from cometmq.message.model import MessageQueue, StoredMessage
    from cometmq.protocol import headers as h
    from cometmq.protocol.consumerbodies import DirectResult, RunningInfo
    from cometmq.protocol.frame import Request

log = logging.getLogger(__name__)


@runtime_checkable
class Inspected(Protocol):
    """Consumer that reports its state. Topics and queues have broker names."""

    def positions(self, topic: str) -> Mapping[MessageQueue, int]:
        """Return the consumer's offset in each queue of a topic that it reads."""
        ...

    def running_info(self, *, with_stacks: bool) -> RunningInfo:
        """Return the queues, settings and statistics of the consumer."""
        ...


@runtime_checkable
class Operated(Protocol):
    """Consumer that carries out requests of administrators."""

    async def reset(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue at these offsets in those of the queues that the consumer reads."""
        ...

    async def consume_directly(self, message: StoredMessage) -> DirectResult:
        """Process a message now and return the result. Raises BadRequest on a timeout."""
        ...


class Inquiries:
    """Request handlers for the consumers of one session, registered by the constructor."""

    def __init__(self, session: Session) -> None:
        self._session = session
        session.remoting.on_request.update(
            {
                RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._reset,
                RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._status,
                RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info,
                RequestCode.CONSUME_MESSAGE_DIRECTLY: self._consume_directly,
            }
        )

    async def _reset(self, address: str, request: Request[h.ResetOffset]) -> Reply:
        header = request.header
        offsets = {queue_of(key): at for key, at in read_offsets(request.body).items()}
        log.info(
            "reset_asked group=%s topic=%s queues=%d told_by=%s",
            header.group, header.topic, len(offsets), address,
        )  # fmt: skip
        await self._operated(header.group).reset(header.topic, offsets)
        return Reply()

    async def _status(self, _address: str, request: Request[h.GetConsumerStatus]) -> Reply:
        header = request.header
        positions = self._inspected(header.group).positions(header.topic)
        table = object_map((key_of(queue), at) for queue, at in sorted(positions.items()))
        return Reply(body=encode_json(ClientStatus(table)))

    async def _running_info(
        self, _address: str, request: Request[h.GetConsumerRunningInfo]
    ) -> Reply:
        header = request.header
        consumer = self._inspected(header.consumer_group)
        info = consumer.running_info(with_stacks=truth(header.jstack_enable))
        return Reply(body=encode_json(info))

    async def _consume_directly(
        self, _address: str, request: Request[h.ConsumeMessageDirectly]
    ) -> Reply:
        header = request.header
        consumer = self._operated(header.consumer_group)
        try:
            message = from_record(decode_one(request.body), header.broker_name or "")
        except BadRecord as error:
            raise BadRequest(
                ResponseCode.SYSTEM_ERROR, f"message cannot be read: {error}"
            ) from None
        return Reply(body=encode_json(await consumer.consume_directly(message)))

    def _inspected(self, group: str) -> Inspected:
        member: object = self._session.members.get(group)
        if not isinstance(member, Inspected):
            raise _nobody(group)
        return member

    def _operated(self, group: str) -> Operated:
        member: object = self._session.members.get(group)
        if not isinstance(member, Operated):
            raise _nobody(group)
        return member


def _nobody(group: str) -> BadRequest:
    return BadRequest(
        ResponseCode.SYSTEM_ERROR, f"The Consumer Group <{group}> not exist in this consumer"
    )
