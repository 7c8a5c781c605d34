"""A process of its own that reads one full log file: what a seal needs to know of it.

    python -m cometmq.store.tools.sums PATH BASE SIZE MADE_MS

prints one JSON object, a ``FileSums`` (seals.py). A broker starts it (sealing.py), whose loop a
thread full of Python would hold up; it runs at the lowest priority and writes nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from cometmq.store.files import ReadOnlyFiles
from cometmq.store.seals import FileSums
from cometmq.store.tools.logfile import LogWalk

if TYPE_CHECKING:
    from cometmq.store.files import Files

_LOWEST_PRIORITY = 19


def read_sums(files: Files, path: str, base: int, size_bytes: int, made_ms: int) -> FileSums:
    """Read a log file. Raises OSError."""
    walk = LogWalk(files, path, base, size_bytes, wants_sums=True)
    late_from = -1
    bad = ""
    for chunk in walk:
        starts = chunk.columns.starts + chunk.base
        early = np.flatnonzero(chunk.columns.store_ms <= made_ms)
        if len(early):
            late_from = -1
            starts = starts[int(early[-1]) + 1 :]
        if late_from < 0 and len(starts):
            late_from = int(starts[0])
        if not bad and (rows := chunk.bad_bodies()):
            offset = int(chunk.columns.starts[rows[0]]) + chunk.base
            bad = f"the body of the record at offset {offset} has not the CRC that it carries"
    if walk.gaps:
        bad = f"no record at offset {walk.gaps[0].start}: {walk.gaps[0].problem}"
    elif not walk.closed and not bad:
        bad = f"the log ends in it, at offset {walk.end}"
    return FileSums(bytes(walk.sums), bad, late_from)


def main(words: Sequence[str]) -> int:
    """Read the file that ``words`` name and print what was found."""
    os.nice(_LOWEST_PRIORITY)
    path, *numbers = words
    base, size_bytes, made_ms = map(int, numbers)
    found = read_sums(ReadOnlyFiles(), path, base, size_bytes, made_ms)
    sys.stdout.buffer.write(msgspec.json.encode(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
