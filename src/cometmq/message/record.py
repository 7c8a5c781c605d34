"""Message record: one layout on disk, in pull responses and in replication.

    position  bytes   field                 note
    0         4       total size            of the whole record
    4         4       magic                 V1 DAA320A7, V2 DAA320AB, blank CBD43194
    8         4       body CRC              CRC32 & 7FFFFFFF of the stored body
    12        4       queue id
    16        4       flag                  the user's own
    20        8       queue offset          0 for prepared and rollback records
    28        8       physical offset       of this record in the log
    36        4       sysFlag               see below
    40        8       born timestamp        ms
    48        8|20    born host             ip 4|16 + port 4; 20 with BORN_HOST_V6
    ..        8       store timestamp       ms
    ..        8|20    store host            20 with STORE_HOST_V6
    ..        4       reconsume times
    ..        8       prepared offset       of the half message, on commit
    ..        4+n     body
    ..        1+n     topic                 V2: 2+n
    ..        2+n     properties            UTF-8, see properties.py

sysFlag has these bits (upstream: MessageSysFlag.java):

    0x0001 body is compressed            0x0010 bornHost is IPv6 (16 + 4 bytes)
    0x0002 several tags                  0x0020 storeHost is IPv6 (16 + 4 bytes)
    0x000C transaction type              0x0040 batch queue entry to unwrap (5.x)
    0x0700 compression type              0x0080 inner batch (5.x)

All integers are big-endian (upstream: MessageDecoder.java, CommitLog.java). V2 is read and never
written, because the recovery of a 4.9 broker stops at a V2 record. A blank has 8 bytes, the space
left in the file and its magic, and means that the log continues in the next file.

This module declares the layout. Code that reads only some fields of a head uses :func:`head_part`
or one of the positions. The compiled core repeats the layout in ``speedups/compiled/records.pxd``,
and its Python version in ``speedups/plain``; tests compare both with this module.

:func:`iter_spans` walks and checks consecutive records. :func:`iter_sizes` only follows their
sizes. ``walk`` in ``speedups`` is for many records at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from struct import Struct, calcsize
from typing import Final, TypeAlias
from zlib import crc32

import msgspec

from cometmq.core.errors import CometError

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
MAGIC_BLANK = 0xCBD43194
CRC_MASK = 0x7FFFFFFF
MAGIC_START: Final = MAGIC_V1.to_bytes(4, "big")[:3]
"""Common prefix of the magic numbers of both versions."""

COMPRESSED = 0x1
MULTI_TAGS = 0x2
TRANSACTION_MASK = 0xC
BORN_HOST_V6 = 0x10
STORE_HOST_V6 = 0x20
NEED_UNWRAP = 0x40
INNER_BATCH = 0x80
COMPRESSION_MASK = 0x700
_COMPRESSION_SHIFT = 8

BLANK = Struct(">II")
BLANK_BYTES = BLANK.size
PREFIX = Struct(">II")
"""Total size and magic: enough to walk a log."""

HEAD_FIELDS: Final = (
    ("size_bytes", "I"),
    ("magic", "I"),
    ("body_crc", "I"),
    ("queue_id", "i"),
    ("flag", "i"),
    ("queue_offset", "q"),
    ("physical_offset", "q"),
    ("sys_flag", "i"),
    ("born_ms", "q"),
    ("born_host", "8s"),
    ("store_ms", "q"),
    ("store_host", "8s"),
    ("reconsume_times", "i"),
    ("prepared_offset", "q"),
    ("body_bytes", "i"),
)
"""Names and ``struct`` formats of the fields before the body, with IPv4 hosts."""

_KINDS: Final = dict(HEAD_FIELDS)
_COLUMN_KINDS: Final = {"I": ">u4", "i": ">i4", "q": ">i8", "8s": ">i8"}
HEAD_COLUMNS: Final = [(name, _COLUMN_KINDS[kind]) for name, kind in HEAD_FIELDS]
"""HEAD_FIELDS for ``numpy.dtype``."""

#: Positions of the fields before the body, with IPv4 hosts. Fields after a host move by
#: LONGER_HOST_BYTES for each IPv6 host before them.
POSITIONS: Final = {
    name: calcsize(">" + "".join([*_KINDS.values()][:number])) for number, name in enumerate(_KINDS)
}
MAGIC_POSITION: Final = POSITIONS["magic"]
QUEUE_OFFSET_POSITION: Final = POSITIONS["queue_offset"]
PHYSICAL_OFFSET_POSITION: Final = POSITIONS["physical_offset"]
SYS_FLAG_POSITION: Final = POSITIONS["sys_flag"]
HOST_BITS_POSITION: Final = SYS_FLAG_POSITION + 3
"""Position of the last byte of sysFlag, which has HOST_BITS."""
BORN_HOST_POSITION: Final = POSITIONS["born_host"]
STORE_MS_POSITION: Final = POSITIONS["store_ms"]

HOST_BYTES: Final = 8
LONGER_HOST_BYTES: Final = 12
"""Additional bytes of an IPv6 host, compared with an IPv4 one."""
HOST_BITS: Final = BORN_HOST_V6 | STORE_HOST_V6


def _head(*longer: str) -> Struct:
    return Struct(">" + "".join("20s" if name in longer else kind for name, kind in HEAD_FIELDS))


HEAD = _head()
"""Layout of all fields before the body, with IPv4 hosts."""
_HEADS = (HEAD, _head("born_host"), _head("store_host"), _head("born_host", "store_host"))

_PROPERTIES_LENGTH = Struct(">H")
#: The body length is directly before the body, at the end of the head.
_BODY_LENGTH = Struct(">i")
_STORE_MS = Struct(">q")
STORE_MS_BYTES: Final = STORE_MS_POSITION + LONGER_HOST_BYTES + _STORE_MS.size
"""Length of the start of a record that contains its store time, also with an IPv6 born host."""

FIXED_BYTES = HEAD.size + 3
"""Size of a record with IPv4 hosts and empty body, topic and properties."""

MAX_TOPIC_BYTES = 127
MAX_PROPERTIES_BYTES = 32_767

#: Largest size of topic and properties with their lengths, in a record of either magic.
_TAIL_BYTES_MAX = 2 + 0xFFFF + 2 + MAX_PROPERTIES_BYTES

Buffer = bytes | bytearray | memoryview


def head_part(*names: str) -> Struct:
    """Return the layout from the start of a record to the last of these fields.

    ``names`` are in the order of HEAD_FIELDS; other fields are skipped. Hosts must be IPv4.
    """
    parts: list[str] = []
    at = 0
    for name in names:
        parts.append(f"{POSITIONS[name] - at}x{_KINDS[name]}")
        at = POSITIONS[name] + calcsize(">" + _KINDS[name])
    return Struct(">" + "".join(parts))


class BadRecord(CometError):
    """The bytes at ``position`` of a buffer are not a record; ``problem`` is the reason."""

    def __init__(self, position: int, problem: str) -> None:
        self.position = position
        self.problem = problem
        super().__init__(f"record at {position}: {problem}")


class TransactionType(IntEnum):
    """Role of a record in a transaction: the two bits of ``TRANSACTION_MASK``."""

    NONE = 0x0
    PREPARED = 0x4
    COMMIT = 0x8
    ROLLBACK = 0xC


class Compression(IntEnum):
    """Compression of a body with the COMPRESSED bit. Releases before 5.x have only zlib."""

    ZLIB = 0
    LZ4 = 1
    ZSTD = 2


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


Head: TypeAlias = tuple[
    int, int, int, int, int, int, int, int, int, bytes, int, bytes, int, int, int
]
"""Values of HEAD_FIELDS."""

Span: TypeAlias = tuple[int, Head, int, int, int, int]
"""Position of a record, its head, start and end of its body, start and end of its topic. The
properties begin two bytes after the topic and end with the record."""


def transaction_type(sys_flag: int) -> TransactionType:
    """Return the transaction type in ``sys_flag``."""
    return TransactionType(sys_flag & TRANSACTION_MASK)


def with_transaction_type(sys_flag: int, kind: TransactionType) -> int:
    """Return ``sys_flag`` with its transaction type replaced by ``kind``."""
    return sys_flag & ~TRANSACTION_MASK | kind


def takes_queue_slot(sys_flag: int) -> bool:
    """Return whether a record has an entry in a queue; prepared and rollback ones have none."""
    return not sys_flag & 0x4


def compression(sys_flag: int) -> Compression:
    """Return the compression type in ``sys_flag``. Both 0 and 3 are zlib; upstream writes 3.

    Raises ValueError for an unknown type.
    """
    value = (sys_flag & COMPRESSION_MASK) >> _COMPRESSION_SHIFT
    return Compression.ZLIB if value == 3 else Compression(value)


def host_flags(born_host: bytes, store_host: bytes) -> int:
    """Return the sysFlag bits for the lengths of a record's two hosts."""
    return (BORN_HOST_V6 if len(born_host) == 20 else 0) | (
        STORE_HOST_V6 if len(store_host) == 20 else 0
    )


