"""Requests that send messages, and the results in their responses.

Packer builds requests: properties, compression, batch body. :func:`read_results` returns where and
how safely a broker stored the messages. Nothing here does I/O, so large messages can be packed in a
thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Final

import msgspec

from cometmq.client.arguments import check_topic_type
from cometmq.client.limits import (
    check_batch,
    check_message,
    check_property_size,
    check_target,
    goes_alone,
)
from cometmq.core.errors import BrokerRefused, CometError, MessageIllegal
from cometmq.message import properties
from cometmq.message.compression import compress
from cometmq.message.model import Message, MessageQueue
from cometmq.message.names import AUTO_CREATE_TOPIC
from cometmq.message.record import COMPRESSED, TransactionType, with_transaction_type
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.fields import from_ext
from cometmq.protocol.headers import SendMessageResponse, SendMessageV2
from cometmq.speedups import batch_body, batch_results

if TYPE_CHECKING:
    from cometmq.client.config import ClientConfig
    from cometmq.message.model import StoredMessage
    from cometmq.message.names import Namespace
    from cometmq.protocol.frame import Response

#: Larger bodies are compressed in a thread. To compress a body of this size takes about 1 ms.
INLINE_COMPRESS_BYTES: Final = 64 * 1024
_NO_WAIT: Final = f"{properties.WAIT}\x01false"
#: Offsets have 63 bits.
_LAST_OFFSET: Final = (1 << 63) - 1
#: A unique key of the maximum length.
_LONGEST_KEY: Final = "0" * 56


class Packed(msgspec.Struct, frozen=True, gc=False):
    """Body and header values of a send request, independent of the queue.

    ``topic`` is the broker name of the topic. ``reconsume_times`` and ``max_reconsume_times`` are
    set for messages that a consumer stores in its retry topic.
    """

    topic: str
    code: RequestCode
    body: bytes
    properties: str
    sys_flag: int
    flag: int
    born_ms: int
    messages: tuple[Message, ...]
    unique_keys: tuple[str, ...]
    reconsume_times: int = 0
    max_reconsume_times: int | None = None

    def header(self, group: str, queue: MessageQueue, default_topic_queues: int) -> SendMessageV2:
        """Return the request's header for one queue."""
        return SendMessageV2(
            producer_group=group,
            topic=self.topic,
            default_topic=AUTO_CREATE_TOPIC,
            default_topic_queue_nums=default_topic_queues,
            queue_id=queue.queue_id,
            sys_flag=self.sys_flag,
            born_timestamp=self.born_ms,
            flag=self.flag,
            properties=self.properties,
            reconsume_times=self.reconsume_times,
            unit_mode=False,
            max_reconsume_times=self.max_reconsume_times,
            batch=self.code == RequestCode.SEND_BATCH_MESSAGE,
            broker_name=queue.broker_name,
        )

    def with_properties(self, more: Mapping[str, str]) -> Packed:
        """Return the request with further properties.

        Raises MessageIllegal if the properties become too long.
        """
        separator = properties.PROPERTY_SEPARATOR
        text = f"{self.properties}{separator}{properties.encode_text(more)}"
        return msgspec.structs.replace(self, properties=check_property_size(text))

    def prepared(self, group: str) -> Packed:
        """Return the request as that of the half message of a transaction of ``group``."""
        pairs = {properties.TRAN_MSG: "true", properties.PRODUCER_GROUP: group}
        sys_flag = with_transaction_type(self.sys_flag, TransactionType.PREPARED)
        return msgspec.structs.replace(self.with_properties(pairs), sys_flag=sys_flag)

    def as_reply(self, topic: str) -> Packed:
        """Return the request as that of a reply message, for the reply topic ``topic``."""
        code = RequestCode.SEND_REPLY_MESSAGE_V2
        return msgspec.structs.replace(self, topic=topic, code=code)


