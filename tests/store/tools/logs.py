"""Pieces of a log for tests: packed records, one behind the other."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from cometmq.message import properties as props
from cometmq.message.record import MAGIC_V2, Record, pack

PLAIN = Record(
    size_bytes=0,
    body_crc=0,
    queue_id=3,
    flag=0,
    queue_offset=5,
    physical_offset=0,
    sys_flag=0,
    born_ms=1,
    born_host=b"\x0a\0\0\x09\0\0\x10\xe1",
    store_ms=1_700_000_000_000,
    store_host=b"\x0a\0\0\x01\0\0\x2a\x9f",
    reconsume_times=0,
    prepared_offset=0,
    body=b"body",
    topic="t",
    properties=props.encode({props.UNIQ_KEY: "k1", props.TAGS: "a"}),
)


def packed(records: Iterable[Record], base: int = 0) -> bytes:
    """The records' bytes, each with the physical offset at which it stands."""
    parts: list[bytes] = []
    position = base
    for record in records:
        parts.append(pack(replace(record, physical_offset=position)))
        position += len(parts[-1])
    return b"".join(parts)


def as_v2(raw: bytes) -> bytes:
    """One packed record in the layout of version 2, whose topic length takes two bytes."""
    record = bytearray(raw)
    body_at = 84 + (12 if raw[39] & 0x10 else 0) + (12 if raw[39] & 0x20 else 0)
    topic_at = body_at + 4 + int.from_bytes(raw[body_at : body_at + 4], "big")
    record[topic_at:topic_at] = b"\0"
    record[0:4] = len(record).to_bytes(4, "big")
    record[4:8] = MAGIC_V2.to_bytes(4, "big")
    return bytes(record)
