"""Public value types of clients: messages to send, stored and received messages, queues."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from cometmq.message import properties as props
from cometmq.message.compression import decompress
from cometmq.message.ids import encode_offset_id, unpack_host
from cometmq.message.record import COMPRESSED, iter_spans
from cometmq.speedups import cut_records

if TYPE_CHECKING:
    from cometmq.message.record import Record
    from cometmq.speedups import Records


class MessageQueue(msgspec.Struct, frozen=True, order=True, gc=False):
    """One queue of a topic under one broker name, ordered as in Java: topic, broker name, id."""

    topic: str
    broker_name: str
    queue_id: int


class Message(msgspec.Struct, frozen=True, gc=False):
    """Message to send. ``properties`` are the user's own.

    At most one of ``delay_level``, ``delay_ms`` (after the broker received the message) and
    ``deliver_at_ms`` (since the epoch) is set. If all are 0, the message is delivered at once.

    ``message_id`` is the unique key by which brokers and consumers know the message. If it is
    empty, the client creates one. Set it for a message that another process may send again.

    ``born_ms`` is the time of the event that the message describes (since the epoch); 0 means the
    time of sending.
    """

    topic: str
    body: bytes
    tag: str = ""
    keys: tuple[str, ...] = ()
    flag: int = 0
    delay_level: int = 0
    wait_store: bool = True
    properties: Mapping[str, str] = {}
    message_id: str = ""
    delay_ms: int = 0
    deliver_at_ms: int = 0
    born_ms: int = 0

    @property
    def is_delayed(self) -> bool:
        """True if the message is not delivered at once."""
        return bool(self.delay_level or self.delay_ms or self.deliver_at_ms)

    def to_properties(self) -> dict[str, str]:
        """Return all properties as sent on the wire, with reserved ones but no unique key."""
        found = dict(self.properties)
        if self.tag:
            found[props.TAGS] = self.tag
        if self.keys:
            found[props.KEYS] = " ".join(self.keys)
        if self.delay_level:
            found[props.DELAY] = str(self.delay_level)
        if self.delay_ms:
            found[props.TIMER_DELAY_MS] = str(self.delay_ms)
        if self.deliver_at_ms:
            found[props.TIMER_DELIVER_MS] = str(self.deliver_at_ms)
        found[props.WAIT] = "true" if self.wait_store else "false"
        return found


class StoredMessage(msgspec.Struct, frozen=True, gc=False):
    """Message stored by a broker, as consumers see it: body decompressed, properties decoded."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    body: bytes
    properties: dict[str, str]
    flag: int
    sys_flag: int
    born_ms: int
    born_host: bytes
    store_ms: int
    store_host: bytes
    reconsume_times: int
    prepared_offset: int
    size_bytes: int
    broker_name: str = ""

    @property
    def tag(self) -> str:
        """Tag, or an empty text."""
        return self.properties.get(props.TAGS, "")

    @property
    def keys(self) -> tuple[str, ...]:
        """Index keys that the sender set."""
        return props.split_keys(self.properties.get(props.KEYS, ""))

    @property
    def unique_key(self) -> str:
        """Unique key set by the producer, or an empty text."""
        return self.properties.get(props.UNIQ_KEY, "")

    @property
    def offset_id(self) -> str:
        """Id created by the broker."""
        return encode_offset_id(self.store_host, self.physical_offset)

    @property
    def message_id(self) -> str:
        """Id shown to users: the unique key if there is one, otherwise the offset id."""
        return self.unique_key or self.offset_id

    @property
    def delay_level(self) -> int:
        """Requested delay level; 0 when there is none."""
        text = self.properties.get(props.DELAY, "")
        return int(text[:9]) if text.isascii() and text.isdigit() else 0

    @property
    def born_address(self) -> str:
        """``host:port`` of the sender."""
        return _address(self.born_host)

    @property
    def store_address(self) -> str:
        """``host:port`` of the broker that stored the message."""
        return _address(self.store_host)

    @property
    def queue(self) -> MessageQueue:
        """Queue that the message was read from."""
        return MessageQueue(self.topic, self.broker_name, self.queue_id)


