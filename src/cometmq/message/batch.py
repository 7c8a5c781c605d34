"""The body of a batch send: messages of one topic, one behind the other.

    bytes   field
    4       size of this entry
    4       magic         0, not looked at
    4       body CRC      0, not looked at
    4       flag
    4+n     body
    2+n     properties    the message's own; those of the whole batch stand in the request's header

(upstream: MessageDecoder.encodeMessage, MessageExtBatch encoder in CommitLog.java)
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

from cometmq.message.record import MAX_PROPERTIES_BYTES, BadRecord

_ENTRY = Struct(">iiiii")
_LENGTH = Struct(">H")
_FIXED_BYTES = _ENTRY.size + _LENGTH.size


class BatchEntry(NamedTuple):
    """One message of a batch."""

    flag: int
    body: bytes
    properties: bytes


def pack(entries: Iterable[tuple[int, bytes, bytes]]) -> bytes:
    """The batch body of (flag, body, properties) triples.

    Raises ValueError when properties are longer than 32 767 bytes.
    """
    parts: list[bytes] = []
    for flag, body, properties in entries:
        if len(properties) > MAX_PROPERTIES_BYTES:
            raise ValueError(f"properties are {len(properties)} bytes long, the limit is 32767")
        size = _FIXED_BYTES + len(body) + len(properties)
        parts += (
            _ENTRY.pack(size, 0, 0, flag, len(body)),
            body,
            _LENGTH.pack(len(properties)),
            properties,
        )
    return b"".join(parts)


def split(raw: bytes) -> list[BatchEntry]:
    """The messages of a batch body. Raises BadRecord where lengths contradict each other."""
    entries: list[BatchEntry] = []
    position, end = 0, len(raw)
    read_entry, read_length = _ENTRY.unpack_from, _LENGTH.unpack_from
    make = BatchEntry
    while position < end:
        if end - position < _FIXED_BYTES:
            raise BadRecord(position, f"{end - position} bytes left, an entry has at least 22")
        size, _, _, flag, body_bytes = read_entry(raw, position)
        stop = position + size
        length_at = position + 20 + body_bytes
        if body_bytes < 0 or stop > end or length_at + 2 > stop:
            raise BadRecord(
                position, f"entry size {size}, body {body_bytes}, {end - position} left"
            )
        if length_at + 2 + read_length(raw, length_at)[0] != stop:
            raise BadRecord(position, f"entry size {size} is not the sum of its parts")
        entries.append(make(flag, raw[position + 20 : length_at], raw[length_at + 2 : stop]))
        position = stop
    return entries
