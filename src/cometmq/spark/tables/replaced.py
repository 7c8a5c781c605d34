"""Which files of a Parquet table others stand in for: what joining small files leaves.

    _replaced/00000003.json      after the third time: the files that no longer count, and those
                                 that hold their rows now

Batches only ever add files (batchlog.py), so queries go on writing meanwhile: files are exchanged
in one step, when a file of this log appears, and the newest one counts. Files that were replaced
stay until the next time, for those who read them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from cometmq.spark.tables.folders import Folder

_ROOT: Final = "_replaced"


class Stand(msgspec.Struct, frozen=True):
    """A file that stands in for others, by its place in the table's folder."""

    name: str
    size_bytes: int


class Replaced(msgspec.Struct, frozen=True):
    """``gone`` are files of batches that do not count, ``stands`` those that do instead of them;
    ``number`` is how often files were exchanged."""

    number: int = 0
    gone: list[str] = []
    stands: list[Stand] = []


def current(folder: Folder) -> Replaced:
    """What holds now."""
    names = [name for name in folder.names(_ROOT) if name.endswith(".json")]
    if not names:
        return Replaced()
    return msgspec.json.decode(folder.read(f"{_ROOT}/{names[-1]}"), type=Replaced)


def exchange(folder: Folder, before: Replaced, gone: list[str], stands: list[Stand]) -> bool:
    """Let ``stands`` count in the place of ``gone``; False when somebody else exchanged files since
    ``before`` was read."""
    dropped = set(gone)
    kept = [stand for stand in before.stands if stand.name not in dropped]
    found = Replaced(before.number + 1, sorted({*before.gone, *gone}), [*kept, *stands])
    return folder.publish(f"{_ROOT}/{found.number:08}.json", msgspec.json.encode(found))