class MessageView:
    """Read-only content of a received message, as application code sees it."""

    __slots__ = ("stored",)

    def __init__(self, stored: StoredMessage) -> None:
        #: The message as the broker stored it.
        self.stored = stored

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.message_id} of {self.topic!r} tag {self.tag!r}>"

    @property
    def topic(self) -> str:
        """Topic that the message was first sent to, also if it was read from a retry topic."""
        return self.stored.properties.get(props.RETRY_TOPIC) or self.stored.topic

    @property
    def body(self) -> bytes:
        """Body as the producer sent it, decompressed."""
        return self.stored.body

    @property
    def tag(self) -> str:
        """Tag, or an empty text."""
        return self.stored.tag

    @property
    def keys(self) -> tuple[str, ...]:
        """Index keys that the sender set."""
        return self.stored.keys

    @property
    def properties(self) -> Mapping[str, str]:
        """All properties, reserved ones included."""
        return self.stored.properties

    @property
    def message_id(self) -> str:
        """Unique key set by the producer, the same in every retry; the offset id without one."""
        return self.stored.message_id

    @property
    def queue(self) -> MessageQueue:
        """Queue that the message was read from."""
        return self.stored.queue

    @property
    def queue_offset(self) -> int:
        """Offset in that queue."""
        return self.stored.queue_offset

    @property
    def reconsume_times(self) -> int:
        """Number of earlier deliveries that the consumer returned for a retry."""
        return self.stored.reconsume_times

    @property
    def born_ms(self) -> int:
        """Time of sending, or another time that the sender set; milliseconds since the epoch."""
        return self.stored.born_ms

    @property
    def store_ms(self) -> int:
        """Time of storing, by the broker's clock, in milliseconds since the epoch."""
        return self.stored.store_ms


def from_record(record: Record, broker_name: str = "") -> StoredMessage:
    """Return the consumer's view of a record.

    Raises BadRecord when its body cannot be decompressed.
    """
    return StoredMessage(
        record.topic,
        record.queue_id,
        record.queue_offset,
        record.physical_offset,
        decompress(record.body, record.sys_flag),
        props.decode(record.properties),
        record.flag,
        record.sys_flag,
        record.born_ms,
        record.born_host,
        record.store_ms,
        record.store_host,
        record.reconsume_times,
        record.prepared_offset,
        record.size_bytes,
        broker_name,
    )


class MessageList(list[StoredMessage]):
    """List of decoded messages with the methods of Records (speedups), which decodes on access."""

    def offset_at(self, at: int) -> int:
        """Return the queue offset of the message at an index."""
        return self[at].queue_offset

    def bytes_of(self, begin: int, end: int) -> int:
        """Return the total size of the messages from index ``begin`` to before ``end``."""
        return sum(message.size_bytes for message in self[begin:end])


def read_messages(buffer: bytes, broker_name: str = "") -> Records[StoredMessage] | MessageList:
    """Return the consumer's view of every record in a buffer, such as the body of a pull response.

    The buffer must hold whole records. All are checked at once. If all are uncompressed V1 records,
    messages are decoded when they are first accessed. Raises BadRecord at the first bytes that are
    not a record, and for a body that cannot be decompressed.
    """
    plain = cut_records(buffer, StoredMessage, broker_name) if type(buffer) is bytes else None
    if plain is not None:
        return plain
    found = MessageList()
    for at, head, body_at, body_end, topic_at, topic_end in iter_spans(buffer):
        (
            size, _, _, queue_id, flag, queue_offset, physical_offset, sys_flag, born_ms, born_host,
            store_ms, store_host, reconsume_times, prepared_offset, _,
        ) = head  # fmt: skip
        body = buffer[body_at:body_end]
        if sys_flag & COMPRESSED:
            body = decompress(body, sys_flag)
        found.append(
            StoredMessage(
                str(buffer[topic_at:topic_end], "utf-8", "replace"), queue_id, queue_offset,
                physical_offset, body, props.decode(buffer[topic_end + 2 : at + size]), flag,
                sys_flag, born_ms, born_host, store_ms, store_host, reconsume_times,
                prepared_offset, size, broker_name,
            )
        )  # fmt: skip
    return found


def stored_messages(buffer: bytes, broker_name: str = "") -> list[StoredMessage]:
    """Return the messages as :func:`read_messages` does, all decoded."""
    return list(read_messages(buffer, broker_name))


def _address(packed: bytes) -> str:
    host, port = unpack_host(packed)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
