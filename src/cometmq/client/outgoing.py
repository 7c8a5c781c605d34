"""From messages to the request that sends them: limits, properties, compression, batches.

Pure, so that large messages can be packed in a thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from cometmq.client.routes import AUTO_CREATE_TOPIC
from cometmq.core.errors import MessageIllegal
from cometmq.message import batch, properties
from cometmq.message.compression import compress
from cometmq.message.flags import COMPRESSED
from cometmq.message.model import Message
from cometmq.message.record import MAX_TOPIC_BYTES
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers import SendMessageV2

if TYPE_CHECKING:
    from cometmq.client.config import ClientConfig
    from cometmq.message.model import MessageQueue, StoredMessage

#: Larger bodies are compressed in a thread: this much takes about a millisecond.
INLINE_COMPRESS_BYTES: Final = 64 * 1024

_TOPIC: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
_ENTRY_BYTES: Final = 22


@dataclass(frozen=True, slots=True)
class Packed:
    """A request body and what its header says, whatever queue it will go to.

    ``reconsume_times`` and ``max_reconsume_times`` go with messages that a consumer gives back
    through its retry topic.
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
        """The request's header for one queue."""
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


@lru_cache(maxsize=4096)
def check_topic(topic: str) -> None:
    """Raises MessageIllegal for a name that no broker takes."""
    if not topic:
        raise MessageIllegal("the topic is empty: name one")
    if len(topic) > MAX_TOPIC_BYTES:
        raise MessageIllegal(
            f"topic {topic!r} has {len(topic)} characters; the limit is {MAX_TOPIC_BYTES}"
        )
    if not _TOPIC.fullmatch(topic):
        raise MessageIllegal(
            f"topic {topic!r} may only hold letters without accents, digits and the signs %|_-"
        )


def check_message(message: Message, max_message_bytes: int) -> None:
    """Raises MessageIllegal, saying which limit the message breaks."""
    check_topic(message.topic)
    if len(message.body) > max_message_bytes:
        raise MessageIllegal(
            f"the body has {len(message.body)} bytes; the limit is {max_message_bytes} "
            "(max_message_bytes of the client, maxMessageSize of the broker)"
        )
    if message.delay_level < 0:
        raise MessageIllegal(f"delay level {message.delay_level} is negative; 0 means at once")
    for key in message.keys:
        if not key or any(map(str.isspace, key)):
            raise MessageIllegal(f"key {key!r} is empty or holds a blank, which parts keys")
    for name, value in message.properties.items():
        _check_property(name, value)
    if message.tag:
        _check_property("tag", message.tag)


def _check_property(name: str, value: str) -> None:
    if name in properties.RESERVED:
        raise MessageIllegal(f"property name {name!r} is reserved: choose another")
    if not name or not value:
        raise MessageIllegal(f"property {name!r} = {value!r}: neither may be empty")
    if any(sign in name or sign in value for sign in "\x01\x02"):
        raise MessageIllegal(f"property {name!r} holds a control character that parts properties")


def _property_text(pairs: dict[str, str]) -> str:
    text = properties.encode_text(pairs)
    # A character is at most four bytes, so short texts need not be encoded to be measured.
    if len(text) * 4 > properties.MAX_SIZE_BYTES:
        size = len(text.encode("utf-8", "replace"))
        if size > properties.MAX_SIZE_BYTES:
            raise MessageIllegal(
                f"the properties have {size} bytes; the limit is {properties.MAX_SIZE_BYTES}"
            )
    return text


def pack_single(message: Message, unique_key: str, config: ClientConfig, born_ms: int) -> Packed:
    """A request for one message. Raises MessageIllegal."""
    check_message(message, config.max_message_bytes)
    pairs = message.to_properties()
    pairs[properties.UNIQ_KEY] = unique_key
    body, sys_flag = _maybe_compress(message.body, config)
    return Packed(
        message.topic,
        RequestCode.SEND_MESSAGE_V2,
        body,
        _property_text(pairs),
        sys_flag,
        message.flag,
        born_ms,
        (message,),
        (unique_key,),
    )


