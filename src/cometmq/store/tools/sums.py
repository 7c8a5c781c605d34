"""Checksums and digests of one full log file: what its seal contains (log/checksums.py).

    python -m cometmq.store.tools.sums PATH BASE SIZE MOMENT_MS DELAY_LEVELS

prints one JSON object, a ``FileSums``. BASE is the physical offset of the file, MOMENT_MS the time
that ``late_from`` refers to, DELAY_LEVELS the setting messageDelayLevel. A broker starts this as a
child process of the lowest priority (maintenance/checksumming.py), because a thread that runs
Python code would delay the event loop. It changes no files.

By a :class:`Digest` of the entries of its records, a tool can check that queues and index have
exactly these entries.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np

from cometmq.store.config import delay_levels_ms
from cometmq.store.files import ReadOnlyFiles
from cometmq.store.log.checksums import FileSums, Summary
from cometmq.store.tools.logfile import Chunk, LogWalk

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cometmq.message.walk import Ints
    from cometmq.store.files import Files

_ALL = (1 << 64) - 1
_TEXT_FACTOR: Final = 0x9E37_79B9_7F4A_7C15
_STEP_BYTES: Final = 8
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
    """The number of entries, and the sum of their hashes, modulo 2^64.

    The order of entries does not matter, and digests of parts can be added. The hash of an entry
    depends on all its fields, and the sum also changes if two entries exchange a field.
    """

    amount: int = 0
    total: int = 0

    def plus(self, other: Digest) -> Digest:
        """Return the digest of both together."""
        return Digest(self.amount + other.amount, (self.total + other.total) & _ALL)


def digest_of(hashes: Ints) -> Digest:
    """Return the digest of entries, given by their hashes."""
    return Digest(len(hashes), int(hashes.sum(dtype=np.int64)) & _ALL)


def add_digests(digests: dict[int, Digest], hashes: Ints, starts: Ints, owners: list[int]) -> None:
    """Add the parts of ``hashes`` that begin at ``starts`` to the digests of their ``owners``."""
    sums = np.add.reduceat(hashes, starts).view(np.uint64).tolist()
    sizes = np.diff(np.append(starts, len(hashes))).tolist()
    for owner, size, total in zip(owners, sizes, sums, strict=True):
        digests[owner] = digests.get(owner, Digest()).plus(Digest(size, total))


def join_digests(digests: dict[int, Digest], others: Mapping[int, Digest]) -> None:
    """Add all of ``others`` to ``digests``."""
    for owner, other in others.items():
        digests[owner] = digests.get(owner, Digest()).plus(other)


def hash_entries(
    phys: Ints, sizes: Ints, codes: Ints, offsets: Ints, topic_hashes: Ints, queue_ids: Ints
) -> Ints:
    """Return a hash of each queue entry."""
    mixed = phys * _FACTORS[0]
    mixed += sizes * _FACTORS[1]
    mixed += codes * _FACTORS[2]
    mixed += offsets * _FACTORS[3]
    mixed += topic_hashes * _FACTORS[4]
    mixed += queue_ids * _FACTORS[5]
    return _scattered(mixed)


def hash_keys(phys: Ints, key_hashes: Ints) -> Ints:
    """Return a hash of each index entry, from the hash of its key."""
    mixed = phys * _FACTORS[0]
    mixed += key_hashes * _FACTORS[1]
    return _scattered(mixed)


@lru_cache(maxsize=4096)
def text_hash(text: str) -> int:
    """Return a signed 64-bit hash of a text; different texts nearly always have different ones."""
    raw = text.encode()
    value = len(raw)
    for at in range(0, len(raw), _STEP_BYTES):
        value ^= int.from_bytes(raw[at : at + _STEP_BYTES], "little")
        value = value * _TEXT_FACTOR & _ALL
        value ^= value >> 32
    return value - (value >> 63 << 64)


def _scattered(mixed: Ints) -> Ints:
    """Mix the bits: sums of plain products would stay the same if two entries exchanged a field."""
    mixed ^= mixed >> 32
    mixed *= _FACTORS[2]
    mixed ^= mixed >> 29
    return mixed


class LateRecords:
    """Finds the physical offset from which every record was stored after a given moment.

    ``start`` is that offset, -1 if the last record was not stored after the moment. Records are
    taken in log order.
    """

    __slots__ = ("_moment_ms", "start")

    def __init__(self, moment_ms: int) -> None:
        self._moment_ms = moment_ms
        self.start = -1

    def take(self, chunk: Chunk) -> None:
        """Examine the next records."""
        early = np.flatnonzero(chunk.store_ms <= self._moment_ms)
        first = 0
        if len(early):
            self.start, first = -1, int(early[-1]) + 1
        if self.start < 0 and first < len(chunk):
            self.start = int(chunk.places[first])


class Summing:
    """Totals over records, computed while they are read."""

    __slots__ = ("_entries", "_first_ms", "_keys", "_last_ms", "_records")

    def __init__(self) -> None:
        self._records = 0
        self._first_ms = self._last_ms = -1
        self._entries = self._keys = Digest()

    def take(self, chunk: Chunk) -> None:
        """Add the next records."""
        entries, keys = hashes_of(chunk)
        takes = chunk.takes_place
        self._entries = self._entries.plus(digest_of(entries if takes.all() else entries[takes]))
        self._keys = self._keys.plus(digest_of(keys))
        first_ms, last_ms = int(chunk.store_ms.min()), int(chunk.store_ms.max())
        self._first_ms = min(first_ms, self._first_ms) if self._records else first_ms
        self._last_ms = max(last_ms, self._last_ms)
        self._records += len(chunk)

    def summary(self) -> Summary:
        """Return the totals."""
        return Summary(self._records, self._first_ms, self._last_ms, *self._entries, *self._keys)


def hashes_of(chunk: Chunk) -> tuple[Ints, Ints]:
    """Return the hashes of the records' queue entries, and those of their index entries."""
    entries = hash_entries(
        chunk.places, chunk.sizes, chunk.tag_codes, chunk.queue_offsets,
        chunk.of_queues(text_hash(topic) for topic, _ in chunk.queues),
        chunk.of_queues(queue_id for _, queue_id in chunk.queues),
    )  # fmt: skip
    return entries, hash_keys(chunk.places[chunk.key_rows], chunk.key_hashes)


def read_sums(
    files: Files, path: str, base: int, size_bytes: int, moment_ms: int, delay_levels: str
) -> FileSums:
    """Read a log file and compute its checksums and totals. Raises OSError."""
    walk = LogWalk(files, path, base, size_bytes, delay_levels_ms(delay_levels), wants_sums=True)
    late = LateRecords(moment_ms)
    summing = Summing()
    bad = ""
    for chunk in walk:
        late.take(chunk)
        summing.take(chunk)
        if not bad and (rows := chunk.bad_bodies()):
            offset = int(chunk.places[rows[0]])
            bad = f"the body of the record at offset {offset} does not match its CRC"
    if walk.gaps:
        bad = f"no record at offset {walk.gaps[0].start}: {walk.gaps[0].problem}"
    elif not walk.closed and not bad:
        bad = f"the log ends inside it, at offset {walk.end}"
    return FileSums(bytes(walk.sums), summing.summary(), bad, late.start)


def main(words: Sequence[str]) -> int:
    """Read the file given by the arguments ``words`` and print the result."""
    path, base, size_bytes, moment_ms, delay_levels = words
    found = read_sums(
        ReadOnlyFiles(), path, int(base), int(size_bytes), int(moment_ms), delay_levels
    )
    sys.stdout.buffer.write(msgspec.json.encode(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
