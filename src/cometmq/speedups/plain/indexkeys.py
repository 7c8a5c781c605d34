"""Keys of messages as an index file has them (store/index/indexfile.py).

This is the definition; compiled/indexkeys.pyx does the same, byte for byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Any, Final

_INDEX_ENTRY: Final = Struct(">iqii")
_INT_MAX: Final = 0x7FFFFFFF


def put_keys(
    slots: Any,
    hashes: Sequence[int],
    places: Sequence[int],
    times_ms: Sequence[int],
    begin_ms: int,
    first: int,
) -> tuple[bytes, int]:
    """Entries of keys for an index file that begins at ``begin_ms``, numbered from ``first`` on,
    and how many slots were empty before. ``slots`` (native int32) point to them afterwards; the
    columns are native int64."""
    count, used = len(hashes), 0
    if len(places) != count or len(times_ms) != count or not len(slots):
        raise ValueError("columns of different lengths, or no slots")
    entries: list[bytes] = []
    for number, (value, place, ms) in enumerate(zip(hashes, places, times_ms, strict=True)):
        slot = value % len(slots)
        seconds = min(max((ms - begin_ms) // 1000, 0), _INT_MAX)
        entries.append(_INDEX_ENTRY.pack(value, place, seconds, slots[slot]))
        used += not slots[slot]
        slots[slot] = first + number
    return b"".join(entries), used