class Packer:
    """Packs the messages of one client into requests."""

    def __init__(self, config: ClientConfig, namespace: Namespace) -> None:
        self._config = config
        self._namespace = namespace

    def check(self, message: Message) -> str:
        """Check a message and return the broker name of its topic. Raises MessageIllegal.

        The size of its properties is checked only when it is packed.
        """
        check_topic_type(message.topic)
        topic = self._namespace.wrap(message.topic)
        check_target(topic)
        check_message(message, self._config.max_message_bytes)
        return topic

    def plain_bodies(self, messages: Sequence[Message]) -> list[bytes] | None:
        """Return the bodies of messages that may form one batch and have only a topic and a body.

        Return None for other messages. Raises MessageIllegal.
        """
        first = messages[0]
        topic, wait_store, body_bytes = (
            first.topic,
            first.wait_store,
            self._config.max_message_bytes,
        )
        if self._namespace:
            return None
        bodies: list[bytes] = []
        for message in messages:
            body = message.body
            if (
                type(body) is not bytes
                or len(body) > body_bytes
                or message.topic != topic
                or message.tag
                or message.keys
                or message.properties
                or message.message_id
                or message.flag
                or message.born_ms
                or message.delay_level
                or message.delay_ms
                or message.deliver_at_ms
                or message.wait_store is not wait_store
            ):
                return None
            bodies.append(body)
        self.check(first)
        return None if goes_alone(first) else bodies

    def single(self, message: Message, unique_key: str, born_ms: int) -> Packed:
        """Return a request for one message. Raises MessageIllegal.

        ``born_ms`` is the birth time if the message has none.
        """
        topic = self.check(message)
        body, sys_flag = self._maybe_compress(message.body)
        return Packed(
            topic,
            RequestCode.SEND_MESSAGE_V2,
            body,
            check_property_size(properties.encode_text(self._pairs(message, unique_key))),
            sys_flag,
            message.flag,
            message.born_ms or born_ms,
            (message,),
            (unique_key,),
        )

    def batch(
        self, messages: Sequence[Message], unique_keys: Sequence[str], born_ms: int
    ) -> Packed:
        """Return a request for one or more messages. Raises MessageIllegal.

        ``born_ms`` is the birth time if the messages have none.
        """
        bodies = self.plain_bodies(messages)
        if bodies is not None:
            return self.plain_batch(messages, bodies, list(unique_keys), born_ms)
        for message in messages:
            self.check(message)
        check_batch(messages)
        texts = [self.batch_text(message) for message in messages]
        return self.checked_batch(messages, texts, list(unique_keys), born_ms)

    def checked_batch(
        self, messages: Sequence[Message], texts: list[str], unique_keys: list[str], born_ms: int
    ) -> Packed:
        """Return the request that :meth:`batch` returns, for messages that were checked.

        ``texts`` are their results of :meth:`batch_text`. Raises MessageIllegal for a batch over
        the limit.
        """
        bodies = [bytes(message.body) for message in messages]
        flags = [message.flag for message in messages]
        body = batch_body(bodies, texts, unique_keys, flags)
        return self._packed_batch(messages, body, unique_keys, born_ms)

    def plain_batch(
        self,
        messages: Sequence[Message],
        bodies: list[bytes],
        unique_keys: list[str],
        born_ms: int,
    ) -> Packed:
        """Return the request that :meth:`batch` returns, for messages that have only ``bodies``.

        Raises MessageIllegal for a batch over the limit.
        """
        body = batch_body(bodies, [""] * len(bodies), unique_keys, [])
        return self._packed_batch(messages, body, unique_keys, born_ms)

    def _packed_batch(
        self, messages: Sequence[Message], body: bytes, unique_keys: list[str], born_ms: int
    ) -> Packed:
        first = messages[0]
        if len(body) > self._config.max_message_bytes:
            raise MessageIllegal(
                f"the batch of {len(messages)} messages has {len(body)} bytes; the limit is "
                f"{self._config.max_message_bytes}: send_many splits it"
            )
        return Packed(
            self._namespace.wrap(first.topic),
            RequestCode.SEND_BATCH_MESSAGE,
            body,
            "" if first.wait_store else _NO_WAIT,
            0,
            0,
            first.born_ms or born_ms,
            tuple(messages),
            tuple(unique_keys),
        )

    def batch_text(self, message: Message) -> str:
        """Return the properties of a message in a batch, without its unique key.

        Raises MessageIllegal if they are too long with the key.
        """
        if not (
            message.tag
            or message.keys
            or message.properties
            or message.message_id
            or self._namespace
        ):
            return ""
        key = message.message_id or _LONGEST_KEY
        pairs = self._pairs(message, key)
        del pairs[properties.WAIT], pairs[properties.UNIQ_KEY]
        text = properties.encode_text(pairs)
        check_property_size(
            f"{text}{properties.PROPERTY_SEPARATOR}{properties.UNIQ_KEY}"
            f"{properties.NAME_VALUE_SEPARATOR}{key}"
        )
        return text

    def retry(
        self,
        message: StoredMessage,
        retry_topic: str,
        unique_key: str,
        born_ms: int,
        *,
        reconsume_times: int,
        max_reconsume_times: int,
        delay_level: int,
    ) -> Packed:
        """Return a request that stores a consumed message again, in ``retry_topic``.

        Properties and header are the same as those of the Java client. Raises MessageIllegal.
        """
        pairs = dict(message.properties)
        for name in (properties.DELAY, properties.REAL_TOPIC, properties.REAL_QID):
            pairs.pop(name, None)
        origin = pairs.get(properties.RETRY_TOPIC) or message.topic
        pairs[properties.RETRY_TOPIC] = self._namespace.wrap(origin)
        pairs.setdefault(properties.ORIGIN_MESSAGE_ID, message.message_id)
        pairs.setdefault(properties.UNIQ_KEY, unique_key)
        pairs[properties.DELAY] = str(delay_level)
        body, sys_flag = self._maybe_compress(message.body)
        return Packed(
            retry_topic,
            RequestCode.SEND_MESSAGE_V2,
            body,
            check_property_size(properties.encode_text(pairs)),
            sys_flag,
            message.flag,
            born_ms,
            (Message(retry_topic, message.body, message.tag, message.keys),),
            (pairs[properties.UNIQ_KEY],),
            reconsume_times,
            max_reconsume_times,
        )

    def _pairs(self, message: Message, unique_key: str) -> dict[str, str]:
        pairs = message.to_properties()
        pairs[properties.UNIQ_KEY] = unique_key
        if self._namespace:
            pairs[properties.INSTANCE_ID] = self._namespace.name
        return pairs

    def _maybe_compress(self, body: bytes) -> tuple[bytes, int]:
        if len(body) >= self._config.compress_over_bytes:
            smaller = compress(body, self._config.compress_level)
            if len(smaller) < len(body):
                return smaller, COMPRESSED
        return body, 0


