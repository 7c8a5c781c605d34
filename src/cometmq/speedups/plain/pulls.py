"""Reads of a queue, from its entries to the bytes of records that are proven.

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
    whole = len(entries) // ENTRY.size * ENTRY.size
    for place, size, code in ENTRY.iter_unpack(entries[:whole]):
        if codes is None or code in codes:
            if not is_inside(place, size, stop, high):
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
        if stop >= 0 and (place - stop > GAP_BYTES or place + size - begin > SPAN_BYTES):
            if not has_at_once(begin, stop):
                return False
            stop = -1
        if stop < 0:
            begin = place
        stop = place + size
    return stop < 0 or bool(has_at_once(begin, stop))