def pack_retry(
    message: StoredMessage,
    retry_topic: str,
    unique_key: str,
    config: ClientConfig,
    born_ms: int,
    *,
    reconsume_times: int,
    max_reconsume_times: int,
    delay_level: int,
) -> Packed:
    """A request that stores a consumed message again, in ``retry_topic``: what it keeps and what
    its header says is what the Java client sends there. Raises MessageIllegal."""
    pairs = dict(message.properties)
    for name in (properties.DELAY, properties.REAL_TOPIC, properties.REAL_QID):
        pairs.pop(name, None)
    pairs.setdefault(properties.RETRY_TOPIC, message.topic)
    pairs.setdefault(properties.ORIGIN_MESSAGE_ID, message.message_id)
    pairs.setdefault(properties.UNIQ_KEY, unique_key)
    pairs[properties.DELAY] = str(delay_level)
    body, sys_flag = _maybe_compress(message.body, config)
    return Packed(
        retry_topic,
        RequestCode.SEND_MESSAGE_V2,
        body,
        _property_text(pairs),
        sys_flag,
        message.flag,
        born_ms,
        (Message(retry_topic, message.body, message.tag, message.keys),),
        (pairs[properties.UNIQ_KEY],),
        reconsume_times,
        max_reconsume_times,
    )


def _maybe_compress(body: bytes, config: ClientConfig) -> tuple[bytes, int]:
    if len(body) >= config.compress_over_bytes:
        smaller = compress(body, config.compress_level)
        if len(smaller) < len(body):
            return smaller, COMPRESSED
    return body, 0


def pack_batch(
    messages: Sequence[Message], unique_keys: Sequence[str], config: ClientConfig, born_ms: int
) -> Packed:
    """A request for several messages of one topic and one ``wait_store``, without delay.

    Raises MessageIllegal.
    """
    entries: list[tuple[int, bytes, bytes]] = []
    for message, key in zip(messages, unique_keys, strict=True):
        check_message(message, config.max_message_bytes)
        pairs = message.to_properties()
        pairs[properties.UNIQ_KEY] = key
        del pairs[properties.WAIT]
        entries.append((message.flag, message.body, _property_text(pairs).encode()))
    first = messages[0]
    shared = {} if first.wait_store else {properties.WAIT: "false"}
    return Packed(
        first.topic,
        RequestCode.SEND_BATCH_MESSAGE,
        batch.pack(entries),
        properties.encode_text(shared),
        0,
        0,
        born_ms,
        tuple(messages),
        tuple(unique_keys),
    )


def plan_batches(
    messages: Sequence[Message],
    order_key: Callable[[Message], str | None],
    max_batch_bytes: int,
) -> list[tuple[list[int], str | None]]:
    """Which messages may leave together: positions in ``messages``, and their order key.

    One topic, one ``wait_store`` and one order key a batch, at most ``max_batch_bytes`` each; a
    message with a delay goes alone. Messages of one topic and key keep their order.
    """
    plan: list[tuple[list[int], str | None]] = []
    open_batches: dict[tuple[str, str | None, bool], tuple[list[int], int]] = {}
    for at, message in enumerate(messages):
        key = order_key(message)
        group = (message.topic, key, message.wait_store)
        size = _estimate_bytes(message)
        positions, filled = open_batches.get(group, ([], 0))
        if message.delay_level or not positions or filled + size > max_batch_bytes:
            positions, filled = [], 0
            plan.append((positions, key))
        positions.append(at)
        if message.delay_level:
            open_batches.pop(group, None)
        else:
            open_batches[group] = (positions, filled + size)
    return plan


def _estimate_bytes(message: Message) -> int:
    """Upper bound of an entry's size, without encoding its properties."""
    pairs = message.properties.items()
    text = sum(len(name) + len(value) + 2 for name, value in pairs)
    text += len(message.tag) + sum(len(key) + 1 for key in message.keys) + 100
    return _ENTRY_BYTES + len(message.body) + 4 * text
