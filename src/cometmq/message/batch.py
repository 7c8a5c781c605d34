"""Body of a batch send: a sequence of messages of one topic.

    bytes   field
    4       size of this entry
    4       magic         0, ignored
    4       body CRC      0, ignored
    4       flag
    4+n     body
    2+n     properties    of this message; those of the whole batch are in the request's header

(upstream: MessageDecoder.encodeMessage, MessageExtBatch encoder in CommitLog.java)
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

from cometmq.message.record import MAX_PROPERTIES_BYTES, BadRecord

_ENTRY = Struct(">iiiii")
_ENTRY_READ = Struct(">i8xii")
_LENGTH = Struct(">H")
ENTRY_BYTES = _ENTRY.size
"""Size of the fields before a body."""
_FIXED_BYTES = ENTRY_BYTES + _LENGTH.size


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
    """Return whether a batch body may hold more than ``count`` messages; read at most that many."""
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
