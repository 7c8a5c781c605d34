"""Index entries by the column: the numpy twin of what indexfile.py and index.py do row by row.

Slots come as a memoryview of native 32-bit numbers; entries are the bytes that indexfile.py
describes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cometmq.filter.tags import java_hash
from cometmq.store.index import units

Ints = npt.NDArray[np.int64]

_ENTRY = np.dtype([("hash", ">i4"), ("phys", ">i8"), ("seconds", ">i4"), ("prev", ">i4")])
_INT_MAX = 0x7FFF_FFFF
_POWER_LIMIT = 256
_POWERS = np.array([pow(31, exponent, 1 << 32) for exponent in range(_POWER_LIMIT)], np.uint32)


class Chained(NamedTuple):
    """Entries linked into their slots: their bytes, their slots, and how many of these are new."""

    raw: bytes
    places: Ints
    fresh: int


def hash_keys(prefixes: list[int], counts: list[int], keys: list[str]) -> Ints:
    """The hashes of many keys: of each prefix as many as ``counts`` says, in order."""
    joined = "".join(keys)
    lengths = np.fromiter(map(len, keys), np.int64, len(keys))
    longest = int(lengths.max())
    starts = np.repeat(np.array(prefixes, np.uint32), counts)
    if not joined.isascii() or longest >= _POWER_LIMIT or not lengths.min():
        own = np.array([java_hash(key) & 0xFFFFFFFF for key in keys], np.uint32)
        shift = [pow(31, units(key), 1 << 32) for key in keys]
        values = starts * np.array(shift, np.uint32) + own
    else:
        raw = np.frombuffer(joined.encode(), np.uint8)
        if len(raw) == longest * len(keys):
            weighted = raw.reshape(len(keys), longest) * _POWERS[longest - 1 :: -1][:longest]
            own = weighted.sum(axis=1, dtype=np.uint32)
        else:
            ends = np.cumsum(lengths)
            exponents = np.repeat(ends, lengths) - np.arange(1, len(raw) + 1)
            own = np.add.reduceat(raw * _POWERS[exponents], ends - lengths, dtype=np.uint32)
        values = starts * _POWERS[lengths] + own
    signed = np.abs(values.view(np.int32).astype(np.int64))
    # The one value whose absolute value is no int32 counts as 0.
    signed[signed > _INT_MAX] = 0
    return signed


def repeated(values: tuple[int, ...], counts: list[int]) -> Ints:
    """A column in which each value stands as often as ``counts`` says."""
    return np.repeat(np.array(values, np.int64), counts)


def chained(
    slots: memoryview, first: int, hashes: Ints, phys: Ints, store_ms: Ints, begin_ms: int
) -> Chained:
    """The entries from number ``first`` on, each linked to the one before it in its slot.

    The slots stay as they are; :func:`point_slots` comes once the entries are written.
    """
    heads = np.frombuffer(slots, np.int32)
    rows = len(hashes)
    places = hashes % len(heads)
    order = np.argsort(places, kind="stable")
    ordered = places[order]
    previous = heads[ordered].astype(np.int64)
    repeats = np.flatnonzero(ordered[1:] == ordered[:-1]) + 1
    fresh = int(np.count_nonzero(previous == 0))
    if len(repeats):
        fresh -= int(np.count_nonzero(previous[repeats] == 0))
        previous[repeats] = order[repeats - 1] + first
    entries = np.empty(rows, _ENTRY)
    entries["hash"] = hashes
    entries["phys"] = phys
    entries["seconds"] = np.clip((store_ms - begin_ms) // 1000, 0, _INT_MAX)
    entries["prev"][order] = previous
    return Chained(entries.tobytes(), places, fresh)


def point_slots(slots: memoryview, first: int, places: Ints) -> None:
    """Let each slot begin at its newest entry; ``places`` are those of entries from ``first``."""
    # Later numbers of one slot overwrite earlier ones.
    np.frombuffer(slots, np.int32)[places] = np.arange(first, first + len(places), dtype=np.int32)


def restore_slots(slots: memoryview, first: int, raw: bytes) -> tuple[int, int]:
    """Point the slots at entries read back from a file; the last one's offset and seconds."""
    entries = np.frombuffer(raw, _ENTRY)
    point_slots(slots, first, entries["hash"].astype(np.int64) % len(slots))
    return int(entries["phys"][-1]), int(entries["seconds"][-1])


def used(slots: memoryview) -> int:
    """How many slots have an entry."""
    return int(np.count_nonzero(np.frombuffer(slots, np.int32)))