def head_of(sys_flag: int) -> Struct:
    """Return the layout of all fields before the body, for a record with this sysFlag."""
    return _HEADS[(sys_flag & HOST_BITS) >> 4]


def store_ms_of(head: Buffer) -> int:
    """Return the store time of a record from its first bytes, at least STORE_MS_BYTES."""
    longer = LONGER_HOST_BYTES if head[HOST_BITS_POSITION] & BORN_HOST_V6 else 0
    found: int = _STORE_MS.unpack_from(head, STORE_MS_POSITION + longer)[0]
    return found


def claimed_size(buffer: Buffer, at: int = 0) -> int:
    """Return the size in the head of the record at ``at``; the rest of the record may be missing.

    Returns 0 if the head is incomplete or inconsistent.
    """
    if len(buffer) - at < FIXED_BYTES:
        return 0
    size, magic = PREFIX.unpack_from(buffer, at)
    head_bytes = head_of(buffer[at + HOST_BITS_POSITION]).size
    if magic not in (MAGIC_V1, MAGIC_V2) or len(buffer) - at < head_bytes:
        return 0
    (body_bytes,) = _BODY_LENGTH.unpack_from(buffer, at + head_bytes - _BODY_LENGTH.size)
    is_right = body_bytes >= 0 and 3 <= size - head_bytes - body_bytes <= _TAIL_BYTES_MAX
    return int(size) if is_right else 0


