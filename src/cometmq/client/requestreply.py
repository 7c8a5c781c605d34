"""Request-reply: a producer sends a request message, and a consumer of its topic replies.

    requester  sends with CORRELATION_ID, REPLY_TO_CLIENT (its client id) and TTL, and waits
    replier    consumes the request, and sends its reply to <cluster>_REPLY_TOPIC
    broker     pushes the reply to the requester (PUSH_REPLY_MESSAGE_TO_CLIENT)

(upstream: DefaultMQProducerImpl.request, MessageUtil.java)
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final

from cometmq.client.arguments import check_timeout
from cometmq.core.errors import ClientError, RequestTimedOut
from cometmq.message import properties as props
from cometmq.message.compression import decompress
from cometmq.message.ids import pack_host
from cometmq.message.model import Message, MessageView, StoredMessage
from cometmq.message.record import BadRecord
from cometmq.net.client import split_address
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.frame import Reply

if TYPE_CHECKING:
    from cometmq.client.arguments import Key
    from cometmq.client.consumer.received import ReceivedMessage
    from cometmq.client.delivery import QueueSelector
    from cometmq.client.producer import Producer
    from cometmq.client.session import Session
    from cometmq.message.model import MessageQueue
    from cometmq.protocol.frame import Request
    from cometmq.protocol.headers import PushReply

log = logging.getLogger(__name__)

#: Returns the body of the reply to a request, or None for no reply.
Responder = Callable[["ReceivedMessage"], Awaitable[bytes | None]]

_REPLY: Final = "reply"
_REPLY_TOPIC_SUFFIX: Final = "_REPLY_TOPIC"


class Asker:
    """Requests of one client that wait for their reply."""

    def __init__(self, session: Session, producer: Producer) -> None:
        self._session = session
        self._producer = producer
        self._waiting: dict[str, asyncio.Future[MessageView]] = {}
        session.remoting.on_request[RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT] = self._answered

    async def ask(
        self,
        message: Message,
        *,
        order_key: Key | None,
        queue: MessageQueue | QueueSelector | None,
        timeout_ms: int,
    ) -> MessageView:
        """Send a message and wait for the reply to it.

        Raises the errors of Producer.send, and RequestTimedOut if no reply arrives within
        ``timeout_ms``.
        """
        check_timeout(timeout_ms)
        session = self._session
        correlation_id = uuid.uuid4().hex
        answer: asyncio.Future[MessageView] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = answer
        asked = {
            props.CORRELATION_ID: correlation_id,
            props.REPLY_TO_CLIENT: session.client_id,
            props.TTL: str(timeout_ms),
        }
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                topic = session.namespace.wrap(message.topic)
                await session.publish_queues(topic)
                session.hold(topic)
                # Only a broker that knows this client as a producer can push the reply to it.
                await session.introduce(self._producer.known_as)
                await self._producer.send_with(
                    message, asked, order_key=order_key, queue=queue, timeout_ms=timeout_ms
                )
                return await answer
        except TimeoutError:
            code = RequestCode.SEND_MESSAGE_V2
            text = f"no replier of topic {message.topic!r} answered within {timeout_ms} ms"
            raise RequestTimedOut(f"topic {message.topic}", code, timeout_ms, text=text) from None
        finally:
            del self._waiting[correlation_id]

    async def _answered(self, address: str, request: Request[PushReply]) -> Reply:
        header = request.header
        properties = props.decode_text(header.properties or "")
        waiting = self._waiting.get(properties.get(props.CORRELATION_ID, ""))
        if waiting is None or waiting.done():
            log.info("reply_too_late address=%s topic=%s", address, header.topic)
            return Reply()
        try:
            waiting.set_result(MessageView(_message_of(header, properties, request.body)))
        except BadRecord as error:
            log.error("reply_unreadable address=%s error=%s", address, error)
        return Reply()


def _message_of(header: PushReply, properties: dict[str, str], body: bytes) -> StoredMessage:
    """Build the message of a reply. Raises BadRecord for a body that cannot be decompressed."""
    return StoredMessage(
        topic=header.topic,
        queue_id=header.queue_id,
        queue_offset=0,
        physical_offset=0,
        body=decompress(body, header.sys_flag),
        properties=properties,
        flag=header.flag,
        sys_flag=header.sys_flag,
        born_ms=header.born_timestamp,
        born_host=_packed(header.born_host),
        store_ms=header.store_timestamp,
        store_host=_packed(header.store_host),
        reconsume_times=header.reconsume_times or 0,
        prepared_offset=0,
        size_bytes=len(body),
    )


def _packed(address: str) -> bytes:
    try:
        return pack_host(*split_address(address.removeprefix("/")))
    except (ClientError, ValueError):
        return bytes(8)  # informative only


async def respond(producer: Producer, message: ReceivedMessage, responder: Responder) -> None:
    """Call ``responder`` with a request and send the reply that it returns. Raises its errors."""
    body = await responder(message)
    if body is not None:
        await reply(producer, message, body)


async def reply(
    producer: Producer, asked: MessageView, body: bytes, properties: Mapping[str, str] | None = None
) -> None:
    """Send the reply to a request. Do nothing if the message ``asked`` requests no reply.

    If the reply cannot be delivered, log that: the requester is gone or its wait timed out. Raises
    MessageIllegal for properties that are reserved or contain separators, and for a body over the
    limit.
    """
    address = reply_address(asked.properties)
    if address is None:
        return
    topic, reserved = address
    try:
        await producer.send_reply(Message(topic, body, properties=properties or {}), reserved)
    except ClientError as error:
        log.warning("reply_failed message=%s error=%s", asked.message_id, error)


def reply_address(asked: Mapping[str, str]) -> tuple[str, dict[str, str]] | None:
    """Return the reply topic and the properties of a reply; None if no reply is requested."""
    cluster, asker = asked.get(props.CLUSTER), asked.get(props.REPLY_TO_CLIENT)
    correlation_id = asked.get(props.CORRELATION_ID)
    if not cluster or not asker or not correlation_id:
        return None
    return cluster + _REPLY_TOPIC_SUFFIX, {
        props.MSG_TYPE: _REPLY,
        props.CORRELATION_ID: correlation_id,
        props.REPLY_TO_CLIENT: asker,
        props.TTL: asked.get(props.TTL, "3000"),
    }
