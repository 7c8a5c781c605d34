"""A table of Parquet files to which micro-batches are appended, each batch atomically, and the log
of its files.

    ROOT/data/batch=00000012-QUERY-ATTEMPT/...parquet   written by the executors (datafiles.py)
    ROOT/_schema.json                      the columns, as Spark's JSON
    ROOT/_batches/QUERY/00000012.json      the files of batch 12
    ROOT/_batches/QUERY/00000099.all.json  the files of all batches up to 99
    ROOT/_replaced/00000003.json           after the third exchange of files (compaction, erasure):
                                           all replaced files, and the files in place of them

A batch is in the table once its log file exists, and a log file appears atomically. Each query has
its own folder of log files, so any number of queries can append at the same time without conflicts.
Every FOLD batches, the log files of a query are folded into one, and the single ones are removed.

An exchange takes effect atomically when its file in ``_replaced`` appears; the newest one counts.
Replaced files stay until the next compaction, for readers that still use them; an erasure deletes
them at once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from cometmq.core.errors import CometError
from cometmq.spark.tables.datafiles import (
    DATA,
    Attempts,
    Folder,
    ReadFolder,
    attempt_of,
    folder_at,
    write_files,
)
from cometmq.spark.tables.sink import NO_BATCH, Mark, TableSink, fitted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


FOLD: Final = 100
SCHEMA: Final = "_schema.json"
_ROOT: Final = "_batches"
_REPLACED: Final = "_replaced"
_NAME: Final = re.compile(r"(\d+)(\.all)?\.json")
_READ_TRIES: Final = 5
_T = TypeVar("_T")


class LogUnreadable(CometError):
    """Raised if a file of the log is damaged, so that the data files in it are unknown."""

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


class Replaced(msgspec.Struct, frozen=True):
    """The state after ``number`` exchanges: ``gone`` are all replaced files, ``replacements`` are
    the files in place of them."""

    number: int = 0
    gone: list[str] = []
    replacements: list[DataFile] = msgspec.field(default_factory=list, name="stands")


class ParquetTable(TableSink):
    """The table at ``path``, any path or URL that driver and executors share.

    ``partition_by`` names columns that become folders. ``options`` are passed to Spark's Parquet
    writer (``compression``, ``maxRecordsPerFile``, ...).
    """

    def __init__(
        self,
        path: str,
        *,
        partition_by: Sequence[str] = (),
        options: Mapping[str, str] | None = None,
    ) -> None:
        self._path = path
        self._partition_by = tuple(partition_by)
        self._options = dict(options or {})
        self._attempts = Attempts()

    def __str__(self) -> str:
        return self._path

    def last(self, spark: SparkSession, query: str) -> int:
        return BatchLog(folder_at(self._path, spark)).last(query)

    def write(self, rows: DataFrame, mark: Mark) -> bool:
        """Append a batch. Return False if the table has it already. Raises ColumnsDiffer if the
        rows do not fit."""
        folder = folder_at(self._path, rows.sparkSession)
        rows = fitted(rows, _schema(folder, rows.schema), self._path)
        attempt = self._attempts.begin(mark)
        found = write_files(rows, folder, attempt, self._partition_by, self._options)
        log = BatchLog(folder)
        if not log.commit(mark, [DataFile(file.name, file.size_bytes) for file in found]):
            folder.remove(f"{DATA}/{attempt}")
            return False

        def is_dead(name: str, batch: int) -> bool:
            return batch <= mark.batch and name not in named

        named = _Named(log, mark.query)
        self._attempts.settle(folder, mark, is_dead)
        return True

    def files(self, spark: SparkSession | None = None) -> list[str]:
        """Return the URLs of the table's files. Without a session, the table must be on this
        machine."""
        folder = folder_at(self._path, spark)
        return [folder.url(file.name) for file in BatchLog(folder).files()]

    def read(self, spark: SparkSession) -> DataFrame:
        """Return the rows of all batches so far. Raises FileNotFoundError before the first
        batch."""
        folder = folder_at(self._path, spark)
        schema = schema_at(folder)
        files = self.files(spark)
        if not files:
            return spark.createDataFrame([], schema)
        reader = spark.read.schema(schema).option("basePath", folder.url(DATA))
        return reader.parquet(*files).select(*(f"`{name}`" for name in schema.names))

    def clean(self, spark: SparkSession | None = None) -> list[str]:
        """Remove the files of crashed attempts of queries that will not run again.

        Return the names of the removed folders. No query may be writing to the table at the same
        time.
        """
        folder = folder_at(self._path, spark)
        named = {attempt_of(file.name) for file in BatchLog(folder).files()}
        left = [name for name in folder.names(DATA) if name not in named]
        for name in left:
            folder.remove(f"{DATA}/{name}")
        return left


class _Named:
    """The attempts named in a query's log, read on first use."""

    def __init__(self, log: BatchLog, query: str) -> None:
        self._log = log
        self._query = query
        self._names: set[str] | None = None

    def __contains__(self, name: str) -> bool:
        if self._names is None:
            batches = self._log.batches(self._query)
            self._names = {attempt_of(file.name) for batch in batches for file in batch.files}
        return name in self._names


