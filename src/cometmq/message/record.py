"""The message record: one layout on disk, in pull answers and in replication.

    position  bytes   field                 note
    0         4       total size            of the whole record
    4         4       magic                 V1 DAA320A7, V2 DAA320AB, blank CBD43194
    8         4       body CRC              CRC32 & 7FFFFFFF of the stored body
    12        4       queue id
    16        4       flag                  the user's own
    20        8       queue offset          0 for prepared and rollback records
    28        8       physical offset       of this record in the log
    36        4       sysFlag               see flags.py
    40        8       born timestamp        ms
    48        8|20    born host             ip 4|16 + port 4; 20 with BORN_HOST_V6
    ..        8       store timestamp       ms
    ..        8|20    store host            20 with STORE_HOST_V6
    ..        4       reconsume times
    ..        8       prepared offset       of the half message, on commit
    ..        4+n     body
    ..        1+n     topic                 V2: 2+n
    ..        2+n     properties            UTF-8, see properties.py

All integers are big-endian (upstream: MessageDecoder.java, CommitLog.java). V2 is read and never
written, because a 4.9 broker stops its recovery there. A blank is 8 bytes, the room left in the
file and its magic, and says that the log goes on in the next file.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import TypeAlias
from zlib import crc32

import msgspec

from cometmq.core.errors import CometError
from cometmq.message.flags import BORN_HOST_V6, STORE_HOST_V6

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
MAGIC_BLANK = 0xCBD43194
CRC_MASK = 0x7FFFFFFF

BLANK = Struct(">II")
BLANK_BYTES = BLANK.size
PREFIX = Struct(">II")
"""Total size and magic: enough to walk a log."""

HEAD = Struct(">IIIiiqqiq8sq8siqi")
"""Everything before the body of a record with IPv4 hosts."""

_HEAD_BORN_V6 = Struct(">IIIiiqqiq20sq8siqi")
_HEAD_STORE_V6 = Struct(">IIIiiqqiq8sq20siqi")
_HEAD_BOTH_V6 = Struct(">IIIiiqqiq20sq20siqi")
_HEADS = (HEAD, _HEAD_BORN_V6, _HEAD_STORE_V6, _HEAD_BOTH_V6)
_HOST_BITS = BORN_HOST_V6 | STORE_HOST_V6

_PROPERTIES_LENGTH = Struct(">H")
#: Where fields stand that are read without the rest of a record.
MAGIC_POSITION = 4
QUEUE_OFFSET_POSITION = 20
PHYSICAL_OFFSET_POSITION = 28
SYS_FLAG_POSITION = 36
_HOST_BITS_POSITION = SYS_FLAG_POSITION + 3

FIXED_BYTES = HEAD.size + 3
"""Size of a record with IPv4 hosts and empty body, topic and properties."""

MAX_TOPIC_BYTES = 127
MAX_PROPERTIES_BYTES = 32_767

Buffer = bytes | bytearray | memoryview


class BadRecord(CometError):
    """The bytes at ``position`` of a buffer are no record; ``problem`` says why."""

    def __init__(self, position: int, problem: str) -> None:
        self.position = position
        self.problem = problem
        super().__init__(f"record at {position}: {problem}")


class Record(msgspec.Struct, frozen=True, gc=False):
    """One record, field by field; hosts are packed (ip + port), body and properties as stored."""

    size_bytes: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_ms: int
    born_host: bytes
    store_ms: int
    store_host: bytes
    reconsume_times: int
    prepared_offset: int
    body: bytes
    topic: str
    properties: bytes


Fields: TypeAlias = tuple[
    int, int, int, int, int, int, int, int, bytes, int, bytes, int, int, bytes, str, bytes
]


def host_flags(born_host: bytes, store_host: bytes) -> int:
    """The sysFlag bits that say how long the two hosts of a record are."""
    return (BORN_HOST_V6 if len(born_host) == 20 else 0) | (
        STORE_HOST_V6 if len(store_host) == 20 else 0
    )


def head_of(sys_flag: int) -> Struct:
    """The layout of everything before the body, for a record with this sysFlag."""
    return _HEADS[(sys_flag & _HOST_BITS) >> 4]


def topic_tail(topic: str) -> bytes:
    """The topic as it stands behind the body: its length and its bytes.

    Raises ValueError over 127 bytes, which only V2 could hold.
    """
    raw = topic.encode()
    if len(raw) > MAX_TOPIC_BYTES:
        raise ValueError(
            f"topic {topic!r} is {len(raw)} bytes long; the limit is {MAX_TOPIC_BYTES}"
        )
    return bytes((len(raw),)) + raw


def pack(record: Record) -> bytes:
    """The bytes of a record; its size, CRC and host bits are computed, not taken from it."""
    body, properties = record.body, record.properties
    sys_flag = record.sys_flag & ~_HOST_BITS | host_flags(record.born_host, record.store_host)
    head = head_of(sys_flag)
    tail = topic_tail(record.topic)
    packed = head.pack(
        head.size + len(body) + len(tail) + 2 + len(properties),
        MAGIC_V1,
        crc32(body) & CRC_MASK,
        record.queue_id,
        record.flag,
        record.queue_offset,
        record.physical_offset,
        sys_flag,
        record.born_ms,
        record.born_host,
        record.store_ms,
        record.store_host,
        record.reconsume_times,
        record.prepared_offset,
        len(body),
    )
    length = _PROPERTIES_LENGTH.pack(len(properties))
    return b"".join((packed, body, tail, length, properties))


def verify(body: Buffer, body_crc: int) -> bool:
    """Whether a stored body still has the CRC that its record carries (0 means none was taken)."""
    return body_crc == 0 or crc32(body) & CRC_MASK == body_crc


def decode_one(
    buffer: Buffer, position: int = 0, limit: int | None = None, *, check_crc: bool = True
) -> Record:
    """The record at ``position``, which must end at or before ``limit`` (default: the end).

    Lengths inside are checked against each other, so that no byte outside is read. Raises
    BadRecord when the bytes are no whole record, or when ``check_crc`` finds another body.
    """
    end = len(buffer) if limit is None else limit
    return Record(*fields_at(buffer, position, end, check_crc=check_crc))


def fields_at(buffer: Buffer, position: int, end: int, *, check_crc: bool = True) -> Fields:
    """The fields of a Record, in their order; see :func:`decode_one`."""
    if end - position < FIXED_BYTES:
        raise BadRecord(position, f"{end - position} bytes left, a record has at least 91")
    head = _HEADS[(buffer[position + _HOST_BITS_POSITION] & _HOST_BITS) >> 4]
    body_at = position + head.size
    if body_at > end:
        raise BadRecord(position, f"{end - position} bytes left, its hosts alone need more")
    (
        size, magic, body_crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_ms,
        born_host, store_ms, store_host, reconsume_times, prepared_offset, body_bytes,
    ) = head.unpack_from(buffer, position)  # fmt: skip
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        raise BadRecord(position, f"magic is {magic:#010x}")
    stop = position + size
    if size < FIXED_BYTES or stop > end:
        raise BadRecord(position, f"size is {size}, {end - position} bytes are there")
    topic_at = body_at + body_bytes
    if body_bytes < 0 or topic_at + 3 > stop:
        raise BadRecord(position, f"body length is {body_bytes}")
    topic_bytes, name_at = buffer[topic_at], topic_at + 1
    if magic == MAGIC_V2:
        topic_bytes, name_at = topic_bytes << 8 | buffer[name_at], name_at + 1
    length_at = name_at + topic_bytes
    properties_at = length_at + 2
    if properties_at > stop:
        raise BadRecord(position, f"topic length is {topic_bytes}")
    properties_bytes = buffer[length_at] << 8 | buffer[length_at + 1]
    if properties_at + properties_bytes != stop:
        raise BadRecord(position, f"properties length is {properties_bytes}")
    body = bytes(buffer[body_at:topic_at])
    if check_crc and not verify(body, body_crc):
        raise BadRecord(position, f"body CRC differs from the stored {body_crc:#010x}")
    topic = str(buffer[name_at:length_at], "utf-8", "replace")
    return (
        size, body_crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_ms,
        born_host, store_ms, store_host, reconsume_times, prepared_offset, body, topic,
        bytes(buffer[properties_at:stop]),
    )  # fmt: skip


def iter_decode(
    buffer: Buffer, base: int | None = None, *, check_crc: bool = True
) -> Iterator[Record]:
    """Every record of a buffer of whole records, such as the body of a pull answer.

    With ``base``, the physical offset of the buffer's first byte, each record must carry the
    offset at which it stands. Raises BadRecord at the first bytes that are no record.
    """
    # Slices of bytes are what is wanted in the end; those of anything larger are views first.
    buffer = buffer if isinstance(buffer, bytes) else memoryview(buffer)
    position, end = 0, len(buffer)
    while position < end:
        record = decode_one(buffer, position, end, check_crc=check_crc)
        if base is not None and record.physical_offset != base + position:
            raise BadRecord(position, f"it carries physical offset {record.physical_offset}")
        yield record
        position += record.size_bytes
