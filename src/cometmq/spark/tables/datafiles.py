"""The files of a table: its folder, on any file system that Spark can write to, and the data files
of an attempt at a batch. Executors write them before a commit adds them to the table.

    LocalFolder    a path of this machine, or one that all machines mount
    HadoopFolder   any other URL that Spark knows (hdfs, s3a, abfs, ...), through its JVM

Names are relative to the folder and separated by ``/``.

    ROOT/data/batch=00000012-QUERY-ATTEMPT/...parquet

Every attempt has its own folder. Two drivers of one query, each of which considers itself the
active one, therefore cannot touch each other's files. The files of failed attempts are removed
after the query's next batch, when they can no longer be committed.
"""

from __future__ import annotations

import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from cometmq.spark.tables.sink import context_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from cometmq.spark.tables.sink import Mark

DATA: Final = "data"
_ATTEMPT: Final = re.compile(r"batch=(\d+)-(.+)-[0-9a-f]{8}")

#: Timestamps as INT64: few other readers support INT96, Spark's default, which has no statistics.
_TIMESTAMPS: Final = ("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")


class StoredFile(NamedTuple):
    """A file: its name within the folder, its size, and its modification time (wall clock)."""

    name: str
    size_bytes: int
    modified_ms: int


class ReadFolder(Protocol):
    """The operations on the folder of a table that a reader of its log needs. A missing folder
    lists as empty; reading a missing file raises FileNotFoundError."""

    def url(self, name: str) -> str:
        """Return the URL of a file or folder in this one, for Spark or for an error."""

    def names(self, name: str) -> list[str]:
        """Return the names of the entries of a folder, without the path, sorted."""

    def read(self, name: str) -> bytes:
        """Return a file's bytes."""


class Folder(ReadFolder, Protocol):
    """All operations on the folder of a table."""

    def files(self, name: str) -> list[StoredFile]:
        """Return all files below a folder, at any depth, sorted by name."""

    def read_end(self, name: str, count: int) -> bytes:
        """Return the last ``count`` bytes of a file, or all bytes of a shorter one."""

    def publish(self, name: str, data: bytes) -> bool:
        """Create a file atomically. Return False, and do nothing, if it already exists.

        If two callers do this at the same moment, both may get True; the file of one of them stays.
        """

    def remove(self, name: str) -> None:
        """Remove a file, or a folder with its contents."""


class LocalFolder:
    """A folder of this machine's file system."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()

    def url(self, name: str) -> str:
        # Do not percent-encode: Spark takes the path literally, and escapes partition values
        # itself.
        return f"file://{(self._root / name).as_posix()}"

    def names(self, name: str) -> list[str]:
        folder = self._root / name
        return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []

    def files(self, name: str) -> list[StoredFile]:
        found = []
        for path in sorted((self._root / name).rglob("*")):
            if path.is_file():
                stat = path.stat()
                place = path.relative_to(self._root).as_posix()
                found.append(StoredFile(place, stat.st_size, int(stat.st_mtime * 1000)))
        return found

    def read(self, name: str) -> bytes:
        return (self._root / name).read_bytes()

    def read_end(self, name: str, count: int) -> bytes:
        with (self._root / name).open("rb") as opened:
            opened.seek(max(0, opened.seek(0, os.SEEK_END) - count))
            return opened.read()

    def publish(self, name: str, data: bytes) -> bool:
        target = self._root / name
        if target.exists():
            return False
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = target.with_name(_unfinished(target.name))
        unfinished.write_bytes(data)
        unfinished.replace(target)
        return True

    def remove(self, name: str) -> None:
        path = self._root / name
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


class HadoopFolder:
    """A folder of a file system that the JVM of a Spark session can access."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        jvm, conf = _hadoop(spark)
        self._path = jvm.org.apache.hadoop.fs.Path
        path = self._path(root)
        self._files = path.getFileSystem(conf)
        self._root = str(self._files.makeQualified(path).toString()).rstrip("/")

    def url(self, name: str) -> str:
        return f"{self._root}/{name}"

    def names(self, name: str) -> list[str]:
        folder = self._at(name)
        if not self._files.exists(folder):
            return []
        return sorted(str(status.getPath().getName()) for status in self._files.listStatus(folder))

    def files(self, name: str) -> list[StoredFile]:
        folder = self._at(name)
        if not self._files.exists(folder):
            return []
        found = []
        remaining = self._files.listFiles(folder, True)
        while remaining.hasNext():
            status = remaining.next()
            place = str(status.getPath().toString())[len(self._root) + 1 :]
            modified_ms = int(status.getModificationTime())
            found.append(StoredFile(place, int(status.getLen()), modified_ms))
        return sorted(found)

    def read(self, name: str) -> bytes:
        return self._read_from(name, 0)

    def read_end(self, name: str, count: int) -> bytes:
        if not self._files.exists(self._at(name)):
            raise FileNotFoundError(self.url(name))
        size_bytes = int(self._files.getFileStatus(self._at(name)).getLen())
        return self._read_from(name, max(0, size_bytes - count))

    def _read_from(self, name: str, at: int) -> bytes:
        if not self._files.exists(self._at(name)):
            raise FileNotFoundError(self.url(name))
        stream = self._files.open(self._at(name))
        try:
            stream.seek(at)
            return bytes(stream.readAllBytes())
        finally:
            stream.close()

    def publish(self, name: str, data: bytes) -> bool:
        target = self._at(name)
        if self._files.exists(target):
            return False
        parent, _, last = name.rpartition("/")
        unfinished = self._at(f"{parent}/{_unfinished(last)}")
        stream = self._files.create(unfinished, True)
        try:
            stream.write(bytearray(data))
        finally:
            stream.close()
        done = bool(self._files.rename(unfinished, target))
        if not done:
            self._files.delete(unfinished, False)
        return done

    def remove(self, name: str) -> None:
        self._files.delete(self._at(name), True)

    def _at(self, name: str) -> Any:
        return self._path(self.url(name))


