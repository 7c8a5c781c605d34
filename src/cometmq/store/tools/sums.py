"""Child process that reads one full log file and computes the data of its seal.

    python -m cometmq.store.tools.sums PATH BASE SIZE MOMENT_MS DELAY_LEVELS

prints one JSON object, a ``FileSums`` (checksums.py). BASE is the physical offset of the file,
MOMENT_MS the time that ``late_from`` refers to, DELAY_LEVELS the setting messageDelayLevel. A
broker starts it (checksumming.py), because a thread that runs Python code would delay the event
loop. The broker gives it the lowest priority. It changes no files.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from cometmq.store.config import delay_levels_ms
from cometmq.store.files import ReadOnlyFiles
from cometmq.store.log.checksums import FileSums, Summary
from cometmq.store.tools.digest import Digest, mix_entries, mix_keys, of
from cometmq.store.tools.logfile import Chunk, LogWalk
from cometmq.store.tools.queues import text_code

if TYPE_CHECKING:
    from cometmq.message.walk import Ints
    from cometmq.store.files import Files


class LateRecords:
    """Finds the offset from which on every record was stored after a given moment.

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
        entries, keys = mixed_of(chunk)
        takes = chunk.takes_place
        self._entries = self._entries.plus(of(entries if takes.all() else entries[takes]))
        self._keys = self._keys.plus(of(keys))
        first_ms, last_ms = int(chunk.store_ms.min()), int(chunk.store_ms.max())
        self._first_ms = min(first_ms, self._first_ms) if self._records else first_ms
        self._last_ms = max(last_ms, self._last_ms)
        self._records += len(chunk)

    def summary(self) -> Summary:
        """Return the totals."""
        return Summary(self._records, self._first_ms, self._last_ms, *self._entries, *self._keys)


def mixed_of(chunk: Chunk) -> tuple[Ints, Ints]:
    """Return the numbers (digest.py) of the records' queue entries and of their index entries."""
    entries = mix_entries(
        chunk.places, chunk.sizes, chunk.tag_codes, chunk.queue_offsets,
        chunk.of_queues(text_code(topic) for topic, _ in chunk.queues),
        chunk.of_queues(queue_id for _, queue_id in chunk.queues),
    )  # fmt: skip
    return entries, mix_keys(chunk.places[chunk.key_rows], chunk.key_hashes)


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
