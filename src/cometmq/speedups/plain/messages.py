"""Messages of a pull response: all records are checked first, each message is built on demand.

This is the definition; compiled/messages.pyx does the same. Only plain records are read here;
message/record.py reads others. The records of a body are plain if all of the following is true:

- they are contiguous and fill the body, their lengths are consistent, and their magic number is
  that of version 1;
- each body is uncompressed and matches the CRC of its record, unless that CRC is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import Struct
from typing import Final, Generic, TypeVar

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

#: Size of a host (address and port) with IPv4 and with IPv6.
_HOST_BYTES: Final = 8, 20
#: Start of a record after its size: magic, CRC, queue id, flag, queue offset, physical offset,
#: sysFlag, born time.
_HEAD: Final = Struct(">4xIIiiqqiq")
_LONG: Final = Struct(">q")
_OFFSET_AT: Final = 20
#: Number of redeliveries (reconsumeTimes), and the physical offset of the half message.
_COUNTS: Final = Struct(">iq")


class Records(Generic[M]):
    """The messages of a pull response as a sequence. Each is built when it is first accessed."""

    __slots__ = ("_broker_name", "_data", "_made", "_make", "_starts")

    def __init__(
        self, data: bytes, starts: list[int], make: Callable[..., M], broker_name: str
    ) -> None:
        self._data = data
        #: Start of each record, followed by the end of the last one.
        self._starts = starts
        self._make = make
        self._broker_name = broker_name
        #: Messages that were built already, by index.
        self._made: dict[int, M] = {}

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __iter__(self) -> Iterator[M]:
        return iter([self[at] for at in range(len(self))])

    def __getitem__(self, at: int) -> M:
        found = self._made.get(at)
        if found is None:
            self._check(at, len(self))
            found = self._made[at] = self._cut(at)
        return found

    def offset_at(self, at: int) -> int:
        """Return the queue offset of the record at index ``at``."""
        self._check(at, len(self))
        (offset,) = _LONG.unpack_from(self._data, self._starts[at] + _OFFSET_AT)
        return int(offset)

    def bytes_of(self, begin: int, end: int) -> int:
        """Return the total size in bytes of the records ``begin`` to ``end`` (exclusive)."""
        self._check(begin, len(self._starts))
        self._check(end, len(self._starts))
        return self._starts[end] - self._starts[begin]

    def _check(self, at: int, end: int) -> None:
        if not 0 <= at < end:
            raise IndexError("no such record")

    def _cut(self, number: int) -> M:
        data, at, stop = self._data, self._starts[number], self._starts[number + 1]
        whole = find_whole(data, at, stop)
        assert whole is not None
        parts = whole[0]
        _, _, queue_id, flag, queue_offset, physical_offset, sys_flag, born_ms = _HEAD.unpack_from(
            data, at
        )
        born_at = at + _HEAD.size
        store_at = born_at + _HOST_BYTES[bool(sys_flag & BORN_V6)]
        host_at = store_at + _LONG.size
        counts_at = host_at + _HOST_BYTES[bool(sys_flag & STORE_V6)]
        (store_ms,) = _LONG.unpack_from(data, store_at)
        attempts, prepared_offset = _COUNTS.unpack_from(data, counts_at)
        return self._make(
            str(data[parts.topic : parts.topic_end], "utf-8", "replace"), queue_id,
            queue_offset, physical_offset, data[parts.body : parts.body_end],
            pairs_of(data[parts.topic_end + 2 : stop]), flag, sys_flag, born_ms,
            data[born_at:store_at], store_ms, data[host_at:counts_at], attempts, prepared_offset,
            stop - at, self._broker_name,
        )  # fmt: skip


def cut_records(data: bytes, make: Callable[..., M], broker_name: str) -> Records[M] | None:
    """Return the records of ``data``; None unless all of them are plain.

    ``make`` builds a message. Its arguments are the topic, the queue id, the queue offset, the
    physical offset, the body, the properties, the flag, sysFlag, the born time and host, the store
    time and host, the number of redeliveries, the physical offset of the half message, the size in
    bytes, and the broker name.
    """
    # Check all records here, so that access to a single message needs no check.
    starts = [0]
    at = 0
    while at < len(data):
        whole = find_whole(data, at, len(data))
        if whole is None:
            return None
        parts, stop = whole
        magic, crc, *_, sys_flag, _ = _HEAD.unpack_from(data, at)
        body = data[parts.body : parts.body_end]
        if magic != MAGIC_V1 or sys_flag & COMPRESSED or (crc and stored_crc(body) != crc):
            return None
        starts.append(stop)
        at = stop
    return Records(data, starts, make, broker_name)
