"""Reads of a consume queue: from its entries to the verified bytes of their records.

This is the definition; compiled/pulls.pyx does the same, byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from cometmq.speedups.plain.records import (
    ENTRY,
    GAP_BYTES,
    SPAN_BYTES,
    Taken,
    is_inside,
    is_record,
)

__all__ = ["is_record", "take_records"]


def take_records(
    entries: bytes | bytearray,
    offset: int,
    codes: Collection[int] | None,
    most: tuple[int, int],
    log: tuple[memoryview, int, int, int, int],
    queue: tuple[int, bytes] | None,
    has_at_once: Callable[[int, int], bool],
) -> tuple[int, int, int, memoryview] | None:
    """Return the records that consume queue entries name, or None if one of them is not plain.

    ``entries`` start with the entry at queue offset ``offset``. With ``codes``, only entries with
    one of these tag codes are taken. ``most`` is the maximum count and the maximum total size of
    the records in bytes; the first record is taken whatever its size.

    ``log`` is a part of the commit log: its bytes, the physical offset of its first byte, the two
    physical offsets between which records must lie, and the physical offset from which on the bytes
    are certainly in memory. Earlier bytes are read only if ``has_at_once(start, stop)`` returns
    that reading them does not block. ``queue`` is the queue id and the bytes that follow the body
    in the queue's records; each record is checked against both. It is None if the entries need no
    check.

    Returns the number of entries examined, and the count, the total size and the bytes of the
    records taken. Returns None if an entry is a hole, if a record lies outside the bounds or before
    the end of the previous one, if a record does not match its entry, or if reading it would block.
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
    """Return the number of entries examined and the entries taken; None if one is not plain."""
    count_max, bytes_max = most
    stop, high = bounds
    taken: list[Taken] = []
    looked_at = total = 0
    whole = len(entries) // ENTRY.size * ENTRY.size
    for place, size, code in ENTRY.iter_unpack(entries[:whole]):
        if codes is None or code in codes:
            if not is_inside(place, size, stop, high):
                return None
            # The first record is always taken, so that a large message cannot block its queue.
            if taken and (total + size > bytes_max or len(taken) >= count_max):
                break
            taken.append((offset + looked_at, place, size))
            total += size
            stop = place + size
        looked_at += 1
    return looked_at, taken


def _gather(taken: Sequence[Taken], data: memoryview, base: int) -> memoryview:
    """Return the bytes of the records, as a view of the log if they are contiguous."""
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
    """Return whether all records can be read without blocking.

    Calls ``has_at_once`` once for records that lie close to each other.
    """
    begin = stop = -1
    for _, place, size in taken:
        if place >= sure:
            break
        if stop >= 0 and (place - stop > GAP_BYTES or place + size - begin > SPAN_BYTES):
            if not has_at_once(begin, stop):
                return False
            stop = -1
        if stop < 0:
            begin = place
        stop = place + size
    return stop < 0 or bool(has_at_once(begin, stop))
