"""The hash under which the index keeps a key: Java's ``String.hashCode`` of ``topic#key``.

Hashing a key unit by unit takes 2.6 us. Many at once stand side by side in one large integer, each
in a lane of its own, and one multiplication folds the halves of all lanes: after five of them each
lane holds a hash, for 0.2 us a key.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import TYPE_CHECKING

from cometmq.filter.tags import java_hash

if TYPE_CHECKING:
    from collections.abc import Sequence

_MASK = 0xFFFF_FFFF
_SIGN = 0x8000_0000
_INT_MAX = 0x7FFF_FFFF
_NARROW_BYTES, _WIDE_BYTES = 32, 128
_LANES = (256, 64, 8, 1)
_POWERS = [pow(31, exponent, 1 << 32) for exponent in range(_WIDE_BYTES + 1)]


def topic_prefix(topic: str) -> int:
    """The hash of ``topic#``, with which the hash of every key of the topic begins."""
    return java_hash(topic + "#") & _MASK


def index_hash(prefix: int, key: str) -> int:
    """The hash of one key, never negative; ``prefix`` is the hash of its ``topic#``.

    (upstream: IndexFile.indexKeyHashMethod)
    """
    units = len(key) if key.isascii() else len(key.encode("utf-16-be", "surrogatepass")) // 2
    return _absolute(prefix * pow(31, units, 1 << 32) + java_hash(key) & _MASK)


def index_hashes(prefixes: Sequence[int], keys: Sequence[str]) -> list[int]:
    """:func:`index_hash` of each prefix with its key."""
    if not keys:
        return []
    lengths = list(map(len, keys))
    longest = max(lengths)
    joined = "".join(keys)
    if longest > _WIDE_BYTES or not joined.isascii():
        return list(map(index_hash, prefixes, keys))
    width = _NARROW_BYTES if longest <= _NARROW_BYTES else _WIDE_BYTES
    if len(joined) < len(keys) * width:
        # Zeros before a key do not change its hash.
        joined = "".join([key.rjust(width, "\0") for key in keys])
    own_hashes = _own_hashes(joined.encode("ascii"), width)
    powers = _POWERS
    if lengths.count(longest) == len(keys):
        power = powers[longest]
        # The rest as _absolute has it: the call alone would double the time.
        if prefixes.count(prefixes[0]) == len(keys):
            start = prefixes[0] * power
            return [
                value if (value := start + own & _MASK) < _SIGN else -value & _INT_MAX
                for own in own_hashes
            ]
        return [
            value if (value := prefix * power + own & _MASK) < _SIGN else -value & _INT_MAX
            for prefix, own in zip(prefixes, own_hashes, strict=True)
        ]
    return [
        value if (value := prefix * powers[length] + own & _MASK) < _SIGN else -value & _INT_MAX
        for prefix, length, own in zip(prefixes, lengths, own_hashes, strict=True)
    ]


def _absolute(value: int) -> int:
    # The one value whose absolute value is no int32 counts as 0.
    return value if value < _SIGN else -value & _INT_MAX


def _own_hashes(raw: bytes, width: int) -> list[int]:
    """The hashes of ASCII keys of ``width`` units each."""
    found: list[int] = []
    position = 0
    while position < len(raw):
        left = (len(raw) - position) // width
        lanes = next((count for count in _LANES if count < 2 * left), _LANES[-1])
        folds, hashes = _plan(lanes, width)
        part = raw[position : position + lanes * width]
        number = int.from_bytes(part, "big")
        for shift, mask, power in folds:
            number = (number >> shift & mask) * power + (number & mask)
        found += hashes.unpack(number.to_bytes(lanes * width, "big"))[-left:]
        position += len(part)
    return found


@lru_cache
def _plan(lanes: int, width: int) -> tuple[list[tuple[int, int, int]], Struct]:
    """How to fold lanes of ``width`` bytes to one number each, and how to read these."""
    folds: list[tuple[int, int, int]] = []
    half = 1
    while half < width:
        # Above 32 bits there is nothing of the hash; below, a half's number fits into its bytes.
        kept = min(half, 4)
        lane = bytes(2 * half - kept) + b"\xff" * kept
        mask = int.from_bytes(lane * (lanes * width // len(lane)), "big")
        folds.append((8 * half, mask, pow(31, half, 1 << 32)))
        half *= 2
    return folds, Struct(">" + f"{width - 4}xI" * lanes)