def properties_of(view: memoryview, at: int, size: int) -> memoryview:
    """Return the property bytes of the record at ``at``, which has ``size`` bytes. No checks."""
    body_at = at + head_of(view[at + HOST_BITS_POSITION]).size
    topic_at = body_at + _BODY_LENGTH.unpack_from(view, body_at - _BODY_LENGTH.size)[0]
    if PREFIX.unpack_from(view, at)[1] == MAGIC_V2:
        length_at = topic_at + 2 + (view[topic_at] << 8 | view[topic_at + 1])
    else:
        length_at = topic_at + 1 + view[topic_at]
    return view[length_at + 2 : at + size]


def topic_tail(topic: str) -> bytes:
    """Return the topic as it is stored after the body: its length and its bytes.

    Raises ValueError if it is longer than 127 bytes, the limit of V1.
    """
    raw = topic.encode()
    if len(raw) > MAX_TOPIC_BYTES:
        raise ValueError(
            f"topic {topic!r} is {len(raw)} bytes long; the limit is {MAX_TOPIC_BYTES}"
        )
    return bytes((len(raw),)) + raw


def pack(record: Record) -> bytes:
    """Return the bytes of a record. Size, CRC and host bits are computed, not taken from it."""
    body, properties = record.body, record.properties
    sys_flag = record.sys_flag & ~HOST_BITS | host_flags(record.born_host, record.store_host)
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
    """Return whether a stored body matches the CRC in its record; 0 means that there is no CRC."""
    return body_crc == 0 or crc32(body) & CRC_MASK == body_crc


def iter_sizes(
    buffer: Buffer, position: int = 0, end: int | None = None
) -> Iterator[tuple[int, int]]:
    """Yield position and size of the records from ``position`` on, without checking them.

    Stops at the first record that does not end at or before ``end`` (default: the buffer's end).
    """
    end = len(buffer) if end is None else end
    unpack = PREFIX.unpack_from
    while position + FIXED_BYTES <= end:
        size = unpack(buffer, position)[0]
        if size < FIXED_BYTES or position + size > end:
            return
        yield position, size
        position += size


def iter_spans(
    buffer: Buffer,
    position: int = 0,
    end: int | None = None,
    *,
    base: int | None = None,
    check_crc: bool = True,
) -> Iterator[Span]:
    """Yield the consecutive records from ``position`` to ``end`` (default: the buffer's end).

    Lengths are checked against each other, so that no byte outside of a record is read. With
    ``check_crc`` each body is compared with its CRC. ``base`` is the physical offset of the
    buffer's first byte; with it, each record's physical offset must match its position. Raises
    BadRecord at the first bytes that are not a whole and valid record.
    """
    end = len(buffer) if end is None else end
    view = memoryview(buffer)
    # Even the shortest record needs FIXED_BYTES, so none can begin after ``last``.
    unpack, head_bytes, last = HEAD.unpack_from, HEAD.size, end - FIXED_BYTES
    while position < end:
        if position > last:
            raise bad_record(buffer, position, end)
        head: Head = unpack(buffer, position)
        body_at = position + head_bytes
        if head[7] & HOST_BITS:
            head, body_at = _longer_head(buffer, position, end)
        stop, body_end = position + head[0], body_at + head[14]
        if body_end < body_at or body_end + 3 > stop or stop > end:
            raise bad_record(buffer, position, end)
        topic_at = body_end + 1
        topic_end = topic_at + buffer[body_end]
        if head[1] != MAGIC_V1:
            if head[1] != MAGIC_V2:
                raise bad_record(buffer, position, end)
            topic_at += 1
            topic_end = topic_at + (buffer[body_end] << 8 | buffer[body_end + 1])
        if (
            topic_end + 2 > stop
            or topic_end + 2 + (buffer[topic_end] << 8 | buffer[topic_end + 1]) != stop
        ):
            raise bad_record(buffer, position, end)
        if check_crc and (crc := head[2]) and crc32(view[body_at:body_end]) & CRC_MASK != crc:
            raise BadRecord(position, f"body CRC differs from the stored {crc:#010x}")
        if base is not None and head[6] != base + position:
            raise BadRecord(position, f"its physical offset field is {head[6]}")
        yield position, head, body_at, body_end, topic_at, topic_end
        position = stop