def _schema(folder: Folder, schema: StructType) -> StructType:
    """Return the table's columns. For a new table, store ``schema`` as its columns."""
    try:
        return schema_at(folder)
    except FileNotFoundError:
        folder.publish(SCHEMA, schema.json().encode())
        return schema


def schema_at(folder: Folder) -> StructType:
    """Return the columns of the table in a folder. Raises FileNotFoundError before its first
    batch."""
    from pyspark.sql.types import StructType

    return StructType.fromJson(msgspec.json.decode(folder.read(SCHEMA), type=dict[str, Any]))


class WrittenLog:
    """Reads the log of the table in a folder."""

    def __init__(self, folder: ReadFolder) -> None:
        self._folder = folder

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
                # The log was folded between listing and reading: list it again.
                if not tries_left:
                    raise
        raise AssertionError

    def files(self) -> list[DataFile]:
        """Return the files of the table, with replacements in place of replaced files."""
        # Read this first: a file that is replaced in the meantime is then still listed, and it
        # still exists.
        replaced = replaced_files(self._folder)
        gone = set(replaced.gone)
        return replaced.replacements + [
            file
            for query in self.queries()
            for batch in self.batches(query)
            for file in batch.files
            if file.name not in gone
        ]

    def _entries(self, query: str) -> list[tuple[int, bool, str]]:
        """Return for each log file its batch number, whether it includes all earlier batches, and
        its name."""
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


class BatchLog(WrittenLog):
    """Reads and extends the log of the table in a folder."""

    def __init__(self, folder: Folder, fold: int = FOLD) -> None:
        super().__init__(folder)
        self._target = folder
        self._fold = fold

    def commit(self, mark: Mark, files: list[DataFile]) -> bool:
        """Add a batch. Return False if it already exists."""
        data = msgspec.json.encode(Batch(mark.batch, files))
        if not self._target.publish(f"{_ROOT}/{mark.query}/{mark.batch:08}.json", data):
            return False
        if mark.batch % self._fold == self._fold - 1:
            self._fold_up_to(mark)
        return True

    def _fold_up_to(self, mark: Mark) -> None:
        entries = self._entries(mark.query)
        data = msgspec.json.encode(self._batches(mark.query))
        self._target.publish(f"{_ROOT}/{mark.query}/{mark.batch:08}.all.json", data)
        for _, _, name in entries:
            self._target.remove(name)


def replaced_files(folder: ReadFolder) -> Replaced:
    """Return the state after the newest exchange of files."""
    names = [name for name in folder.names(_REPLACED) if name.endswith(".json")]
    if not names:
        return Replaced()
    return msgspec.json.decode(folder.read(f"{_REPLACED}/{names[-1]}"), type=Replaced)


def replace_files(
    folder: Folder, before: Replaced, gone: list[str], replacements: list[DataFile]
) -> bool:
    """Replace the files ``gone`` by ``replacements``. Return False, and change nothing, if another
    process exchanged files since ``before`` was read."""
    dropped = set(gone)
    kept = [file for file in before.replacements if file.name not in dropped]
    found = Replaced(before.number + 1, sorted({*before.gone, *gone}), [*kept, *replacements])
    return folder.publish(f"{_REPLACED}/{found.number:08}.json", msgspec.json.encode(found))
