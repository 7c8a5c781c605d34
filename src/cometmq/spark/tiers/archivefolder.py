"""The folder of an archive, local or behind a URL: lists its files and opens them for reading.

Remote files are read through Arrow, like those of store directories (store/urls.py). The log of a
Delta table is read by ``deltalake``, which has its own clients for object stores.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from cometmq.core.errors import CometError
from cometmq.spark.options import BadOption
from cometmq.spark.store.urls import (
    StoreUnreadable,
    arrow_file,
    is_url,
    joined,
    names_now,
    reading,
    shown,
    without_credentials,
)
from cometmq.spark.tables.datafiles import LocalFolder, ReadFolder
from cometmq.spark.tables.parquet import SCHEMA, DataFile, WrittenLog

_DELETION_VECTORS: Final = "deletionVectors"


class ArchiveFileGone(CometError):
    """Raised if the file at ``path``, which the archive's log names, does not exist."""

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(
            f"{path} is not there, though the archive's log names it: either the archive was "
            "compacted twice since this query was planned, so run the query again; or this is a "
            "copy that lacks the file"
        )


class ArrowFolder:
    """A folder behind a URL. Nothing is cached: the reader of a log must see that the log was
    folded."""

    def __init__(self, root: str) -> None:
        self._root = root

    def url(self, name: str) -> str:
        return shown(in_archive(self._root, name))

    def names(self, name: str) -> list[str]:
        return names_now(in_archive(self._root, name) if name else self._root)

    def read(self, name: str) -> bytes:
        url = in_archive(self._root, name)
        with arrow_file(url) as file, reading(url):
            found: bytes = file.read()
            return found


def in_archive(root: str, name: str) -> str:
    """Return the path or URL of a file in an archive."""
    return joined(root, *name.split("/")) if is_url(root) else os.path.join(root, name)


def data_files(root: str) -> list[DataFile]:
    """Return the files of an archive, as its log names them. Raises BadOption if there is no
    archive or its format cannot be read, StoreUnreadable, OSError."""
    folder: ReadFolder = ArrowFolder(root) if is_url(root) else LocalFolder(Path(root))
    names = folder.names("")
    if "_delta_log" in names:
        return _delta_files(root)
    if SCHEMA not in names:
        raise BadOption("archive", f"there is no archive at {shown(root)}")
    return WrittenLog(folder).files()


class OpenFile:
    """An open Parquet file. Its methods raise ArchiveFileGone, OSError, and StoreUnreadable if the
    file is behind a URL."""

    def __init__(self, path: str, file: pq.ParquetFile) -> None:
        self._path = path
        self._file = file
        self.metadata = file.metadata

    def read(self, columns: Sequence[str], groups: Sequence[int] | None = None) -> pa.Table:
        """Return columns of the row groups ``groups`` (None: of all)."""
        chosen = range(self.metadata.num_row_groups) if groups is None else groups
        with _reading(self._path):
            return self._file.read_row_groups(list(chosen), columns=list(columns))

    def batches(self, rows: int, group: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield columns of a row group, at most ``rows`` rows per batch."""
        with _reading(self._path):
            found = self._file.iter_batches(rows, row_groups=[group], columns=list(columns))
        while True:
            with _reading(self._path):
                batch = next(found, None)
            if batch is None:
                return
            yield batch


@contextmanager
def opened(path: str) -> Iterator[OpenFile]:
    """Open a Parquet file. Raises ArchiveFileGone, StoreUnreadable, OSError."""
    with ExitStack() as stack:
        with _reading(path):
            # With pre_buffer, neighbouring columns cost one request instead of one each.
            source = arrow_file(path) if is_url(path) else path
            found = pq.ParquetFile(source, pre_buffer=is_url(path))
        yield OpenFile(path, stack.enter_context(found))


@contextmanager
def _reading(path: str) -> Iterator[None]:
    try:
        with reading(path) if is_url(path) else nullcontext():
            yield
    except FileNotFoundError:
        raise ArchiveFileGone(shown(path)) from None


def _delta_files(root: str) -> list[DataFile]:
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    place, options = (_place_of(root), delta_options(root)) if is_url(root) else (root, None)
    try:
        table = DeltaTable(place, storage_options=options)
        actions = table.get_add_actions()
    except (OSError, DeltaError) as error:
        if not is_url(root):
            raise
        problem = (str(error).splitlines() or [type(error).__name__])[0]
        raise StoreUnreadable(shown(root), without_credentials(root, problem)) from None
    if _DELETION_VECTORS in (table.protocol().reader_features or ()):
        raise BadOption(
            "archive", f"{shown(root)} has deletion vectors, which this read cannot apply"
        )
    names = (unquote(name) for name in actions.column("path").to_pylist())
    sizes = actions.column("size_bytes").to_pylist()
    return [DataFile(name, size) for name, size in zip(names, sizes, strict=True)]


def _place_of(root: str) -> str:
    """Return the URL of a Delta table for deltalake. Raises BadOption unless it is of S3."""
    parts = urlsplit(root)
    if parts.scheme != "s3":
        raise BadOption("archive", f"{shown(root)} is a Delta table, which is read from s3 alone")
    return f"s3://{parts.netloc.rpartition('@')[2]}{parts.path}"


def delta_options(url: str) -> dict[str, str]:
    """Return deltalake's options for the credentials and parameters of an ``s3`` URL."""
    parts = urlsplit(url)
    given = dict(parse_qsl(parts.query))
    login = parts.netloc.rpartition("@")[0]
    key, _, secret = login.partition(":")
    scheme = given.get("scheme", "https")
    found = {
        "AWS_REGION": given.get("region", ""),
        "AWS_ENDPOINT_URL": (
            f"{scheme}://{given['endpoint_override']}" if "endpoint_override" in given else ""
        ),
        "AWS_ALLOW_HTTP": "true" if scheme == "http" else "",
        "AWS_ACCESS_KEY_ID": unquote(key),
        "AWS_SECRET_ACCESS_KEY": unquote(secret),
    }
    return {name: value for name, value in found.items() if value}
