"""Batch sends: a body with several messages of one topic, and the fields that their records share.

    bytes   field
    4       size of this entry
    4       magic         0, ignored
    4       body CRC      0, ignored
    4       flag
    4+n     body
    2+n     properties    of this message; those of the whole batch are in the request's header

(upstream: MessageDecoder.encodeMessage, CommitLog.MessageExtBatchEncoder)

``append_batch`` in speedups/plain/batches.py stores the messages as records of one log file, with
consecutive offsets. In each record the properties of the batch follow those of the message, so the
batch's value counts for a name that both define.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from cometmq.core.errors import MessageIllegal
from cometmq.message.record import (
    MAX_PROPERTIES_BYTES,
    TRANSACTION_MASK,
    BadRecord,
    head_of,
    host_flags,
)

_ENTRY = Struct(">iiiii")
_ENTRY_READ = Struct(">i8xii")
_LENGTH = Struct(">H")
ENTRY_BYTES = _ENTRY.size
"""Size of the fields before a body."""
_FIXED_BYTES = ENTRY_BYTES + _LENGTH.size
#: Fields of a record's head up to and including its physical offset.
_FRONT = Struct(">IIIiiqq")
_LENGTH_BYTES = 4


class BatchEntry(NamedTuple):
    """One message of a batch."""

    flag: int
    body: bytes
    properties: bytes


def pack(entries: Iterable[tuple[int, bytes, bytes]]) -> bytes:
    """Return the batch body of (flag, body, properties) triples.

    Raises ValueError when properties are longer than 32 767 bytes.
    """
    parts: list[bytes] = []
    for flag, body, properties in entries:
        if len(properties) > MAX_PROPERTIES_BYTES:
            raise ValueError(f"properties have {len(properties)} bytes; the limit is 32767")
        size = _FIXED_BYTES + len(body) + len(properties)
        parts += (
            _ENTRY.pack(size, 0, 0, flag, len(body)),
            body,
            _LENGTH.pack(len(properties)),
            properties,
        )
    return b"".join(parts)


def walk(raw: bytes) -> list[tuple[int, int, int, int]]:
    """Return the positions of the messages in a batch body.

    Each is (flag, start of the body, end of the body, end of the entry); the properties start two
    bytes after the end of the body. Raises BadRecord if lengths are inconsistent.
    """
    found: list[tuple[int, int, int, int]] = []
    read, position, end = _ENTRY_READ.unpack_from, 0, len(raw)
    while position < end:
        if end - position < _FIXED_BYTES:
            raise BadRecord(position, f"{end - position} bytes left, an entry has at least 22")
        size, flag, body_bytes = read(raw, position)
        stop, body_at = position + size, position + ENTRY_BYTES
        body_end = body_at + body_bytes
        if body_bytes < 0 or stop > end or body_end + 2 > stop:
            raise BadRecord(
                position, f"entry size {size}, body {body_bytes}, {end - position} left"
            )
        if body_end + 2 + (raw[body_end] << 8 | raw[body_end + 1]) != stop:
            raise BadRecord(position, f"entry size {size} is not the sum of its parts")
        found.append((flag, body_at, body_end, stop))
        position = stop
    return found


def has_more_than(raw: bytes, count: int) -> bool:
    """Return whether a batch body may hold more than ``count`` messages.

    Follows the sizes of at most ``count`` entries, and returns True for an inconsistent size.
    """
    position, end = 0, len(raw)
    while end - position > count * _FIXED_BYTES:
        size = int.from_bytes(raw[position : position + 4], "big")
        if size < _FIXED_BYTES or not count:
            return True
        position += size
        count -= 1
    return False


def split(raw: bytes) -> list[BatchEntry]:
    """Return the messages of a batch body. Raises BadRecord if lengths are inconsistent."""
    return [
        BatchEntry(flag, raw[body_at:body_end], raw[body_end + 2 : stop])
        for flag, body_at, body_end, stop in walk(raw)
    ]


class SharedFields(NamedTuple):
    """Values that the records of a batch share; hosts are packed, times are in milliseconds."""

    sys_flag: int
    born_ms: int
    born_host: bytes
    store_host: bytes
    reconsume_times: int
    properties: bytes

    def middle(self, store_ms: int) -> bytes:
        """Return the bytes of a record between its physical offset and the length of its body.

        These bytes are the same for every record of the batch. Raises MessageIllegal for a
        transaction, and for a number that does not fit its field.
        """
        sys_flag, born_ms, born_host, store_host, reconsume_times, _ = self
        if sys_flag & TRANSACTION_MASK:
            raise MessageIllegal("a batch cannot be part of a transaction")
        sys_flag = sys_flag & ~0x30 | host_flags(born_host, store_host)
        try:
            head = head_of(sys_flag).pack(
                0, 0, 0, 0, 0, 0, 0, sys_flag, born_ms, born_host, store_ms, store_host,
                reconsume_times, 0, 0,
            )  # fmt: skip
        except StructError as error:
            raise MessageIllegal(f"a number does not fit its field: {error}") from None
        return head[_FRONT.size : -_LENGTH_BYTES]
