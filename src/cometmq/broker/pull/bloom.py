"""Bit positions of consumers in upstream's bloom filters, which its table of filters stores
(upstream: BloomFilter.java; the hash is murmur3 x64 128 with seed 0). Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

_MASK: Final = 2**64 - 1
_C1: Final = 0x87C37B91114253D5
_C2: Final = 0x4CF5AD432745937F


@dataclass(frozen=True, slots=True)
class BloomShape:
    """Shape of a bloom filter: ``bits`` in all, of which each name sets ``hashes``."""

    hashes: int
    bits: int

    @classmethod
    def of(cls, error_percent: int, names: int) -> BloomShape:
        """Return the shape for at most ``names`` names and an error rate of ``error_percent``
        (1 to 99)."""
        error = error_percent / 100
        hashes = math.ceil(math.log(error) / math.log(0.5))
        bits = math.ceil(
            names * (math.log(1 / error) / math.log(2)) * (math.log(math.e) / math.log(2))
        )
        return cls(hashes, 8 * math.ceil(bits / 8))

    def positions(self, name: str) -> tuple[int, ...]:
        """Return the bit positions of one name, in upstream's order."""
        both = murmur3_low(name.encode())
        first, second = _int32(both), _int32(both >> 32)
        found = []
        for number in range(1, self.hashes + 1):
            combined = _int32(first + number * second)
            found.append((~combined if combined < 0 else combined) % self.bits)
        return tuple(found)


def murmur3_low(data: bytes) -> int:
    """Return the low 64 of the 128 bits of the hash."""
    h1 = h2 = 0
    whole = len(data) - len(data) % 16
    for at in range(0, whole, 16):
        h1 = _rotated(h1 ^ _mix_first(int.from_bytes(data[at : at + 8], "little")), 27) + h2
        h1 = (h1 * 5 + 0x52DCE729) & _MASK
        h2 = _rotated(h2 ^ _mix_second(int.from_bytes(data[at + 8 : at + 16], "little")), 31) + h1
        h2 = (h2 * 5 + 0x38495AB5) & _MASK
    h1 ^= _mix_first(int.from_bytes(data[whole : whole + 8], "little"))
    h2 ^= _mix_second(int.from_bytes(data[whole + 8 :], "little"))
    h1, h2 = h1 ^ len(data), h2 ^ len(data)
    h1 = (h1 + h2) & _MASK
    h2 = (h2 + h1) & _MASK
    return (_finished(h1) + _finished(h2)) & _MASK


def _mix_first(word: int) -> int:
    return _rotated(word * _C1 & _MASK, 31) * _C2 & _MASK


def _mix_second(word: int) -> int:
    return _rotated(word * _C2 & _MASK, 33) * _C1 & _MASK


def _finished(word: int) -> int:
    word = (word ^ word >> 33) * 0xFF51AFD7ED558CCD & _MASK
    word = (word ^ word >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return word ^ word >> 33


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> 64 - bits) & _MASK


def _int32(value: int) -> int:
    return (value + 2**31) % 2**32 - 2**31
