"""The messages of a pull: all records of its body at once.

This is the definition; compiled/messages.pyx does the same. Records are plain when all of this
holds of each of them:

- they stand one behind the other and fill the body, their lengths fit each other, and their magic
  number is that of version 1;
- a body has the CRC that its record carries, unless that is 0, and is not compressed.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final, TypeVar
from zlib import crc32

M = TypeVar("M")

_MAGIC: Final = 0xDAA320A7
_CRC_MASK: Final = 0x7FFFFFFF
_COMPRESSED: Final = 0x1
_BORN_HOST_V6: Final = 0x10
_STORE_HOST_V6: Final = 0x20
_HOST_BYTES: Final = 8, 20
#: Size, magic, CRC, queue id, flag, queue offset, physical offset, sysFlag, born time.
_HEAD: Final = Struct(">IIIiiqqiq")
_LONG: Final = Struct(">q")
#: Attempts, the half message's offset, the body's length.
_BEFORE_BODY: Final = Struct(">iqi")
_LENGTH: Final = Struct(">H")
#: Of a record with short hosts and nothing in it.
_LEAST_BYTES: Final = 91


def cut_records(data: bytes, make: Callable[..., M], broker_name: str) -> list[M] | None:
    """What ``make`` makes of each record of ``data``; None when not all of them are plain.

    ``make`` gets the topic, the queue id, the queue offset, the physical offset, the body, the
    properties, the flag, sysFlag, when and where it was born, when and where it was stored, the
    attempts, the offset of the half message, the size in bytes, and the name of the broker.
    """
    found: list[M] = []
    at, end = 0, len(data)
    while at < end:
        if end - at < _LEAST_BYTES:
            return None
        (
            size, magic, crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_ms,
        ) = _HEAD.unpack_from(data, at)  # fmt: skip
        born_at = at + _HEAD.size
        store_at = born_at + _HOST_BYTES[bool(sys_flag & _BORN_HOST_V6)]
        host_at = store_at + _LONG.size
        counts_at = host_at + _HOST_BYTES[bool(sys_flag & _STORE_HOST_V6)]
        body_at = counts_at + _BEFORE_BODY.size
        if magic != _MAGIC or sys_flag & _COMPRESSED or size > end - at or body_at + 3 > at + size:
            return None
        stop = at + size
        (store_ms,) = _LONG.unpack_from(data, store_at)
        attempts, prepared_offset, body_bytes = _BEFORE_BODY.unpack_from(data, counts_at)
        topic_at = body_at + body_bytes + 1
        if body_bytes < 0 or topic_at + 2 > stop:
            return None
        properties_at = topic_at + data[topic_at - 1] + 2
        if properties_at > stop:
            return None
        if properties_at + _LENGTH.unpack_from(data, properties_at - 2)[0] != stop:
            return None
        body = data[body_at : topic_at - 1]
        if crc and crc32(body) & _CRC_MASK != crc:
            return None
        found.append(
            make(
                str(data[topic_at : properties_at - 2], "utf-8", "replace"), queue_id,
                queue_offset, physical_offset, body, pairs_of(data[properties_at:stop]), flag,
                sys_flag, born_ms, data[born_at:store_at], store_ms, data[host_at:counts_at],
                attempts, prepared_offset, size, broker_name,
            )
        )  # fmt: skip
        at = stop
    return found


def pairs_of(raw: bytes) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in str(raw, "utf-8", "replace").split("\x02"):
        name, _, value = pair.partition("\x01")
        if name and value:
            found[name] = value
    return found
