"""Child process that reads one full log file slowly and computes the CRC of each block.

    python -m cometmq.store.tools.blocksums PATH SIZE BYTES_PER_S

writes the CRCs to standard output, in the format of seals (checksums.py). A broker starts it
(scrub.py) and gives it the lowest priority. The process reads at most BYTES_PER_S and leaves the
page cache as it was.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cometmq.core.clock import SystemClock
from cometmq.store.files import ReadOnlyFiles
from cometmq.store.log.checksums import BLOCK_BYTES, sums_of

if TYPE_CHECKING:
    from cometmq.core.clock import Clock

_PIECE_BYTES = 8 * BLOCK_BYTES
_NO_SUM = bytes(4)


async def read_block_sums(
    files: ReadOnlyFiles, clock: Clock, path: str, size_bytes: int, bytes_per_s: int
) -> bytes:
    """Read a log file at ``bytes_per_s`` and return the CRC of each block.

    A block that cannot be read gets the CRC of no bytes. Raises OSError if the file cannot be
    opened.
    """
    handle = files.open(path)
    try:
        sums: list[bytes] = []
        begun_ms = clock.monotonic_ms()
        for at in range(0, size_bytes, _PIECE_BYTES):
            stop = min(at + _PIECE_BYTES, size_bytes)
            sums += [
                _sum_of(files, handle, block, min(BLOCK_BYTES, stop - block))
                for block in range(at, stop, BLOCK_BYTES)
            ]
            due_ms = begun_ms + stop * 1_000 // bytes_per_s
            await clock.sleep_ms(max(0, due_ms - clock.monotonic_ms()))
        return b"".join(sums)
    finally:
        files.close(handle)


def _sum_of(files: ReadOnlyFiles, handle: int, offset: int, size_bytes: int) -> bytes:
    block = memoryview(bytearray(size_bytes))
    try:
        found = files.read_cached(handle, block, offset)
        if found < size_bytes:
            found = files.read_into(handle, block, offset)
            files.drop_cached(handle, offset, size_bytes)
    except OSError:
        found = 0
    return sums_of(block[:found]) or _NO_SUM


def main(words: Sequence[str]) -> int:
    """Read the file given by the arguments ``words`` and write the CRCs."""
    path, size_bytes, bytes_per_s = words
    reading = read_block_sums(
        ReadOnlyFiles(), SystemClock(), path, int(size_bytes), int(bytes_per_s)
    )
    sys.stdout.buffer.write(asyncio.run(reading))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