class SendStatus(Enum):
    """Safety with which a message was stored. It is stored with every status."""

    OK = ResponseCode.SUCCESS.value
    FLUSH_DISK_TIMEOUT = ResponseCode.FLUSH_DISK_TIMEOUT.value
    FLUSH_SLAVE_TIMEOUT = ResponseCode.FLUSH_SLAVE_TIMEOUT.value
    SLAVE_NOT_AVAILABLE = ResponseCode.SLAVE_NOT_AVAILABLE.value


_STATUS: Final = {status.value: status for status in SendStatus}


class SendResult(msgspec.Struct, frozen=True, gc=False):
    """Location of a stored message.

    ``message_id`` is the unique key of the message, ``offset_id`` the id that the broker created.
    ``region`` is the broker's region, empty if the broker wants no traces. ``recall_handle`` is for
    Client.recall, set for a message with a delay or delivery time.
    """

    status: SendStatus
    message_id: str
    offset_id: str
    queue: MessageQueue
    queue_offset: int
    transaction_id: str = ""
    region: str = ""
    recall_handle: str = ""


def read_results(
    address: str, packed: Packed, queue: MessageQueue, response: Response
) -> list[SendResult]:
    """Return one result for each message of a request that was sent to ``queue``.

    Raises BrokerRefused if nothing was stored, CometError for a malformed response.
    """
    status = _STATUS.get(response.code)
    if status is None:
        raise BrokerRefused(address, packed.code, response.code, response.remark or "")
    header = _stored_at(response)
    stored = (
        queue
        if header.queue_id == queue.queue_id
        else MessageQueue(queue.topic, queue.broker_name, header.queue_id)
    )
    keys = packed.unique_keys
    ext = response.ext
    region = "" if ext.get("TRACE_ON") == "false" else ext.get("MSG_REGION", "")
    if packed.code != RequestCode.SEND_BATCH_MESSAGE:
        transaction_id = ext.get("transactionId", "")
        handle = ext.get("recallHandle", "")
        at = header.queue_offset
        return [
            SendResult(status, keys[0], header.msg_id, stored, at, transaction_id, region, handle)
        ]
    if scattered := ext.get("queueOffsets"):
        offsets = _numbers(address, scattered, len(keys))
        offset_ids = header.msg_id.split(",")
        if len(offset_ids) != len(keys):
            raise CometError(f"{address}: bad answer to a batch: {len(offset_ids)} ids")
        return [
            SendResult(status, key, offset_id, stored, offset, "", region)
            for key, offset_id, offset in zip(keys, offset_ids, offsets, strict=True)
        ]
    if not -_LAST_OFFSET <= header.queue_offset <= _LAST_OFFSET - len(keys):
        # Checked here because the compiled core counts with 64 bits.
        problem = f"the impossible queue offset {header.queue_offset}"
        raise CometError(f"{address}: bad answer to a batch: {problem}")
    try:
        return batch_results(
            SendResult, status, list(keys), header.msg_id, stored, header.queue_offset, region
        )
    except ValueError as error:
        raise CometError(f"{address}: bad answer to a batch: {error}") from None


def _numbers(address: str, text: str, count: int) -> list[int]:
    found = [int(part) for part in text.split(",") if part.isdecimal()]
    if len(found) != count:
        problem = f"{len(found)} queue offsets for {count} messages"
        raise CometError(f"{address}: bad answer to a batch: {problem}")
    return found


def _stored_at(response: Response) -> SendMessageResponse:
    ext = response.ext
    try:
        # Only the fields that every broker sends, because from_ext takes three times as long.
        return SendMessageResponse(ext["msgId"], int(ext["queueId"]), int(ext["queueOffset"]))
    except (KeyError, ValueError):
        return from_ext(SendMessageResponse, ext)  # raises an error that names the problem
