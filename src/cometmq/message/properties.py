"""Message properties: their text form, and the reserved names.

    name \\x01 value \\x02 name \\x01 value ...       UTF-8, at most 32 767 bytes

A trailing ``\\x02`` is accepted (the C++ and the older Java clients write one) and never written.
The order has no meaning. A pair whose name or value is empty is dropped, and the last of two equal
names wins (upstream: MessageDecoder.string2messageProperties; names: MessageConst.java).

This module reads single texts. Two others must read texts the same way: speedups/plain/match.py,
which finds the properties that a filter needs, and speedups/plain/columns.py, which makes columns
of many texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

NAME_VALUE_SEPARATOR = "\x01"
PROPERTY_SEPARATOR = "\x02"
MAX_SIZE_BYTES = 32_767
#: Value of DELAY (a delay level) for the first retry of a message, 10 s by default, unless the
#: consumer chooses another. Each further retry has the next level.
FIRST_RETRY_LEVEL = 3

KEYS = "KEYS"
TAGS = "TAGS"
UNIQ_KEY = "UNIQ_KEY"
WAIT = "WAIT"
DELAY = "DELAY"
REAL_TOPIC = "REAL_TOPIC"
REAL_QID = "REAL_QID"
RETRY_TOPIC = "RETRY_TOPIC"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
RECONSUME_TIME = "RECONSUME_TIME"
MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
PRODUCER_GROUP = "PGROUP"
TRAN_MSG = "TRAN_MSG"
TRAN_PREPARED_QUEUE_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
TRANSACTION_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
CHECK_IMMUNITY_TIME_IN_SECONDS = "CHECK_IMMUNITY_TIME_IN_SECONDS"
TRANSACTION_ID = "__transactionId__"
INSTANCE_ID = "INSTANCE_ID"
CORRELATION_ID = "CORRELATION_ID"
REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
TTL = "TTL"
ARRIVE_TIME = "ARRIVE_TIME"
PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
MSG_TYPE = "MSG_TYPE"
CLUSTER = "CLUSTER"
MSG_REGION = "MSG_REGION"
TRACE_ON = "TRACE_ON"
MIN_OFFSET = "MIN_OFFSET"
MAX_OFFSET = "MAX_OFFSET"
CONSUME_START_TIME = "CONSUME_START_TIME"
SHARDING_KEY = "__SHARDINGKEY"
BUYER_ID = "BUYER_ID"
TRANSFER_FLAG = "TRANSFER_FLAG"
CORRECTION_FLAG = "CORRECTION_FLAG"
MQ2_FLAG = "MQ2_FLAG"
INNER_MULTI_DISPATCH = "INNER_MULTI_DISPATCH"
INNER_MULTI_QUEUE_OFFSET = "INNER_MULTI_QUEUE_OFFSET"
TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
TIMER_DELAY_MS = "TIMER_DELAY_MS"
TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
TIMER_OUT_MS = "TIMER_OUT_MS"
TIMER_ROLL_TIMES = "TIMER_ROLL_TIMES"
TIMER_DEL_UNIQKEY = "TIMER_DEL_UNIQKEY"
TIMER_DEQUEUE_MS = "TIMER_DEQUEUE_MS"
DLQ_ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"

ORIGIN_TOPICS = (REAL_TOPIC, RETRY_TOPIC, DLQ_ORIGIN_TOPIC)
"""Properties with the topic that a message was first sent to, if it is stored in another one."""

RESERVED = frozenset(
    value
    for name, value in list(globals().items())
    if name.isupper() and isinstance(value, str) and not name.endswith("_SEPARATOR")
)
"""Names that users may not set through the general properties of a message."""


def encode_text(properties: Mapping[str, str]) -> str:
    """Return the property text, as a send request's header holds it."""
    return "\x02".join([f"{name}\x01{value}" for name, value in properties.items()])


def encode(properties: Mapping[str, str]) -> bytes:
    """Return the property text in UTF-8, as a record holds it."""
    return encode_text(properties).encode("utf-8", "replace")


def decode_text(text: str) -> dict[str, str]:
    """Return the pairs of a property text; pairs without a name or a value are left out."""
    found: dict[str, str] = {}
    for segment in text.split("\x02"):
        name, _, value = segment.partition("\x01")
        if name and value:
            found[name] = value
    return found


def decode(raw: bytes | memoryview) -> dict[str, str]:
    """Return the pairs of a record's property bytes; broken UTF-8 becomes U+FFFD, as in Java."""
    return decode_text(str(raw, "utf-8", "replace"))


def marker(name: bytes) -> bytes:
    """Return the bytes before the value of ``name``, except at the start of a text."""
    return b"\x02" + name + b"\x01"


def find(raw: bytes, name: bytes) -> bytes | None:
    """Return the value of ``name`` without decoding the others; None if there is none."""
    mark = marker(name)
    # The last of equal names wins, so search from the end.
    at = raw.rfind(mark)
    while at >= 0:
        start = at + len(mark)
        end = raw.find(b"\x02", start)
        value = raw[start:] if end < 0 else raw[start:end]
        if value:
            return value
        at = raw.rfind(mark, 0, at + len(mark) - 1)
    # A pair at the start of the text has no separator before it.
    if raw.startswith(mark[1:]):
        return raw[len(mark) - 1 :].partition(b"\x02")[0] or None
    return None


def iter_pairs(raw: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield (name, start of the value, end of the value) for each pair with a name and a value."""
    position = 0
    for segment in raw.split(b"\x02"):
        name, _, value = segment.partition(b"\x01")
        position += len(segment)
        if name and value:
            yield name, position - len(value), position
        position += 1


def without(text: str, *names: str) -> str:
    """Return a property text without the pairs of these names."""
    marks = tuple([name + NAME_VALUE_SEPARATOR for name in names])
    return "\x02".join([pair for pair in text.split("\x02") if not pair.startswith(marks)])


def joined(own: bytes, more: bytes) -> bytes:
    """Return ``own`` followed by ``more``, with one separator if neither is empty."""
    if own and more and not own.endswith(b"\x02"):
        return own + b"\x02" + more
    return own + more


def split_keys(text: str) -> tuple[str, ...]:
    """Return the index keys in the value of ``KEYS``, where blanks separate them."""
    return tuple([key for key in text.split(" ") if key]) if text else ()


def index_keys(properties: Mapping[str, str]) -> tuple[str, ...]:
    """Return the index keys of a message: its unique key, if any, then those of ``KEYS``."""
    keys = split_keys(properties.get(KEYS, ""))
    unique = properties.get(UNIQ_KEY)
    return (unique, *keys) if unique else keys
