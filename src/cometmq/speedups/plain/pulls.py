"""Reads of a queue, from its entries to the bytes of records that are proven.

This is the definition; compiled/pulls.pyx does the same, byte for byte. A record is laid out in
message/record.py, a queue entry in store/layout.py. Neither is believed: whatever they say, nothing
outside the given bytes is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from struct import Struct
from typing import Final, TypeAlias

_ENTRY: Final = Struct(">qiq")
_HOLE_SIZE: Final = 0x7FFFFFFF
#: Size, magic, queue id, queue offset, physical offset, system flag; the length of the body, where
#: both hosts are IPv4.
_HEAD: Final = Struct(">iI4xi4xqqi44xi")
_BODY_LENGTH: Final = Struct(">i")
_BODY_LENGTH_AT: Final = _HEAD.size - _BODY_LENGTH.size
_MAGIC_V1: Final = 0xDAA320A7
_MAGIC_V2: Final = 0xDAA320AB
_BORN_V6: Final = 16
_STORE_V6: Final = 32
_V6_MORE_BYTES: Final = 12
#: Records so near to each other are asked for together, at most so many bytes.
_GAP_BYTES: Final = 16 << 10
_SPAN_BYTES: Final = 512 << 10

#: Queue offset, physical offset and size of a record, as its entry says.
Taken: TypeAlias = tuple[int, int, int]


def is_record(
    data: bytes | bytearray | memoryview,
    at: int,
    entry: Taken,
    queue_id: int,
    topic_tail: bytes,
) -> bool:
    """Whether the record at ``data[at]`` is the one of an entry of a queue. ``topic_tail`` is what
    follows the body of its records."""
    offset, place, size = entry
    if not 0 <= at <= len(data) - max(size, _HEAD.size):
        return False
    found, magic, found_id, found_offset, physical, flag, body = _HEAD.unpack_from(data, at)
    if (found, found_id, found_offset, physical) != (size, queue_id, offset, place):
        return False
    topic_at = at + _HEAD.size
    if flag & (_BORN_V6 | _STORE_V6):
        more = _V6_MORE_BYTES * (bool(flag & _BORN_V6) + bool(flag & _STORE_V6))
        topic_at += more
        if topic_at > len(data):
            return False
        (body,) = _BODY_LENGTH.unpack_from(data, at + _BODY_LENGTH_AT + more)
    if body < 0:
        return False
    topic_at += body
    if magic == _MAGIC_V2:
        topic_at += 1  # two bytes tell the topic's length
    elif magic != _MAGIC_V1:
        return False
    stop = topic_at + len(topic_tail)
    return stop <= at + size and data[topic_at:stop] == topic_tail


def take_records(
    entries: bytes | bytearray,
    offset: int,
    codes: Collection[int] | None,
    most: tuple[int, int],
    log: tuple[memoryview, int, int, int, int],
    queue: tuple[int, bytes] | None,
    has_at_once: Callable[[int, int], bool],
) -> tuple[int, int, int, memoryview] | None:
    """The records of queue entries, as far as they are plain.

    ``entries`` begin with that of the queue offset ``offset``; with ``codes`` only those with one
    of these tag codes are taken. ``most`` are the count and the bytes that end it; one record is
    always taken. ``log`` is a part of the log: its bytes, the physical offset of the first; between
    which two offsets records must lie; and from where on they are in memory for certain. What lies
    before that is touched only where ``has_at_once(start, stop)`` says that it takes no wait.
    ``queue`` (its id, what follows the body of its records) is what each record is compared with,
    None when the entries need no proof.

    Gives how many entries were looked at; count, size and bytes of the records of those that were
    taken. None when one of them is not plain: a hole, outside, not behind the one before, not its
    record, or a wait.
    """
    data, base, low, high, sure = log
    if not 0 <= base <= low or not 0 <= high <= base + len(data):
        raise ValueError("records between offsets that are not in the bytes of the log")
    chosen = _choose(entries, offset, codes, most, (low, high))
    if chosen is None:
        return None
    looked_at, taken = chosen
    if not _are_at_once(taken, sure, has_at_once):
        return None
    if queue is not None:
        queue_id, topic_tail = queue
        readable = data[: max(high - base, 0)]
        for entry in taken:
            if not is_record(readable, entry[1] - base, entry, queue_id, topic_tail):
                return None
    return looked_at, len(taken), sum([size for _, _, size in taken]), _gather(taken, data, base)


def _choose(
    entries: bytes | bytearray,
    offset: int,
    codes: Collection[int] | None,
    most: tuple[int, int],
    bounds: tuple[int, int],
) -> tuple[int, list[Taken]] | None:
    """How many entries were looked at, and which are taken; None when one is not plain."""
    count_max, bytes_max = most
    stop, high = bounds
    taken: list[Taken] = []
    looked_at = total = 0
    whole = len(entries) // _ENTRY.size * _ENTRY.size
    for place, size, code in _ENTRY.iter_unpack(entries[:whole]):
        if codes is None or code in codes:
            if size <= 0 or size == _HOLE_SIZE or not stop <= place <= high - size:
                return None
            if taken and (total + size > bytes_max or len(taken) >= count_max):
                break
            taken.append((offset + looked_at, place, size))
            total += size
            stop = place + size
        looked_at += 1
    return looked_at, taken


def _gather(taken: Sequence[Taken], data: memoryview, base: int) -> memoryview:
    """The bytes of records; those of the log themselves where they lie side by side."""
    pieces: list[memoryview] = []
    begin = stop = base
    for _, place, size in taken:
        if place != stop:
            pieces.append(data[begin - base : stop - base])
            begin = place
        stop = place + size
    pieces.append(data[begin - base : stop - base])
    if not pieces[0]:
        del pieces[0]
    return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))


def _are_at_once(
    taken: Sequence[Taken], sure: int, has_at_once: Callable[[int, int], bool]
) -> bool:
    """Whether all records can be touched without a wait; those near to each other are asked for
    together."""
    begin = stop = -1
    for _, place, size in taken:
        if place >= sure:
            break
        if stop >= 0 and (place - stop > _GAP_BYTES or place + size - begin > _SPAN_BYTES):
            if not has_at_once(begin, stop):
                return False
            stop = -1
        if stop < 0:
            begin = place
        stop = place + size
    return stop < 0 or bool(has_at_once(begin, stop))
