"""A folder on any file system that Spark can write to, with the few operations that tables need.

    LocalFolder    a path of this machine, or one that all machines mount
    HadoopFolder   any other URL that Spark knows (hdfs, s3a, abfs, ...), through its JVM

Names are relative to the folder and separated by ``/``.
"""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class StoredFile(NamedTuple):
    """A file: its name within the folder, its size, and its modification time (wall clock)."""

    name: str
    size_bytes: int
    modified_ms: int


class Folder(Protocol):
    """Operations on the folder of a table. A missing folder lists as empty; reading a missing file
    raises FileNotFoundError."""

    def url(self, name: str) -> str:
        """Return Spark's URL of a file or folder in this one."""

    def names(self, name: str) -> list[str]:
        """Return the plain names of the entries of a folder, sorted."""

    def files(self, name: str) -> list[StoredFile]:
        """Return all files below a folder, at any depth, sorted by name."""

    def read(self, name: str) -> bytes:
        """Return a file's bytes."""

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
        # Not percent-encoded: Spark takes the path literally and escapes values in it itself.
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
        if not self._files.exists(self._at(name)):
            raise FileNotFoundError(self.url(name))
        stream = self._files.open(self._at(name))
        try:
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
    """Return the folder that Spark means by a path or URL. Without a session it is a path of this
    machine."""
    if spark is None:
        return LocalFolder(Path(path.removeprefix("file://")))
    jvm, conf = _hadoop(spark)
    found = jvm.org.apache.hadoop.fs.Path(path)
    uri = found.getFileSystem(conf).makeQualified(found).toUri()
    if uri.getScheme() == "file":
        return LocalFolder(Path(str(uri.getPath())))
    return HadoopFolder(spark, path)


def _hadoop(spark: SparkSession) -> tuple[Any, Any]:
    context = spark.sparkContext
    return context._jvm, context._jsc.hadoopConfiguration()


def _unfinished(name: str) -> str:
    """Return the name of a temporary file beside the target. Readers ignore names that begin like
    it."""
    return f"._{name}.{uuid.uuid4().hex[:8]}"
