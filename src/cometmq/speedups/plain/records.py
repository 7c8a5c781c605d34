"""Positions and checks of stored records (message/record.py), and the queue entries that name them
(store/layout.py).

This is the definition; compiled/records.pxd does the same. The contents are not trusted: no value
in them makes the code read outside the given bytes.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple, TypeAlias
from zlib import crc32

#: Size, magic, CRC, queue id, flag, queue offset, physical offset, sysFlag, born time, born host,
#: store time, store host, attempts, the half message's offset, the body's length.
HEAD: Final = Struct(">IIIIIqqIq8sq8sIqI")
ENTRY: Final = Struct(">qiq")
MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB
#: Minimum size of the blank record that ends a log file.
BLANK_BYTES: Final = 8
COMPRESSED: Final = 0x1
PREPARED: Final = 0x4
TRANSACTION_MASK: Final = 0xC
BORN_V6: Final = 0x10
STORE_V6: Final = 0x20
#: Bytes by which an IPv6 host is longer than an IPv4 host.
V6_MORE_BYTES: Final = 12
#: One check whether bytes are in memory covers a span of records: with gaps of at most
#: ``GAP_BYTES`` between them, and of at most ``SPAN_BYTES`` in total.
GAP_BYTES: Final = 16 << 10
SPAN_BYTES: Final = 512 << 10

_CRC_MASK: Final = 0x7FFFFFFF
#: Size in an entry that fills a hole in its queue and names no record.
_HOLE_SIZE: Final = 0x7FFFFFFF
#: Size, magic, queue id, queue offset, physical offset, sysFlag.
_BEGIN: Final = Struct(">iI4xi4xqqi")
_BODY_BYTES: Final = Struct(">i")
#: Size of a record with empty body, topic and properties.
_FIXED_BYTES: Final = 91

Buffer: TypeAlias = bytes | bytearray | memoryview
#: Queue offset, physical offset and size of a record, from its queue entry.
Taken: TypeAlias = tuple[int, int, int]


class Parts(NamedTuple):
    """Positions of the parts of a record. The properties start two bytes after the topic."""

    body: int
    body_end: int
    topic: int
    topic_end: int


def stored_crc(body: Buffer) -> int:
    """Return the checksum of a body in the form that its record stores."""
    return crc32(body) & _CRC_MASK


def find_parts(data: Buffer, at: int, stop: int) -> Parts | None:
    """Return the parts of the record between two positions; None if it is invalid.

    Magic number and lengths are checked, up to the length of the properties.
    """
    if stop - at < _FIXED_BYTES:
        return None
    _, magic, *_, flag = _BEGIN.unpack_from(data, at)
    body = at + HEAD.size + V6_MORE_BYTES * (bool(flag & BORN_V6) + bool(flag & STORE_V6))
    if magic not in (MAGIC_V1, MAGIC_V2) or body > stop:
        return None
    (body_bytes,) = _BODY_BYTES.unpack_from(data, body - _BODY_BYTES.size)
    body_end = body + body_bytes
    if body_bytes < 0 or body_end + 3 > stop:
        return None
    topic = body_end + (1 if magic == MAGIC_V1 else 2)
    topic_end = topic + int.from_bytes(data[body_end:topic], "big")
    return Parts(body, body_end, topic, topic_end) if topic_end + 2 <= stop else None


def find_whole(data: Buffer, at: int, stop: int) -> tuple[Parts, int] | None:
    """Return the parts and the end of the record at a position.

    Returns None if the record is invalid, does not end with its properties, or ends after ``stop``.
    """
    if stop - at < _FIXED_BYTES:
        return None
    end = at + int.from_bytes(data[at : at + 4], "big")
    parts = find_parts(data, at, end) if end <= stop else None
    if parts is None:
        return None
    properties = parts.topic_end + 2
    size = int.from_bytes(data[parts.topic_end : properties], "big")
    return (parts, end) if properties + size == end else None


def is_record(data: Buffer, at: int, entry: Taken, queue_id: int, topic_tail: bytes) -> bool:
    """Return whether the record at ``data[at]`` is the one that a queue entry names.

    ``topic_tail`` is the byte string that follows the body in records of that queue.
    """
    offset, place, size = entry
    if not 0 <= at <= len(data) - max(size, HEAD.size):
        return False
    found, _, found_id, found_offset, physical, _ = _BEGIN.unpack_from(data, at)
    if (found, found_id, found_offset, physical) != (size, queue_id, offset, place):
        return False
    parts = find_parts(data, at, at + size)
    return parts is not None and data[parts.topic : parts.topic_end] == topic_tail[1:]


def is_inside(place: int, size: int, low: int, high: int) -> bool:
    """Return whether an entry names a record that lies between two physical offsets."""
    return 0 < size < _HOLE_SIZE and low <= place <= high - size
