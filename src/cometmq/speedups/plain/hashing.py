"""Java's ``String.hashCode``, and what the key index (store/index.py) makes of it: the hash of a
key, and the entries of keys.

This is the definition; compiled/hashing.pyx does the same, byte for byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import mul
from struct import Struct
from typing import Any, Final

_MASK = 0xFFFF_FFFF
_SIGN = 0x8000_0000
#: Number of UTF-16 units hashed at once.
_UNITS = 64
#: For a piece of ``count`` units: the factor of each unit, and that of the hash before the piece.
_FACTORS = [[pow(31, n, _MASK + 1) for n in reversed(range(count))] for count in range(_UNITS + 1)]
_BEFORE = [pow(31, count, _MASK + 1) for count in range(_UNITS + 1)]

_INDEX_ENTRY: Final = Struct(">iqii")
_INT_MAX: Final = 0x7FFFFFFF


def java_hash(text: str) -> int:
    """Return Java's ``String.hashCode``: over UTF-16 units, as a signed 32-bit value."""
    return signed(extended_hash(0, text))


def index_hashes(prefixes: Sequence[int], keys: Sequence[str]) -> list[int]:
    """Return the hash of ``topic#key`` for each key, never negative.

    Each prefix is the :func:`java_hash` of the key's ``topic#``, signed or not. Raises ValueError
    if the numbers of prefixes and keys differ (upstream: IndexFile.indexKeyHashMethod).
    """
    if len(prefixes) != len(keys):
        raise ValueError(f"{len(prefixes)} prefixes for {len(keys)} keys")
    hashes = []
    for prefix, key in zip(prefixes, keys, strict=True):
        hashes.append(absolute(extended_hash(prefix, key)))
    return hashes


def put_keys(
    slots: Any,
    hashes: Sequence[int],
    places: Sequence[int],
    times_ms: Sequence[int],
    begin_ms: int,
    first: int,
) -> tuple[bytes, int]:
    """Return the index entries of keys, and the number of slots that were empty before.

    Updates ``slots`` (native int32) to point to the new entries. ``hashes``, ``places`` (physical
    offsets) and ``times_ms`` (store times) are columns of native int64. ``begin_ms`` is the first
    store time of the index file, ``first`` the number of the first entry. Raises ValueError if the
    columns have different lengths or if there are no slots.
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


def signed(value: int) -> int:
    """Return an unsigned hash as Java's signed 32-bit value."""
    return value - (1 << 32) if value & _SIGN else value


def absolute(value: int) -> int:
    """Return the hash under which the index stores a key, from its unsigned hash."""
    # Java's abs returns the smallest value unchanged, so negative; the index stores 0 instead.
    return -value & (_SIGN - 1) if value & _SIGN else value


def text_hash(value: int, text: bytes) -> int:
    """Return :func:`extended_hash` of UTF-8 text; invalid bytes are replaced as Python does."""
    if text.isascii():
        return _extended(value, text)
    return extended_hash(value, text.decode("utf-8", "replace"))


def extended_hash(value: int, text: str) -> int:
    """Return the unsigned hash of a prefix followed by ``text``; ``value`` is the prefix's hash."""
    return _extended(value, _utf16_units(text))


def _extended(value: int, units: Sequence[int]) -> int:
    """Return the hash after ``value = value * 31 + unit`` for each unit.

    In Python, a sum of products over many units is faster than a loop over single units.
    """
    count = len(units)
    if count > _UNITS:
        for at in range(0, count, _UNITS):
            value = _extended(value, units[at : at + _UNITS])
        return value
    total: int = sum(map(mul, units, _FACTORS[count]))
    return (value * _BEFORE[count] + total) & _MASK


def _utf16_units(text: str) -> Sequence[int]:
    if text.isascii():
        return text.encode()
    raw = text.encode("utf-16-be", "surrogatepass")
    return [raw[at] << 8 | raw[at + 1] for at in range(0, len(raw), 2)]
