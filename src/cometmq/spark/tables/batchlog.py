"""Logs of the files of a table: those that batches add, and those that were replaced by joining
small files of a Parquet table.

    _batches/QUERY/00000012.json       the files of batch 12
    _batches/QUERY/00000099.all.json   those of all batches up to 99
    _replaced/00000003.json            after the third exchange: the files that were replaced, and
                                       the files that hold their rows

A batch is in the table once its log file exists, and a log file appears atomically. Each query has
its own folder, so any number of queries can append to a table without conflicts. Every FOLD
batches, the log files of all batches are folded into one, and the single ones are removed.

Batches only add files, so queries can write at the same time. Files are exchanged atomically when a
file of ``_replaced`` appears; the newest one counts. Replaced files are kept until the next
exchange, for readers that still use them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from cometmq.core.errors import CometError
from cometmq.spark.tables.sink import NO_BATCH, Mark

if TYPE_CHECKING:
    from cometmq.spark.tables.folders import Folder

_REPLACED: Final = "_replaced"


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
    names = [name for name in folder.names(_REPLACED) if name.endswith(".json")]
    if not names:
        return Replaced()
    return msgspec.json.decode(folder.read(f"{_REPLACED}/{names[-1]}"), type=Replaced)


def exchange(folder: Folder, before: Replaced, gone: list[str], stands: list[Stand]) -> bool:
    """Replace the files ``gone`` by ``stands``. Return False if another process exchanged files
    since ``before`` was read."""
    dropped = set(gone)
    kept = [stand for stand in before.stands if stand.name not in dropped]
    found = Replaced(before.number + 1, sorted({*before.gone, *gone}), [*kept, *stands])
    return folder.publish(f"{_REPLACED}/{found.number:08}.json", msgspec.json.encode(found))


FOLD: Final = 100
_ROOT: Final = "_batches"
_NAME: Final = re.compile(r"(\d+)(\.all)?\.json")
_READ_TRIES: Final = 5
_T = TypeVar("_T")


class LogUnreadable(CometError):
    """Raised if a file of the log was damaged on disk. The files that it listed are unknown."""

    def __init__(self, url: str, problem: str) -> None:
        self.url = url
        super().__init__(f"{url} is not an entry of a table's log: {problem}")


class DataFile(msgspec.Struct, frozen=True):
    """A file of the table, by its path in the table's folder."""

    name: str
    size_bytes: int


class Batch(msgspec.Struct, frozen=True):
    """The files of a batch; empty if it had no rows."""

    number: int
    files: list[DataFile]


class BatchLog:
    """The log of the table in a folder."""

    def __init__(self, folder: Folder, fold: int = FOLD) -> None:
        self._folder = folder
        self._fold = fold

    def last(self, query: str) -> int:
        """Return the highest batch of a query, NO_BATCH before its first."""
        return max((number for number, _, _ in self._entries(query)), default=NO_BATCH)

    def queries(self) -> list[str]:
        """Return all queries that ever wrote."""
        return self._folder.names(_ROOT)

    def batches(self, query: str) -> list[Batch]:
        """Return all batches of a query, in order. Raises LogUnreadable."""
        for tries_left in reversed(range(_READ_TRIES)):
            try:
                return self._batches(query)
            except FileNotFoundError:
                # It was folded between listing and reading.
                if not tries_left:
                    raise
        raise AssertionError

    def files(self) -> list[DataFile]:
        """Return the files of the table, with joined files in place of the ones they replace."""
        # Read this first: a file that is joined in the meantime then still counts, and still
        # exists.
        replaced = current(self._folder)
        gone = set(replaced.gone)
        stands = [DataFile(stand.name, stand.size_bytes) for stand in replaced.stands]
        return stands + [
            file
            for query in self.queries()
            for batch in self.batches(query)
            for file in batch.files
            if file.name not in gone
        ]

    def commit(self, mark: Mark, files: list[DataFile]) -> bool:
        """Add a batch. Return False if it already exists."""
        data = msgspec.json.encode(Batch(mark.batch, files))
        if not self._folder.publish(f"{_ROOT}/{mark.query}/{mark.batch:08}.json", data):
            return False
        if mark.batch % self._fold == self._fold - 1:
            self._fold_up_to(mark)
        return True

    def _fold_up_to(self, mark: Mark) -> None:
        entries = self._entries(mark.query)
        data = msgspec.json.encode(self._batches(mark.query))
        self._folder.publish(f"{_ROOT}/{mark.query}/{mark.batch:08}.all.json", data)
        for _, _, name in entries:
            self._folder.remove(name)

    def _entries(self, query: str) -> list[tuple[int, bool, str]]:
        """Return number, whether it includes all earlier batches, and name of each log file."""
        place = f"{_ROOT}/{query}"
        known = ((name, _NAME.fullmatch(name)) for name in self._folder.names(place))
        return sorted(
            (int(match[1]), match[2] is not None, f"{place}/{name}")
            for name, match in known
            if match
        )

    def _batches(self, query: str) -> list[Batch]:
        entries = self._entries(query)
        start = max((number for number, is_all, _ in entries if is_all), default=NO_BATCH)
        found: list[Batch] = []
        for number, is_all, name in entries:
            if number == start and is_all:
                found += self._read(name, list[Batch])
            elif number > start:
                found.append(self._read(name, Batch))
        return sorted(found, key=lambda batch: batch.number)

    def _read(self, name: str, kind: type[_T]) -> _T:
        try:
            return msgspec.json.decode(self._folder.read(name), type=kind)
        except msgspec.MsgspecError as error:
            raise LogUnreadable(self._folder.url(name), str(error)) from None
