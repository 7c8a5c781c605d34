"""From raw bytes of the log to the places of its records, many at a time.

A record is found through the size of the one before it, which makes a walk one step after another.
Here hundreds of walks go side by side through one piece of the log, each from a place where a
record surely begins (its magic stands there, and its own physical offset), up to where the next
one began: 30 ns a record instead of 300. The records of a pull answer are walked alike, though they
carry the offsets of other places: what looks like a record and is none is found out by the walk.
"""

from __future__ import annotations

from math import isqrt
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

from cometmq.message.record import (
    FIXED_BYTES,
    MAGIC_BLANK,
    MAGIC_START,
    MAGIC_V1,
    MAGIC_V2,
    PREFIX,
    bad_record,
    head_part,
    iter_sizes,
)

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]

#: Before the magic number.
_SIZE_BYTES = 4
_PLACE = head_part("size_bytes", "magic", "physical_offset")
_SEED_TRIES = 4
_SEED_BYTES_MIN = 1 << 12
#: A step of all walks costs as much as finding ten seeds, at 512 bytes a record: what makes both
#: cost the same is the root of this many bytes times the length.
_SEED_BYTES_BASE = 51


class Places(NamedTuple):
    """Where records begin in a buffer by their sizes, and where the chain of sizes ended: at what
    is no record, or is not whole."""

    starts: Ints
    stop: int


def window(data: Bytes, dtype: str) -> npt.NDArray[np.generic]:
    """Every position of ``data`` read as ``dtype``: element n is what stands at byte n."""
    kind = np.dtype(dtype)
    count = max(0, len(data) - kind.itemsize + 1)
    first = np.ndarray((min(count, 1),), kind, data.data)
    return as_strided(first, shape=(count,), strides=(1,), writeable=False)


def numbers(found: npt.NDArray[np.generic]) -> Ints:
    """Numbers of any kind and byte order as plain ones."""
    return found.astype(np.int64)


def find_places(
    data: bytes | bytearray, base: int | None, start: int = 0, stop: int | None = None
) -> Places:
    """The records of ``data`` from byte ``start`` up to ``stop``; its first byte has physical
    offset ``base``, None where the records are not neighbours in the log.

    Only sizes are looked at: whoever reads the records (columns.py) finds the first that is none.
    """
    end = len(data) if stop is None else stop
    if end - start < FIXED_BYTES:
        return Places(np.empty(0, np.int64), start)
    raw = np.frombuffer(data, np.uint8)[:end]
    return Places(*_lockstep(raw, _seeds(data, base, start, end), end))


def all_places(data: bytes) -> Ints:
    """Where each record of a block of whole records begins, by their sizes alone.

    Raises BadRecord where the chain of sizes ends before the block does.
    """
    places = find_places(data, None)
    if places.stop != len(data):
        raise bad_record(data, places.stop, len(data))
    return places.starts


def _seeds(data: bytes | bytearray, base: int | None, start: int, end: int) -> Ints:
    """``start``, and every some ten KiB the place of a record."""
    found = [start]
    every = max(_SEED_BYTES_MIN, isqrt((end - start) * _SEED_BYTES_BASE))
    for at in range(start + every, end - FIXED_BYTES, every):
        if at <= found[-1]:
            continue
        place = next_record(data, base, at, end, tries=_SEED_TRIES)
        if place < 0:
            break
        found.append(place)
    return np.array(found, np.int64)


def next_record(
    data: bytes | bytearray, base: int | None, start: int, end: int, *, tries: int = 1 << 62
) -> int:
    """Where from ``start`` on the next bytes stand that say of themselves to be a record; or -1.

    ``tries`` is how many magic numbers are looked at.
    """
    at = start + _SIZE_BYTES
    for _ in range(tries):
        at = data.find(MAGIC_START, at, end)
        place = at - _SIZE_BYTES
        if at < 0 or place + FIXED_BYTES > end:
            return -1
        if not problem_at(data, place, base):
            return place
        at += 1
    return -1


def problem_at(data: bytes | bytearray | memoryview, place: int, base: int | None) -> str:
    """Why no record can begin at a place that has room for the shortest; empty when one can."""
    size, magic, offset = _PLACE.unpack_from(data, place)
    if magic not in (MAGIC_V1, MAGIC_V2):
        return f"magic is {magic:#010x}"
    if size < FIXED_BYTES:
        return f"size is {size}"
    if base is not None and offset != base + place:
        return f"it carries physical offset {offset}"
    return ""


def is_blank(data: bytes | bytearray | memoryview, place: int, room: int) -> bool:
    """Whether the blank that closes a file stands at a place with ``room`` bytes left in it."""
    if len(data) - place < PREFIX.size:
        return False
    size, magic = PREFIX.unpack_from(data, place)
    return bool(magic == MAGIC_BLANK and size == room)


def _lockstep(raw: Bytes, seeds: Ints, end: int) -> tuple[Ints, int]:
    """All starts from the first seed on, in order, and where the chain of sizes ended."""
    sizes_at = window(raw, ">u4")
    limits = np.append(seeds[1:], end)
    lanes = np.arange(len(seeds))
    at = seeds
    found: list[Ints] = []
    ended = np.full(len(seeds), -1, np.int64)
    while len(lanes):
        room = at <= end - FIXED_BYTES
        if not room.all():
            ended[lanes[~room]] = at[~room]
            lanes, at = lanes[room], at[room]
        sizes = numbers(sizes_at[at])
        following = at + sizes
        whole = (sizes >= FIXED_BYTES) & (following <= limits[lanes])
        if not whole.all():
            ended[lanes[~whole]] = at[~whole]
            lanes, at, following = lanes[whole], at[whole], following[whole]
        found.append(at)
        more = following < limits[lanes]
        if not more.all():
            ended[lanes[~more]] = following[~more]
            lanes, following = lanes[more], following[more]
        at = following
    starts = np.concatenate(found)
    starts.sort()
    short = np.flatnonzero(ended[:-1] != limits[:-1])
    if not len(short):
        return starts, int(ended[-1])
    # A seed was none, or a size is damaged: from there on one step after the other.
    before = int(ended[short[0]])
    others = [*iter_sizes(raw.data, before, end)]
    places = np.array([place for place, _ in others], np.int64)
    return np.concatenate((starts[starts < before], places)), sum(others[-1]) if others else before
