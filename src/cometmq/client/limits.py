"""Checks of names, sizes, properties and batches before a send or subscription; and the split of
messages into as few batches as the limits allow. No I/O.

Every error states which limit is broken and which values are valid (upstream: Validators.java,
MessageBatch.java).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NoReturn

from cometmq.client.arguments import (
    check_keys,
    check_number,
    check_properties,
    check_text,
    checked_body,
)
from cometmq.core.errors import MessageIllegal
from cometmq.filter import tags
from cometmq.message import names, properties

if TYPE_CHECKING:
    from cometmq.message.model import Message

#: Times on the wire have 63 bits.
_LATEST_MS: Final = (1 << 63) - 1
#: Flags on the wire have 32 bits.
_FLAG_BITS: Final = 32
_SEPARATORS: Final = re.compile(
    f"[{properties.NAME_VALUE_SEPARATOR}{properties.PROPERTY_SEPARATOR}]"
)
_LEGAL: Final = "ASCII letters, digits and the characters %|_-"


@lru_cache(maxsize=4096)
def check_topic(topic: str) -> None:
    """Raise MessageIllegal for a topic name that brokers reject."""
    _check_name("topic", topic, names.MAX_NAME_CHARACTERS)


def check_group(group: str) -> None:
    """Raise MessageIllegal for a consumer group that clients may not join, or whose retry topic
    brokers reject.
    """
    _check_name("group", group, names.MAX_GROUP_CHARACTERS)
    _check_default("group", group, names.DEFAULT_CONSUMER_GROUP)


def check_producer_group(group: str) -> None:
    """Raise MessageIllegal for a producer group name that brokers reject."""
    _check_name("producer group", group, names.MAX_PRODUCER_GROUP_CHARACTERS)
    _check_default("producer group", group, names.DEFAULT_PRODUCER_GROUP)


def _check_name(kind: str, name: str, limit: int) -> None:
    check_text(kind, name)
    if not name:
        raise MessageIllegal(f"the {kind} is empty")
    if len(name) > limit:
        raise MessageIllegal(
            f"{kind} {name!r} has {len(name)} characters; the limit is {limit}"
            + (", its namespace included" if "%" in name else "")
        )
    if not names.has_legal_characters(name):
        raise MessageIllegal(f"{kind} {name!r} may only contain {_LEGAL}")


def _check_default(kind: str, group: str, default: str) -> None:
    """Refuse the default group, which all programs that set none would share (upstream: checkConfig
    of DefaultMQPushConsumerImpl.java, DefaultMQProducerImpl.java).
    """
    if group == default:
        raise MessageIllegal(
            f"the {kind} cannot be {default}, which programs that name no group would share: "
            "choose another"
        )


@lru_cache(maxsize=4096)
def check_target(topic: str) -> None:
    """Raise MessageIllegal for a topic that clients may not send to."""
    check_topic(topic)
    if topic in names.FORBIDDEN_TO_SEND:
        raise MessageIllegal(f"topic {topic!r} is reserved for brokers: clients cannot send to it")


def check_message(message: Message, max_message_bytes: int) -> None:
    """Raise MessageIllegal if a message breaks a limit. The topic is not checked."""
    _check_body(message.body, max_message_bytes)
    if message.is_delayed:
        _check_delay(message)
    if message.born_ms:
        _check_birth(message.born_ms)
    if message.flag:
        _check_flag(message.flag)
    if message.keys:
        _check_keys(message.keys)
    if message.properties:
        _check_properties(message.properties)
    if message.message_id:
        _check_id(message.message_id)
    if message.tag:
        _check_tag(message.tag)


def _check_body(body: bytes, max_message_bytes: int) -> None:
    if type(body) is not bytes:
        checked_body(body)
    if len(body) > max_message_bytes:
        raise MessageIllegal(
            f"the body has {len(body)} bytes; the limit is {max_message_bytes} "
            "(max_message_bytes of the client, maxMessageSize of the broker)"
        )


def _check_keys(keys: Sequence[str]) -> None:
    if type(keys) is not tuple:
        check_keys(keys)
    for key in keys:
        if type(key) is not str:
            check_keys(keys)
        if key.split() != [key]:
            raise MessageIllegal(f"key {key!r} is empty or contains a blank, which separates keys")
        _check_signs("key", key)


def _check_properties(own: Mapping[str, str]) -> None:
    if type(own) is not dict:
        check_properties(own)
    for name, value in own.items():
        if type(name) is not str or type(value) is not str:
            check_properties({name: value})
        _check_property(name, value)


def _check_id(message_id: str) -> None:
    check_text("message_id", message_id)
    _check_property("message_id", message_id)
    if message_id.split() != [message_id]:
        raise MessageIllegal(f"message id {message_id!r} contains a blank")


def _check_flag(flag: int) -> None:
    check_number("flag", flag)
    if not -(1 << _FLAG_BITS - 1) <= flag < 1 << _FLAG_BITS - 1:
        raise MessageIllegal(f"the flag {flag} is no integer of {_FLAG_BITS} bits")


def _check_birth(born_ms: int) -> None:
    check_number("born_ms", born_ms)
    if not 0 <= born_ms <= _LATEST_MS:
        raise MessageIllegal(
            f"the born time of {born_ms} ms is negative or too large; 0 means the time of the send"
        )


def _check_delay(message: Message) -> None:
    for name in ("delay_level", "delay_ms", "deliver_at_ms"):
        check_number(name, getattr(message, name))
    if message.delay_level < 0:
        raise MessageIllegal(f"delay level {message.delay_level} is negative; 0 means at once")
    for what, value in (("delay", message.delay_ms), ("delivery time", message.deliver_at_ms)):
        if value < 0:
            raise MessageIllegal(f"the {what} of {value} ms is negative; 0 means at once")
    given = (message.delay_level, message.delay_ms, message.deliver_at_ms)
    if sum(map(bool, given)) > 1:
        raise MessageIllegal(
            "a message may have only one of delay level, delay and delivery time, not "
            f"{given[0]}, {given[1]} ms and {given[2]}"
        )


def _check_tag(tag: str) -> None:
    if type(tag) is not str:
        check_text("tag", tag)
    _check_property("tag", tag)
    problem = tags.problem_of(tag)
    if problem:
        raise MessageIllegal(
            f"the tag {tag!r} {problem}, so no consumer could subscribe to it: use one word"
        )


def _check_property(name: str, value: str) -> None:
    if name in properties.RESERVED:
        raise MessageIllegal(f"property name {name!r} is reserved: choose another")
    if not name or not value:
        raise MessageIllegal(f"property {name!r} = {value!r}: neither may be empty")
    _check_signs("property", name)
    if _SEPARATORS.search(value):
        _refuse_signs("property", name)


def _check_signs(kind: str, text: str) -> None:
    """Refuse control characters that would end a property and begin another one."""
    if _SEPARATORS.search(text):
        _refuse_signs(kind, text)


def _refuse_signs(kind: str, name: str) -> NoReturn:
    raise MessageIllegal(f"{kind} {name!r} contains a control character that separates properties")


def check_property_size(text: str) -> str:
    """Return the property text. Raise MessageIllegal if it is too long or cannot be encoded."""
    # A character has at most four bytes, so the size of a short text need not be computed.
    if not text.isascii():
        _check_encodable(text)
    if len(text) * 4 > properties.MAX_SIZE_BYTES:
        size = len(text.encode("utf-8", "replace"))
        if size > properties.MAX_SIZE_BYTES:
            raise MessageIllegal(
                f"the properties have {size} bytes; the limit is {properties.MAX_SIZE_BYTES}"
            )
    return text


def _check_encodable(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        pair = text[text.rfind("\x02", 0, error.start) + 1 :].split("\x02", 1)[0]
        raise MessageIllegal(
            f"property {pair.replace(chr(1), '=', 1)!r} contains half of a surrogate pair, which "
            "UTF-8 cannot encode"
        ) from None


def goes_alone(message: Message) -> bool:
    """Return whether a message cannot be part of a batch: it is delayed, or for a retry topic."""
    # Not ``is_delayed``: a property is slower than three attributes.
    if message.delay_level or message.delay_ms or message.deliver_at_ms:
        return True
    return message.topic.startswith(names.RETRY_PREFIX)


def check_batch(messages: Sequence[Message]) -> None:
    """Raise MessageIllegal, with the reason, if messages cannot form one batch."""
    first = messages[0]
    for message in messages:
        if message.topic != first.topic:
            problem = f"topics {first.topic!r} and {message.topic!r}"
        elif message.wait_store != first.wait_store:
            problem = "messages with wait_store and messages without it"
        elif message.born_ms != first.born_ms:
            problem = "messages with different born times: a batch has one"
        elif goes_alone(message):
            what = "a delayed message" if message.is_delayed else "a message for a retry topic"
            problem = f"{what}, which must be sent alone"
        else:
            continue
        raise MessageIllegal(
            f"a batch cannot contain {problem}: use send_many, which makes suitable batches"
        )


#: Upper bound, in bytes, of the length fields of a batch entry and the properties that every
#: message gets.
_OVERHEAD_BYTES: Final = 22 + 128


def plain_batch_count(bodies: Sequence[bytes], max_batch_bytes: int) -> int:
    """Return how many messages with these bodies, and no properties, fit into one batch."""
    return max(1, max_batch_bytes // (_OVERHEAD_BYTES + max(map(len, bodies))))


def plan_batches(
    messages: Sequence[Message],
    order_key: Callable[[Message], str | None] | None,
    max_batch_bytes: int,
) -> list[tuple[list[int], str | None]]:
    """Group messages into batches; return their positions in ``messages`` with their order key.

    The messages of one batch have the same topic, ``wait_store``, birth time and order key, and the
    batch has at most ``max_batch_bytes``. A message that cannot be part of a batch is sent alone.
    Messages of one topic and key keep their order.
    """
    plan: list[tuple[list[int], str | None]] = []
    open_batches: dict[tuple[str, str | None], tuple[list[int], int]] = {}
    for at, message in enumerate(messages):
        key = None if order_key is None else order_key(message)
        group = (message.topic, key)
        size = _OVERHEAD_BYTES + len(message.body)
        if message.tag or message.keys or message.properties or message.message_id:
            size += _text_bytes_of(message)
        alone = goes_alone(message)
        found = open_batches.get(group)
        if found is not None:
            positions, filled = found
            size += filled
        if (
            found is None
            or alone
            or size > max_batch_bytes
            or not _alike(messages[positions[0]], message)
        ):
            size -= 0 if found is None else filled
            positions = []
            plan.append((positions, key))
        positions.append(at)
        # A message that is sent alone closes the open batch of its group, so that later messages do
        # not overtake it.
        if alone:
            open_batches.pop(group, None)
        else:
            open_batches[group] = (positions, size)
    return plan


def _alike(first: Message, message: Message) -> bool:
    """Return whether two messages agree in the fields that a batch has only once."""
    return first.wait_store == message.wait_store and first.born_ms == message.born_ms


def _text_bytes_of(message: Message) -> int:
    """Return an upper bound, in bytes, of the size of a message's properties."""
    size = _text_bytes(message.tag) + _text_bytes(message.message_id)
    for key in message.keys:
        size += _text_bytes(key) + 1
    for name, value in message.properties.items():
        size += _text_bytes(name) + _text_bytes(value) + 2
    return size


def _text_bytes(text: str) -> int:
    return len(text) if text.isascii() else 4 * len(text)
