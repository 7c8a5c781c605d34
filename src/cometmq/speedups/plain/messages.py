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

from cometmq.speedups.plain.properties import pairs_of
from cometmq.speedups.plain.records import (
    BORN_V6,
    COMPRESSED,
    MAGIC_V1,
    STORE_V6,
    find_whole,
    stored_crc,
)

M = TypeVar("M")

_HOST_BYTES: Final = 8, 20
#: Magic, CRC, queue id, flag, queue offset, physical offset, sysFlag, born time.
_HEAD: Final = Struct(">4xIIiiqqiq")
_LONG: Final = Struct(">q")
#: Attempts, the half message's offset.
_COUNTS: Final = Struct(">iq")


def cut_records(data: bytes, make: Callable[..., M], broker_name: str) -> list[M] | None:
    """What ``make`` makes of each record of ``data``; None when not all of them are plain.

    ``make`` gets the topic, the queue id, the queue offset, the physical offset, the body, the
    properties, the flag, sysFlag, when and where it was born, when and where it was stored, the
    attempts, the offset of the half message, the size in bytes, and the name of the broker.
    """
    found: list[M] = []
    at = 0
    while at < len(data):
        whole = find_whole(data, at, len(data))
        if whole is None:
            return None
        parts, stop = whole
        magic, crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_ms = (
            _HEAD.unpack_from(data, at)
        )
        body = data[parts.body : parts.body_end]
        if magic != MAGIC_V1 or sys_flag & COMPRESSED or (crc and stored_crc(body) != crc):
            return None
        born_at = at + _HEAD.size
        store_at = born_at + _HOST_BYTES[bool(sys_flag & BORN_V6)]
        host_at = store_at + _LONG.size
        counts_at = host_at + _HOST_BYTES[bool(sys_flag & STORE_V6)]
        (store_ms,) = _LONG.unpack_from(data, store_at)
        attempts, prepared_offset = _COUNTS.unpack_from(data, counts_at)
        found.append(
            make(
                str(data[parts.topic : parts.topic_end], "utf-8", "replace"), queue_id,
                queue_offset, physical_offset, body, pairs_of(data[parts.topic_end + 2 : stop]),
                flag, sys_flag, born_ms, data[born_at:store_at], store_ms,
                data[host_at:counts_at], attempts, prepared_offset, stop - at, broker_name,
            )
        )  # fmt: skip
        at = stop
    return found