def folder_at(path: str, spark: SparkSession | None = None) -> Folder:
    """Return the folder at a path or URL as Spark interprets it, or, without a session, at a path
    of this machine. Raises ClassicSessionNeeded."""
    if spark is None:
        return LocalFolder(Path(path.removeprefix("file://")))
    jvm, conf = _hadoop(spark)
    found = jvm.org.apache.hadoop.fs.Path(path)
    uri = found.getFileSystem(conf).makeQualified(found).toUri()
    if uri.getScheme() == "file":
        return LocalFolder(Path(str(uri.getPath())))
    return HadoopFolder(spark, path)


def _hadoop(spark: SparkSession) -> tuple[Any, Any]:
    context = context_of(spark)
    return context._jvm, context._jsc.hadoopConfiguration()


def _unfinished(name: str) -> str:
    """Return the name of a temporary file next to the target. Readers ignore names that begin with
    a dot."""
    return f"._{name}.{uuid.uuid4().hex[:8]}"


class Attempts:
    """Names the attempts of one sink in this process, and removes the files of failed ones."""

    def __init__(self) -> None:
        #: Queries whose last attempt was committed, and queries that may have a failed attempt.
        self._settled: set[str] = set()
        self._unsure: set[str] = set()

    def begin(self, mark: Mark) -> str:
        """Return the name of a new attempt."""
        if mark.query not in self._settled:
            self._unsure.add(mark.query)
        self._settled.discard(mark.query)
        return f"batch={mark.batch:08}-{mark.query}-{uuid.uuid4().hex[:8]}"

    def settle(self, folder: Folder, mark: Mark, is_dead: Callable[[str, int], bool]) -> None:
        """Remove the failed attempts of the query, after its batch ``mark`` was committed.

        ``is_dead`` tells from name and batch whether an attempt can no longer be committed. The
        folder is listed only if an attempt may have failed: in this process, or in an earlier one.
        """
        if mark.query in self._unsure:
            for name in folder.names(DATA):
                known = _ATTEMPT.fullmatch(name)
                if known and known[2] == mark.query and is_dead(name, int(known[1])):
                    folder.remove(f"{DATA}/{name}")
            self._unsure.discard(mark.query)
        self._settled.add(mark.query)


def write_files(
    rows: DataFrame,
    folder: Folder,
    attempt: str,
    partition_by: Sequence[str],
    options: Mapping[str, str],
) -> list[StoredFile]:
    """Write rows as Parquet, on the executors, and return the files of the attempt.

    A failed task leaves no files, because Spark moves files into place when their task is done.
    """
    name = f"{DATA}/{attempt}"
    with _setting(rows.sparkSession, *_TIMESTAMPS):
        writer = rows.write.mode("errorifexists").options(**options)
        if partition_by:
            writer = writer.partitionBy(*partition_by)
        writer.parquet(folder.url(name))
    return [file for file in folder.files(name) if _is_data(file.name)]


def attempt_of(file: str) -> str:
    """Return the attempt that wrote a file of the table: the second part of its name."""
    return file.split("/")[1]


def _is_data(file: str) -> bool:
    return not file.rpartition("/")[2].startswith(("_", "."))


@contextmanager
def _setting(spark: SparkSession, key: str, value: str) -> Iterator[None]:
    before = spark.conf.get(key)
    assert before is not None
    spark.conf.set(key, value)
    try:
        yield
    finally:
        spark.conf.set(key, before)
