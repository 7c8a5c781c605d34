"""Log of the files of a Parquet table that were replaced by joining small files.

    _replaced/00000003.json      after the third exchange: the files that were replaced, and the
                                 files that hold their rows

Batches only add files (batchlog.py), so queries can write at the same time. Files are exchanged
atomically when a file of this log appears; the newest one counts. Replaced files are kept until the
next exchange, for readers that still use them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from cometmq.spark.tables.folders import Folder

_ROOT: Final = "_replaced"


class Stand(msgspec.Struct, frozen=True):
    """A file that replaces others, by its path in the table's folder."""

    name: str
    size_bytes: int


class Replaced(msgspec.Struct, frozen=True):
    """``gone`` are replaced files of batches, ``stands`` the files that replace them. ``number`` is
    the number of exchanges."""

    number: int = 0
    gone: list[str] = []
    stands: list[Stand] = []


def current(folder: Folder) -> Replaced:
    """Return the current state."""
    names = [name for name in folder.names(_ROOT) if name.endswith(".json")]
    if not names:
        return Replaced()
    return msgspec.json.decode(folder.read(f"{_ROOT}/{names[-1]}"), type=Replaced)


def exchange(folder: Folder, before: Replaced, gone: list[str], stands: list[Stand]) -> bool:
    """Replace the files ``gone`` by ``stands``. Return False if another process exchanged files
    since ``before`` was read."""
    dropped = set(gone)
    kept = [stand for stand in before.stands if stand.name not in dropped]
    found = Replaced(before.number + 1, sorted({*before.gone, *gone}), [*kept, *stands])
    return folder.publish(f"{_ROOT}/{found.number:08}.json", msgspec.json.encode(found))
