"""Erasure of messages in an archive, for the jobs compact and redact. Files with selected rows are
replaced by files with the same rows, in which the selected rows have no content
(message/tombstone.py).

A row keeps its topic, queue, offsets, times and size. The files are exchanged in one atomic step,
and the replaced files are deleted right after it. A run that is killed before the exchange changes
nothing. If a run is killed later, the next run deletes the replaced files of a Parquet archive, and
reports those of a Delta archive as ``left``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import unquote
from uuid import uuid4

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from cometmq.core.errors import CometError
from cometmq.message.record import COMPRESSED, COMPRESSION_MASK
from cometmq.message.tombstone import ERASED, KEPT
from cometmq.spark.jobs.archive import SEARCHABLE, CountDiffers, balanced
from cometmq.spark.jobs.inputs import kind_of
from cometmq.spark.jobs.job import Progress, progress_reported
from cometmq.spark.options import BadOption
from cometmq.spark.tables.datafiles import DATA, Folder, StoredFile, folder_at, write_files
from cometmq.spark.tables.parquet import (
    BatchLog,
    DataFile,
    replace_files,
    replaced_files,
    schema_at,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession
    from pyspark.sql.types import StructType

SELECTED: Final = "_cometmq_selected"
"""Boolean column that a selection adds to the rows of an archive."""
_FILE: Final = "_cometmq_file"
_BATCH_FOLDER: Final = "batch="

Change = Callable[[DataFrame], DataFrame]
"""Function that changes or adds columns, and keeps the number of rows."""


class ArchiveChanged(CometError):
    """Raised if another run replaced files of the archive in the meantime; nothing was erased."""

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(f"another run has replaced files of {path} in the meantime: run it again")


@dataclass(frozen=True, slots=True)
class TopicErasure:
    """The number of selected messages of a topic, and of the files that contain them."""

    topic: str
    messages: int
    files: int


@dataclass(frozen=True, slots=True)
class Erased:
    """Result of an erasure: the topics with selected messages, and the number of files to replace.

    ``left`` are data files in the folder that do not belong to the archive: those of unfinished
    runs, and those that Delta keeps for earlier versions.
    """

    topics: tuple[TopicErasure, ...]
    files: int
    left: tuple[str, ...]

    @property
    def messages(self) -> int:
        """Number of selected messages."""
        return sum(topic.messages for topic in self.topics)


class ArchiveFiles(Protocol):
    """The files of an archive, listed when the object is created."""

    spark: SparkSession
    folder: Folder
    schema: StructType
    names: list[str]

    def rows(self, names: Sequence[str]) -> DataFrame:
        """Return the rows of files, with the path of each row's file in the column _FILE."""

    def exchange(self, gone: Sequence[str], made: Sequence[StoredFile]) -> bool:
        """Replace the files ``gone`` by ``made`` atomically. Return False if another run has
        replaced one of them."""

    def outdated(self) -> list[str]:
        """Return the names of files that were replaced in earlier versions and still exist."""

    def log_entries_with(self, texts: Sequence[str]) -> list[str]:
        """Return the names of log entries that contain one of the texts, such as a column's
        bound."""


class _ParquetFiles:
    """The files of a Parquet archive."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.spark = spark
        self.folder = folder_at(path, spark)
        self._before = replaced_files(self.folder)
        self._sizes = {file.name: file.size_bytes for file in BatchLog(self.folder).files()}
        try:
            self.schema = schema_at(self.folder)
        except FileNotFoundError:
            raise BadOption("target", f"there is no archive at {path}") from None
        self.names = [*self._sizes]

    def rows(self, names: Sequence[str]) -> DataFrame:
        return _read(self.spark, self.folder, self.schema, names, self.folder.url(DATA))

    def exchange(self, gone: Sequence[str], made: Sequence[StoredFile]) -> bool:
        files = [DataFile(file.name, file.size_bytes) for file in made]
        return replace_files(self.folder, self._before, list(gone), files)

    def outdated(self) -> list[str]:
        gone = set(replaced_files(self.folder).gone) - {
            file.name for file in BatchLog(self.folder).files()
        }
        return [file.name for file in self.folder.files(DATA) if file.name in gone]

    def log_entries_with(self, texts: Sequence[str]) -> list[str]:
        return []


class _DeltaFiles:
    """The files of a Delta archive."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        from cometmq.spark.tables.delta import DeltaLakeTable

        self.spark = spark
        self._table = DeltaLakeTable(path)
        self.folder = folder_at(path, spark)
        self.schema = self._table.schema(spark)
        self.names = self._table.names(spark)

    def rows(self, names: Sequence[str]) -> DataFrame:
        root = self.folder.url("").rstrip("/")
        of_batches = [name for name in names if name.startswith(f"{DATA}/")]
        others = [name for name in names if not name.startswith(f"{DATA}/")]
        parts = [
            _read(self.spark, self.folder, self.schema, some, base)
            for some, base in ((of_batches, f"{root}/{DATA}"), (others, root))
            if some
        ]
        return reduce(DataFrame.unionByName, parts)

    def exchange(self, gone: Sequence[str], made: Sequence[StoredFile]) -> bool:
        return self._table.exchange(self.spark, gone, made)

    def outdated(self) -> list[str]:
        return []

    def log_entries_with(self, texts: Sequence[str]) -> list[str]:
        wanted = [text.encode() for text in texts]
        entries = [f"_delta_log/{name}" for name in self.folder.names("_delta_log")]
        return [
            name
            for name in entries
            if name.endswith(".json") and _has_any(self.folder.read(name), wanted)
        ]


def _has_any(data: bytes, texts: Sequence[bytes]) -> bool:
    return any(text in data for text in texts)


