"""Digests of the queue and index entries for the records of a log file.

A digest is the sum, modulo 2^64, of one number for each entry, so the order of entries does not
matter and digests of parts can be added. An entry's number changes with any of its fields, and the
sum also changes if two entries exchange a field.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cometmq.message.walk import Ints

_ALL = (1 << 64) - 1
_FACTORS = (
    np.array(
        [
            0x9E37_79B9_7F4A_7C15, 0xC2B2_AE3D_27D4_EB4F, 0x1656_67B1_9E37_79F9,
            0x85EB_CA77_C2B2_AE63, 0x27D4_EB2F_1656_67C5, 0xD6E8_FEB8_6659_FD93,
        ],
        np.uint64,
    )
    .view(np.int64)
)  # fmt: skip


class Digest(NamedTuple):
    """The number of entries, and the sum of their numbers."""

    amount: int = 0
    total: int = 0

    def plus(self, other: Digest) -> Digest:
        """Return the digest of both together."""
        return Digest(self.amount + other.amount, (self.total + other.total) & _ALL)


def of(mixed: Ints) -> Digest:
    """Return the digest of entries, given by their numbers."""
    return Digest(len(mixed), int(mixed.sum(dtype=np.int64)) & _ALL)


def add_parts(digests: dict[int, Digest], mixed: Ints, starts: Ints, owners: list[int]) -> None:
    """Add the parts of ``mixed`` that begin at ``starts`` to the digests of their ``owners``."""
    sums = np.add.reduceat(mixed, starts).view(np.uint64).tolist()
    sizes = np.diff(np.append(starts, len(mixed))).tolist()
    for owner, size, total in zip(owners, sizes, sums, strict=True):
        digests[owner] = digests.get(owner, Digest()).plus(Digest(size, total))


def join(digests: dict[int, Digest], others: Mapping[int, Digest]) -> None:
    """Add all of ``others`` to ``digests``."""
    for owner, other in others.items():
        digests[owner] = digests.get(owner, Digest()).plus(other)


def mix_entries(
    phys: Ints, sizes: Ints, codes: Ints, offsets: Ints, topic_codes: Ints, queue_ids: Ints
) -> Ints:
    """Return a number for each queue entry."""
    mixed = phys * _FACTORS[0]
    mixed += sizes * _FACTORS[1]
    mixed += codes * _FACTORS[2]
    mixed += offsets * _FACTORS[3]
    mixed += topic_codes * _FACTORS[4]
    mixed += queue_ids * _FACTORS[5]
    return _scattered(mixed)


def mix_keys(phys: Ints, hashes: Ints) -> Ints:
    """Return a number for each index entry."""
    mixed = phys * _FACTORS[0]
    mixed += hashes * _FACTORS[1]
    return _scattered(mixed)


def _scattered(mixed: Ints) -> Ints:
    """Scatter the bits: sums of plain products would not change if two entries exchange a field."""
    mixed ^= mixed >> 32
    mixed *= _FACTORS[2]
    mixed ^= mixed >> 29
    return mixed
