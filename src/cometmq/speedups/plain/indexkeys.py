"""Index entries of message keys (store/index.py).

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
    """Return the index entries of keys, and the number of slots that were empty before.

    ``begin_ms`` is the begin timestamp of the index file, ``first`` the number of the first entry.
    Updates ``slots`` (native int32) to point to the new entries. ``hashes``, ``places`` and
    ``times_ms`` are columns of native int64. Raises ValueError if their lengths differ or if there
    are no slots.
    """
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