def files_of(spark: SparkSession, path: str) -> ArchiveFiles:
    """Return the files of the archive at ``path``. Raises BadOption if there is none."""
    kind = kind_of(spark, path)
    if kind == "iceberg":
        raise BadOption("archive", f"{path} is an Iceberg table: this needs Parquet or Delta")
    if kind == "delta":
        return _DeltaFiles(spark, path)
    return _ParquetFiles(spark, path)


def _read(
    spark: SparkSession, folder: Folder, schema: StructType, names: Sequence[str], base: str
) -> DataFrame:
    reader = spark.read.schema(schema).option("basePath", base)
    rows = reader.parquet(*(folder.url(name) for name in names))
    return rows.select(*schema.names, f.col("_metadata.file_path").alias(_FILE))


def erase(
    files: ArchiveFiles,
    path: str,
    select: Change,
    content_erased: Change,
    *,
    file_bytes: int,
    in_place: bool,
    progress: Progress,
) -> Erased:
    """Erase the selected rows of an archive, or only count them.

    ``select`` adds the column SELECTED. ``content_erased`` removes the content of selected rows,
    and the column SELECTED. ``path`` is the archive's. Raises ArchiveChanged, CountDiffers.
    """
    if not files.names:
        return Erased((), 0, _unknown(files))
    if in_place:
        for name in files.outdated():
            files.folder.remove(name)
    with progress_reported(files.spark, "search", progress):
        found = (
            select(files.rows(files.names)).where(SELECTED)
            .groupBy("topic", _FILE).agg(f.count("*").alias("messages")).collect()
        )  # fmt: skip
    gone = sorted({_name_of(files.folder, row[_FILE]) for row in found})
    topics = tuple(
        TopicErasure(
            topic, sum(row.messages for row in found if row.topic == topic),
            sum(row.topic == topic for row in found),
        )
        for topic in sorted({row.topic for row in found})
    )  # fmt: skip
    if in_place and gone:
        with progress_reported(files.spark, "erase", progress):
            _replace(files, path, gone, lambda rows: content_erased(select(rows)), file_bytes)
    return Erased(topics, len(gone), _unknown(files_of(files.spark, path) if in_place else files))


def _replace(
    files: ArchiveFiles, path: str, gone: list[str], change: Change, file_bytes: int
) -> None:
    """Write the files ``gone`` again with ``change`` applied, exchange them, and delete the old
    ones."""
    folders = [part.partition("=")[0] for part in _partition(gone[0])]
    # Named like an attempt at a batch, so that the table's own cleanup recognizes it.
    attempt = f"{_BATCH_FOLDER}00000000-erased-{uuid4().hex[:8]}"
    rows = files.rows(gone)
    changed = change(rows).select(*files.schema.names)
    made = write_files(
        balanced(changed, folders, file_bytes), files.folder, attempt, folders, SEARCHABLE
    )
    read, written = rows.count(), files.rows([file.name for file in made]).count()
    if read != written or not files.exchange(gone, made):
        files.folder.remove(f"{DATA}/{attempt}")
        if read != written:
            raise CountDiffers(path, read, written)
        raise ArchiveChanged(path)
    for name in gone:
        files.folder.remove(name)


def _partition(name: str) -> list[str]:
    """Return the folders in a file's name that have the values of partition columns."""
    folders = name.split("/")[:-1]
    return [part for part in folders if "=" in part and not part.startswith(_BATCH_FOLDER)]


def _name_of(folder: Folder, url: str) -> str:
    """Return a file's name relative to the folder, from the URL by which Spark names the file."""
    root = folder.url("").partition(":")[2].strip("/")
    return unquote(url).partition(":")[2].lstrip("/").removeprefix(f"{root}/")


def _unknown(files: ArchiveFiles) -> tuple[str, ...]:
    """Return the data files in the folder that do not belong to the archive."""
    known = set(files.names)
    found = [file.name for file in files.folder.files("") if file.name.endswith(".parquet")]
    return tuple(name for name in found if name not in known and not name.startswith("_"))


def without_content(cause: str, keys: Sequence[str], schema: StructType) -> Change:
    """Return a function that removes the content of selected rows of a table with this schema.

    ``cause`` is recorded in the property ERASED. Message ids and property values that are one of
    ``keys`` are removed too. Columns that may not be null become empty.
    """

    def no_text(name: str) -> Column:
        nullable = name not in schema.names or schema[name].nullable
        return f.lit(None if nullable else "").cast("string")

    def change(rows: DataFrame) -> DataFrame:
        is_named = f.coalesce(f.col("msg_id").isin(*keys), f.lit(False))
        values = {
            "msg_id": f.when(is_named, no_text("msg_id")).otherwise(f.col("msg_id")),
            "keys": no_text("keys"),
            "tags": no_text("tags"),
            "body": f.lit("").cast("binary"),
            "properties": _kept_properties(cause, keys),
            "sys_flag": f.col("sys_flag").bitwiseAND(~(COMPRESSED | COMPRESSION_MASK)),
            "flag": f.lit(0),
            "body_crc": f.lit(0),
        }
        if not keys:
            del values["msg_id"]
        columns = [
            f.when(f.col(SELECTED), values[name]).otherwise(f.col(name)).alias(name)
            if name in values
            else f.col(name)
            for name in rows.columns
            if name != SELECTED
        ]
        return rows.select(*columns)

    return change


def _kept_properties(cause: str, keys: Sequence[str]) -> Column:
    def is_kept(name: Column, value: Column) -> Column:
        kept = name.isin(*sorted(KEPT))
        return kept & ~value.isin(*keys) if keys else kept

    nothing = f.expr("cast(map() as map<string,string>)")
    kept = f.map_filter(f.coalesce(f.col("properties"), nothing), is_kept)
    return f.map_concat(kept, f.create_map(f.lit(ERASED), f.lit(cause)))
