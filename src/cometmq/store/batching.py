"""Turning the body of a batch send into records, all in one file and with consecutive offsets.

The properties of the batch follow those of each message, so for a name that stands in both the
batch's value counts (upstream: CommitLog.MessageExtBatchEncoder). Batches of equally built messages
take the way through ``uniform.py``.
"""

from __future__ import annotations

from itertools import repeat
from struct import Struct
from struct import error as StructError
from typing import TYPE_CHECKING, NamedTuple, Protocol
from zlib import crc32

from cometmq.core.errors import MessageIllegal
from cometmq.filter.tags import tag_code
from cometmq.message import properties as props
from cometmq.message.batch import split
from cometmq.message.flags import TRANSACTION_MASK
from cometmq.message.record import (
    CRC_MASK,
    MAGIC_V1,
    MAX_PROPERTIES_BYTES,
    BadRecord,
    head_of,
    host_flags,
)
from cometmq.store.vectors import VECTORS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cometmq.store.consumequeue import ConsumeQueue
    from cometmq.store.dispatch import Dispatched

UNIFORM_ROWS = 8
"""Messages from which on a batch of equally built ones may go the way of ``uniform.py``."""

_LENGTH = Struct(">H")
_UNIQUE, _KEYS, _TAGS = (name.encode() for name in (props.UNIQ_KEY, props.KEYS, props.TAGS))
_UNIQUE_MARK, _KEYS_MARK, _TAGS_MARK = (name + b"\x01" for name in (_UNIQUE, _KEYS, _TAGS))


class Shared(NamedTuple):
    """What the messages of a batch have in common; hosts packed, times in ms."""

    sys_flag: int
    born_ms: int
    born_host: bytes
    store_host: bytes
    reconsume_times: int
    properties: bytes


class Batch(Protocol):
    """A checked batch, ready to be packed."""

    @property
    def sizes(self) -> list[int]:
        """The size of each record."""
        ...

    @property
    def codes(self) -> list[int]:
        """The tag code of each."""
        ...

    @property
    def keys(self) -> list[tuple[str, ...]]:
        """The index keys of each."""
        ...

    def pack(
        self, queue: ConsumeQueue, shared: Shared, phys: int, now_ms: int
    ) -> list[bytes | memoryview]:
        """The records' bytes, from physical offset ``phys`` on. Raises MessageIllegal."""
        ...


class GeneralBatch(NamedTuple):
    """A checked batch, column by column; ``properties`` are joined with the batch's own."""

    flags: list[int]
    bodies: list[bytes]
    properties: list[bytes]
    sizes: list[int]
    codes: list[int]
    keys: list[tuple[str, ...]]

    def pack(
        self, queue: ConsumeQueue, shared: Shared, phys: int, now_ms: int
    ) -> list[bytes | memoryview]:
        """See :class:`Batch`."""
        sys_flag = flags_of(shared)
        _, born_ms, born_host, store_host, reconsume_times, _ = shared
        pack, length = head_of(sys_flag).pack, _LENGTH.pack
        tail, queue_id, offset = queue.topic_tail, queue.queue_id, queue.next_offset
        parts: list[bytes | memoryview] = []
        try:
            for flag, body, properties, size in zip(*self[:4], strict=True):
                parts += (
                    pack(
                        size, MAGIC_V1, crc32(body) & CRC_MASK, queue_id, flag, offset, phys,
                        sys_flag, born_ms, born_host, now_ms, store_host, reconsume_times, 0,
                        len(body),
                    ),
                    body, tail, length(len(properties)), properties,
                )  # fmt: skip
                phys += size
                offset += 1
        except StructError as error:
            raise MessageIllegal(f"a number does not fit its field: {error}") from None
        return parts


def prepare(body: bytes, queue: ConsumeQueue, shared: Shared) -> Batch:
    """Take a batch body apart. Raises MessageIllegal for what cannot be stored."""
    size = int.from_bytes(body[:4], "big")
    # In this order: a batch that cannot be uniform is no reason to load numpy.
    if size and not len(body) % size and len(body) >= UNIFORM_ROWS * size and VECTORS.ready():
        from cometmq.store.uniform import recognise

        found = recognise(body, queue, shared)
        if found is not None:
            return found
    return prepare_general(body, queue, shared)


def prepare_general(body: bytes, queue: ConsumeQueue, shared: Shared) -> GeneralBatch:
    """:func:`prepare` for messages of any shape."""
    try:
        entries = split(body)
    except BadRecord as error:
        raise MessageIllegal(f"batch body: {error}") from None
    if not entries:
        raise MessageIllegal("the batch holds no message")
    flags, bodies, properties = map(list, zip(*entries, strict=True))
    if shared.properties:
        properties = [props.joined(own, shared.properties) for own in properties]
    longest = max(map(len, properties))
    if longest > MAX_PROPERTIES_BYTES:
        raise MessageIllegal(
            f"properties of a message with those of its batch are {longest} bytes long, the limit "
            f"is {MAX_PROPERTIES_BYTES}"
        )
    fixed = head_of(flags_of(shared)).size + len(queue.topic_tail) + 2
    sizes = [
        fixed + len(own_body) + len(own) for own_body, own in zip(bodies, properties, strict=True)
    ]
    known: dict[bytes, int] = {}
    found = [looked_up(own, known) for own in properties]
    keys, codes = [names for names, _ in found], [code for _, code in found]
    return GeneralBatch(flags, bodies, properties, sizes, codes, keys)


def flags_of(shared: Shared) -> int:
    """The sysFlag of every record of the batch. Raises MessageIllegal for a transaction's."""
    if shared.sys_flag & TRANSACTION_MASK:
        raise MessageIllegal("a batch cannot be part of a transaction")
    return shared.sys_flag & ~0x30 | host_flags(shared.born_host, shared.store_host)


def rows_of(
    queue: ConsumeQueue, places: list[int], batch: Batch, now_ms: int
) -> Iterator[Dispatched]:
    """The rows to dispatch; ``places`` are the records' physical offsets."""
    first, sizes, codes = queue.next_offset, batch.sizes, batch.codes
    if queue.delay_ms:
        codes = [now_ms + queue.delay_ms] * len(sizes)
    offsets = range(first, first + len(sizes))
    return zip(
        repeat(queue), offsets, places, sizes, codes, repeat(now_ms), batch.keys, strict=False
    )


def looked_up(properties: bytes, known: dict[bytes, int]) -> tuple[tuple[str, ...], int]:
    """The index keys and the tag code in encoded properties, without decoding the rest.

    ``known`` remembers codes of tags from one message to the next.
    """
    unique = _value(properties, _UNIQUE, _UNIQUE_MARK)
    names = (str(unique, "utf-8", "replace"),) if unique else ()
    if _KEYS_MARK in properties:
        keys = _value(properties, _KEYS, _KEYS_MARK)
        names = (*names, *props.split_keys(str(keys, "utf-8", "replace")))
    tag = _value(properties, _TAGS, _TAGS_MARK)
    if not tag:
        return names, 0
    code = known.get(tag)
    if code is None:
        code = known[tag] = tag_code(str(tag, "utf-8", "replace"))
    return names, code


def _value(properties: bytes, name: bytes, mark: bytes) -> bytes:
    at = properties.rfind(mark)
    if at < 0:
        return b""
    if at == 0 or properties[at - 1] == 2:
        start = at + len(mark)
        stop = properties.find(b"\x02", start)
        value = properties[start:] if stop < 0 else properties[start:stop]
        if value:
            return value
    # Rare: the name ends another one, or its last value is empty.
    return props.find(properties, name) or b""