def _longer_head(buffer: Buffer, position: int, end: int) -> tuple[Head, int]:
    """Return the head of a record with IPv6 hosts, and the position of its body."""
    layout = head_of(buffer[position + HOST_BITS_POSITION])
    if position + layout.size > end:
        raise bad_record(buffer, position, end)
    return layout.unpack_from(buffer, position), position + layout.size


def bad_record(buffer: Buffer, position: int, end: int) -> BadRecord:
    """Return the error that says why no valid record is at ``position``, before ``end``."""
    left = end - position
    if left < FIXED_BYTES:
        return BadRecord(position, f"{left} bytes left; a record has at least {FIXED_BYTES}")
    layout = head_of(buffer[position + HOST_BITS_POSITION])
    if layout.size > left:
        return BadRecord(position, f"{left} bytes left; its hosts alone need more")
    size, magic, *_, body_bytes = layout.unpack_from(buffer, position)
    if magic not in (MAGIC_V1, MAGIC_V2):
        return BadRecord(position, f"magic is {magic:#010x}")
    if not FIXED_BYTES <= size <= left:
        return BadRecord(position, f"size is {size}; {left} bytes left")
    topic_at = layout.size + body_bytes
    if body_bytes < 0 or topic_at + 3 > size:
        return BadRecord(position, f"body length is {body_bytes}")
    length_bytes = 2 if magic == MAGIC_V2 else 1
    length_at = position + topic_at
    topic_bytes = int.from_bytes(buffer[length_at : length_at + length_bytes], "big")
    properties_at = topic_at + length_bytes + topic_bytes + 2
    if properties_at > size:
        return BadRecord(position, f"topic length is {topic_bytes}")
    length_at = position + properties_at - 2
    properties_bytes = int.from_bytes(buffer[length_at : length_at + 2], "big")
    return BadRecord(position, f"properties length is {properties_bytes}")


def record_of(buffer: bytes | memoryview, span: Span) -> Record:
    """Return the record of a span that :func:`iter_spans` yielded for this buffer."""
    at, head, body_at, body_end, topic_at, topic_end = span
    (
        size, _, body_crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_ms,
        born_host, store_ms, store_host, reconsume_times, prepared_offset, _,
    ) = head  # fmt: skip
    return Record(
        size, body_crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_ms,
        born_host, store_ms, store_host, reconsume_times, prepared_offset,
        bytes(buffer[body_at:body_end]), str(buffer[topic_at:topic_end], "utf-8", "replace"),
        bytes(buffer[topic_end + 2 : at + size]),
    )  # fmt: skip


def decode_one(
    buffer: Buffer, position: int = 0, limit: int | None = None, *, check_crc: bool = True
) -> Record:
    """Return the record at ``position``, which must end at or before ``limit`` (default: the end).

    Raises BadRecord when the bytes are not a whole record, or when ``check_crc`` finds a wrong CRC.
    """
    buffer = buffer if isinstance(buffer, bytes) else memoryview(buffer)
    span = next(iter_spans(buffer, position, limit, check_crc=check_crc), None)
    if span is None:
        raise bad_record(buffer, position, position)
    return record_of(buffer, span)


def iter_decode(
    buffer: Buffer, base: int | None = None, *, check_crc: bool = True
) -> Iterator[Record]:
    """Yield every record in a buffer of whole records, such as the body of a pull response.

    ``base`` has the same meaning as in :func:`iter_spans`, and BadRecord is raised as there.
    """
    buffer = buffer if isinstance(buffer, bytes) else memoryview(buffer)
    for span in iter_spans(buffer, base=base, check_crc=check_crc):
        yield record_of(buffer, span)
